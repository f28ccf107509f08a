"""`treadle serve --no-worker` decides, `treadle worker` processes do the work: all dialects, kills, drains, absences."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from tests import nursery

from .test_serve import serving

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SOON_S = 90.0

LOOP = """
metadata: {name: many, version: "1"}
workflow:
  - step: each
    loop: {in: "{{ range(10) | list }}", iterator: n, spec: {mode: parallel, max_in_flight: 10, policy: {reduce: sum}}}
    tool: {kind: shell, cmd: "echo {{ n }} >> out; until test -e go; do sleep 0.05; done; echo {{ n }}", cwd: "%s"}
"""
CALL = """
dialect: process
name: priced
version: "1"
steps:
  - call: {transport: python, callable: "services:quote", payload: {claims: 1}, into: quote}
  - complete: {total: {$: result.quote.total}}
"""
SLOW = 'metadata: {name: slow, version: "1"}\nworkflow: [{step: s, tool: {kind: shell, cmd: "sleep 60"}}]\n'
GPU = 'metadata: {name: missing, version: "1"}\nworkflow: [{step: s, tool: {kind: teleport}}]\n'


@contextmanager
def working(folder: Path, url: str, name: str, *options: str) -> Iterator[nursery.Process]:
    command = ["-m", "treadle.cli", "worker", "--server", url, "--name", name, "--json", *options]
    process = nursery.Process(command, cwd=folder, stdout=nursery.PIPE, stderr=nursery.PIPE)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        assert json.loads(line)["name"] == name
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def until(holds: Callable[[], Any], limit_s: float = SOON_S) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return found


class Api:
    def __init__(self, url: str) -> None:
        self._url = f"{url}/api/v1"

    def get(self, path: str) -> Any:
        return httpx.get(f"{self._url}{path}", timeout=100).raise_for_status().json()

    def post(self, path: str, body: Any = None) -> Any:
        answer = httpx.post(f"{self._url}{path}", json=body, timeout=100)
        assert answer.is_success, answer.text
        return answer.json()

    def start(self, workflow: str, **more: Any) -> str:
        return str(self.post("/runs", {"workflow": workflow, **more})["id"])

    def ended(self, id: str) -> dict[str, Any]:
        def look() -> Any:
            shown = self.post(f"/runs/{quote(id, safe='')}/wait?timeout=20&until=terminal")
            return shown if shown["status"] not in ("running", "waiting") else None

        found: dict[str, Any] = until(look)
        return found

    def replays(self, id: str) -> bool:
        return bool(self.post(f"/runs/{quote(id, safe='')}/replay")["equal"])

    def workers(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in self.get("/workers")["items"]}


def test_two_workers_do_the_work_of_all_dialects(tmp_path: Path) -> None:
    (tmp_path / "priced.yaml").write_text(CALL)
    shutil.copy(EXAMPLES / "process" / "services.py", tmp_path)
    app = str(EXAMPLES / "reactive" / "order.py:app")
    deployed = [
        EXAMPLES / "playbook" / "words.yaml",
        EXAMPLES / "agent" / "triage" / "flow.yaml",
        "priced.yaml",
    ]
    options = [word for path in deployed for word in ("--deploy", str(path))]
    with ExitStack() as stack:
        _, said = stack.enter_context(serving(tmp_path, "--no-worker", "--app", app, *options))
        assert said["worker"] is False
        for name in ("one", "two"):
            stack.enter_context(working(tmp_path, said["url"], name, "--app", app))
        api = Api(said["url"])
        words, priced = api.start("words"), api.start("priced")
        script = EXAMPLES / "agent" / "triage" / "script.json"
        triage = api.start("triage", model=f"scripted:{script}")
        order = {"order_id": "o-1", "amount_cents": 500}
        (cell,) = api.post("/events", {"event": "com.acme/OrderCreated@1", "value": order})["runs"]
        ended = {id: api.ended(id) for id in (words, priced, triage, cell)}
        assert {id: shown["status"] for id, shown in ended.items()} == dict.fromkeys(ended, "completed"), (
            ended
        )
        assert ended[words]["result"]["words"] == 6
        assert ended[priced]["result"] == {"total": 950}
        assert ended[cell]["state"]["pc"] == "done"
        assert all(api.replays(id) for id in ended)
        rows = api.workers()
        assert {name: row["status"] for name, row in rows.items()} == {"one": "live", "two": "live"}
        assert rows["one"]["bus"] == "http"
        assert "shell" in rows["one"]["tools"]


def test_the_work_of_a_killed_worker_goes_to_another_and_settles_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    (tmp_path / "many.yaml").write_text(LOOP % tmp_path)
    with ExitStack() as stack:
        _, said = stack.enter_context(serving(tmp_path, "--no-worker", "--deploy", "many.yaml"))
        dead = stack.enter_context(working(tmp_path, said["url"], "dead", "--concurrency", "2"))
        api = Api(said["url"])
        stack.enter_context(working(tmp_path, said["url"], "lives", "--concurrency", "4"))
        id = api.start("many")
        until(lambda: len(out.read_text().split()) == 6)
        assert api.workers()["dead"]["busy"] == 2
        dead.send_signal(signal.SIGKILL)
        (tmp_path / "go").touch()
        shown = api.ended(id)
        assert shown["status"] == "completed", shown
        assert set(out.read_text().split()) == {str(n) for n in range(10)}, "each was done, at least once"
        settled = [event for event in api.get(f"/runs/{id}/journal") if event["kind"] == "receipt"]
        intents = [record["event"]["intent"] for record in settled]
        assert len(intents) == len(set(intents)), "and settled once"
        assert api.replays(id)
        until(lambda: api.workers()["dead"]["status"] == "lost")


def test_with_warn_a_worker_goes_on_without_code_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    with serving(tmp_path, "--no-worker") as (_, said):
        options = ("--app", "broken.py:app")
        with working(tmp_path, said["url"], "goes-on", *options, "--validation", "warn"):
            assert "goes-on" in Api(said["url"]).workers()
        command = ["-m", "treadle.cli", "worker", "--server", said["url"], *options]
        refused = nursery.run(command, cwd=tmp_path)
        assert refused.returncode == 2
        assert "nothing_of_this_name" in refused.stderr


def test_a_worker_that_drains_gives_back_what_it_cannot_finish(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(SLOW)
    with ExitStack() as stack:
        _, said = stack.enter_context(serving(tmp_path, "--no-worker", "--deploy", "slow.yaml"))
        leaves = stack.enter_context(working(tmp_path, said["url"], "leaves", "--drain", "0.5s"))
        api = Api(said["url"])
        id = api.start("slow")
        until(lambda: api.workers()["leaves"]["busy"])
        stack.enter_context(working(tmp_path, said["url"], "stays"))
        leaves.send_signal(signal.SIGTERM)
        assert leaves.wait(30) == 0
        until(lambda: api.workers()["stays"]["busy"])
        told = httpx.get(f"{said['url']}/metrics", timeout=60).text
        assert "treadle_leases_expired_total 0.0" in told, "at once, not after the lease"
        api.post(f"/runs/{id}/cancel")
        until(lambda: not api.workers()["stays"]["busy"])


def test_a_worker_waits_for_its_server_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.touch()
    (tmp_path / "many.yaml").write_text(LOOP % tmp_path)
    with ExitStack() as stack:
        first, said = stack.enter_context(serving(tmp_path, "--no-worker", "--deploy", "many.yaml"))
        port = said["url"].rpartition(":")[2]
        stack.enter_context(working(tmp_path, said["url"], "patient", "--concurrency", "4"))
        id = Api(said["url"]).start("many")
        until(lambda: len(out.read_text().split()) == 4)
        first.kill()
        first.wait()
        stack.enter_context(serving(tmp_path, "--no-worker", "--port", port))
        api = Api(said["url"])
        until(lambda: api.workers().get("patient", {}).get("busy") == 4)
        (tmp_path / "go").touch()
        shown = api.ended(id)
        assert shown["status"] == "completed", shown
        done = sorted(out.read_text().split())
        assert done == [str(n) for n in range(10)], "what was in hand stayed there: nothing was begun twice"
        assert api.replays(id)


def test_work_that_nobody_can_do_says_so(tmp_path: Path) -> None:
    (tmp_path / "missing.yaml").write_text(GPU)
    with ExitStack() as stack:
        _, said = stack.enter_context(serving(tmp_path, "--no-worker", "--deploy", "missing.yaml"))
        stack.enter_context(working(tmp_path, said["url"], "one"))
        api = Api(said["url"])
        id = api.start("missing")

        def told() -> list[dict[str, Any]]:
            return [e for e in api.get(f"/runs/{id}/events")["items"] if e["type"] == "work.unavailable"]

        (event,) = until(told)
        assert "teleport" in event["reason"]
        shown = api.get(f"/runs/{id}")
        assert shown["status"] == "running"
        assert "teleport" in shown["waiting_for"][0]["reason"]
        assert api.get("/stats")["unavailable"] == 1
        assert len(told()) == 1, "once"


def test_two_live_workers_cannot_share_a_name(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-worker") as (_, said), working(tmp_path, said["url"], "same"):
        until(lambda: Api(said["url"]).workers())
        command = ["-m", "treadle.cli", "worker", "--server", said["url"], "--name", "same"]
        second = nursery.run(command, cwd=tmp_path)
        assert second.returncode == 1
        assert "same" in second.stderr
