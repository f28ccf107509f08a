"""`treadle serve --processes N`: members of one store behind one port, looked after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psycopg

from .conftest import FLOW
from .test_serve import serving


def until(so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def shares(store: str) -> list[int]:
    """How many shards each member holds."""
    with psycopg.connect(store) as connection:
        found = connection.execute("SELECT count(*) FROM shards WHERE owner IS NOT NULL GROUP BY owner")
        return sorted(count for (count,) in found.fetchall())


def greeted(url: str) -> str:
    api = f"{url}/api/v1"
    # A client's connection may be to a process that is killed: what is not answered is asked again.
    with httpx.Client(transport=httpx.HTTPTransport(retries=3), timeout=60) as client:
        id = client.post(f"{api}/runs", json={"workflow": "greet"}).json()["id"]
        return str(client.post(f"{api}/runs/{id}/wait").json()["status"])


def test_processes_share_a_port_and_a_store_and_one_that_dies_is_started_again(
    tmp_path: Path, pg_store: str
) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    options = ("--store", pg_store, "--processes", "2", "--name", "ann", "--deploy", "flow.yaml")
    with serving(tmp_path, *options) as (keeper, said):
        assert said["processes"] == 2
        before = children(keeper.pid)
        assert len(before) == 2
        until(lambda: shares(pg_store) == [32, 32], "they share the shards evenly")
        assert greeted(said["url"]) == "completed"

        refused = httpx.post(f"{said['url']}/api/v1/work/take", json={"worker": "w", "limit": 1, "wait": 0})
        assert (refused.status_code, refused.json()["code"]) == (422, "UNSUPPORTED"), (
            "HTTP would reach another one each time"
        )

        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(children(keeper.pid)) == 2 and before[0] not in children(keeper.pid), "started again")
        until(lambda: shares(pg_store) == [32, 32], "and has its share")
        assert greeted(said["url"]) == "completed"

        after = children(keeper.pid)
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(60) == 0
        assert not any(map(lives, after)), "all have drained"
        assert shares(pg_store) == [], "and given their shards away"


def test_processes_drain_when_their_keeper_is_gone(tmp_path: Path, pg_store: str) -> None:
    with serving(tmp_path, "--store", pg_store, "--processes", "2") as (keeper, _):
        kept = children(keeper.pid)
        keeper.kill()
        until(lambda: not any(map(lives, kept)), "nobody is left behind")


def test_processes_on_a_file_are_refused_with_the_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "treadle.cli", "serve", "--store", f"sqlite:///{tmp_path}/t.db"]
    done = subprocess.run(
        [*command, "--processes", "2"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "PostgreSQL" in done.stderr
    assert not (tmp_path / "t.db").exists()
