"""Bulk work: one action on a set of runs that is fixed when it is accepted, durable, done at any server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.conftest import Cli, cli, folder, write
from tests.server.conftest import deployed, engine, http

from treadle import Engine
from treadle.host.bulk import BulkWork
from treadle.kernel.errors import RunFailed
from treadle.runtime import bulks
from treadle.server.app import create_app
from treadle.testing import assert_replays

__all__ = ["cli", "engine", "folder", "http", "write"]

PATIENCE_S = 60.0
# Stalls as long as nobody has said that the door is open.
CALLS = """
dialect: process
name: calls
version: "1"
steps:
  - call: {transport: door, into: said}
  - complete: {$: result.said}
"""
WAITS = """
dialect: process
name: waits
version: "1"
steps:
  - await: go
"""


@pytest.fixture
async def door(engine: Engine) -> set[str]:
    """Holds "open" once calls succeed."""
    found: set[str] = set()

    @engine.transport("door")
    def door() -> str:
        if "open" not in found:
            raise RuntimeError("it is shut")
        return "in"

    return found


async def stalled(engine: Engine, http: httpx.AsyncClient, count: int) -> list[str]:
    assert (await deployed(http, calls=CALLS, waits=WAITS)).status_code == 201
    ids = [f"c{number:03}" for number in range(count)]
    for id in ids:
        await engine.start("calls", id=id)
    for id in ids:
        await (await engine.run(id)).settled(timeout=PATIENCE_S)
    return ids


async def ended(http: httpx.AsyncClient, id: str, work: BulkWork) -> dict[str, Any]:
    while await work.step():
        pass
    found: dict[str, Any] = (await http.get(f"/bulk/{id}")).json()
    return found


async def test_runs_are_retried_in_bulk(engine: Engine, http: httpx.AsyncClient, door: set[str]) -> None:
    ids = await stalled(engine, http, 250)
    body = {"action": "retry", "filter": {"status": "stalled", "workflow": "calls"}}
    rehearsed = await http.post("/bulk", json={**body, "dry_run": True})
    assert (rehearsed.status_code, rehearsed.json()) == (200, {"matched": 250, "sample": ids[:20]})
    door.add("open")
    accepted = await http.post("/bulk", json=body, headers={"X-Treadle-User": "ann"})
    assert accepted.status_code == 202
    assert accepted.json().keys() == {"id", "matched"}
    job = accepted.json()["id"]
    assert (await http.get(f"/bulk/{job}")).json()["status"] == "running"
    await engine.start("calls", id="later")  # it is not of the set
    row = await ended(http, job, BulkWork(engine))
    assert (row["status"], row["matched"], row["done"], row["failed"]) == ("completed", 250, 250, 0)
    assert (row["action"], row["by"], row["errors"]) == ("retry", "ann", [])
    for id in ids:
        assert await (await engine.run(id)).result(PATIENCE_S) == "in"
    rows = await engine.read(lambda reads: reads.audit(action="run.retry", limit=1000))
    assert {(one.user, one.request, one.status) for one in rows} == {("ann", job, "ok")}
    assert len(rows) == 250
    assert await engine.read(lambda reads: reads.documents(bulks.IDS)) == []
    assert await assert_replays(engine) == 251


async def test_nobody_holds_a_job_for_longer_than_others_do(
    engine: Engine, http: httpx.AsyncClient, door: set[str]
) -> None:
    """How long is said in a message, and anybody may write one."""
    await stalled(engine, http, 1)
    job = (await http.post("/bulk", json={"action": "retry", "filter": {"all": True}})).json()["id"]
    await engine.operate(bulks.KIND, {"op": "take", "holder": "somebody", "held_ns": 10**17})
    row = await engine.read(lambda reads: bulks.find(reads, job))
    assert row.until_ns <= time.time_ns() + bulks.HELD_NS


async def test_what_somebody_began_who_died_is_gone_on_with_and_changes_nothing_twice(
    engine: Engine, http: httpx.AsyncClient, door: set[str]
) -> None:
    """The first dies after its chunk is done and before it says so."""
    ids = await stalled(engine, http, 3)
    door.add("open")
    job = (await http.post("/bulk", json={"action": "retry", "filter": {"all": True}})).json()["id"]
    taken = await engine.operate(bulks.KIND, {"op": "take", "holder": "one who dies"})
    assert taken["ids"] == ids
    for id in ids:
        await engine.retry(id, once=(f"run:{id}", f"bulk:{job}"))
        assert await (await engine.run(id)).result(PATIENCE_S) == "in"
    other = BulkWork(engine)
    assert not await other.step(), "it is held"
    await engine.operate(bulks.KIND, {"op": "take", "holder": "one who dies", "held_ns": 0})
    row = await ended(http, job, other)
    assert (row["status"], row["done"], row["failed"]) == ("completed", 3, 0)
    late = {
        "op": "advance",
        "id": job,
        "nth": 0,
        "holder": "one who dies",
        "done": 3,
        "failed": 0,
        "errors": [],
    }
    assert await engine.operate(bulks.KIND, late) is False
    for id in ids:
        journal = await (await engine.run(id)).journal()
        assert [record["kind"] for record in journal].count("retry") == 1


async def test_what_fails_is_told_and_stops_nothing(
    engine: Engine, http: httpx.AsyncClient, door: set[str]
) -> None:
    await stalled(engine, http, 2)
    await engine.start("waits", id="w")
    job = (await http.post("/bulk", json={"action": "retry", "filter": {"all": True}})).json()["id"]
    row = await ended(http, job, BulkWork(engine))
    assert (row["done"], row["failed"]) == (2, 1)
    (error,) = row["errors"]
    assert error["id"] == "w"
    assert error["error"].keys() >= {"class", "code", "message"}


async def test_signal_cancel_and_delete_in_bulk(
    engine: Engine, http: httpx.AsyncClient, door: set[str]
) -> None:
    await stalled(engine, http, 1)
    for id in ("a", "b", "c"):
        await engine.start("waits", id=id)
        await (await engine.run(id)).settled(timeout=PATIENCE_S)
    work = BulkWork(engine)

    async def did(action: str, filter: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        asked = await http.post("/bulk", json={"action": action, "filter": filter, "arguments": arguments})
        assert asked.status_code == 202, asked.text
        return await ended(http, asked.json()["id"], work)

    assert (await did("signal", {"ids": ["a", "b", "nobody"]}, name="go"))["done"] == 2
    assert await (await engine.run("a")).result(PATIENCE_S) is None
    assert (await did("cancel", {"workflow": "waits"}, reason="enough"))["done"] == 3
    assert (await (await engine.run("c")).show())["status"] == "cancelled"
    row = await did("delete", {"all": True})
    assert (row["done"], row["failed"], row["errors"][0]["error"]["code"]) == (3, 1, "RUN_NOT_ENDED")
    assert [one["id"] for one in await engine.list()] == ["c000"]
    rows = await engine.read(lambda reads: reads.audit(action="run.delete", status="ok"))
    assert {one.target for one in rows} == {"a", "b", "c"}
    assert [one["status"] for one in (await http.get("/bulk")).json()["items"]] == ["completed"] * 3


async def test_a_job_is_stopped(engine: Engine, http: httpx.AsyncClient, door: set[str]) -> None:
    await stalled(engine, http, 1)
    job = (await http.post("/bulk", json={"action": "cancel", "filter": {"all": True}})).json()["id"]
    assert (await http.delete(f"/bulk/{job}")).json()["status"] == "cancelled"
    assert not await BulkWork(engine).step()
    assert (await (await engine.run("c000")).show())["status"] == "stalled"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"action": "retry", "filter": {}}, 422),
        ({"action": "retry", "filter": {"status": "broken"}}, 422),
        ({"action": "retry", "filter": {"since": "yesterday"}}, 422),
        ({"action": "burn", "filter": {"all": True}}, 422),
        ({"action": "signal", "filter": {"all": True}}, 422),
        ({"action": "cancel", "filter": {"all": True}, "arguments": {"name": "x"}}, 422),
        ({"action": "retry", "filter": {"all": True}, "arguments": {"from": "a", "fail": "b"}}, 422),
    ],
)
async def test_what_means_nothing_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any], status: int
) -> None:
    refused = await http.post("/bulk", json=body)
    assert (refused.status_code, refused.json()["code"]) == (status, "INPUT_INVALID")
    assert (await http.get("/bulk")).json()["items"] == []
    assert (await http.get("/bulk/none")).status_code == 404


async def test_a_limited_token_reaches_its_own_workflows_only(engine: Engine, door: set[str]) -> None:
    transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
        await stalled(engine, http, 2)
        await engine.start("waits", id="w")
        made = {}
        for name, more in (("root", {}), ("ann", {"workflow": "waits"})):
            roles = ["admin"] if name == "root" else ["operator"]
            answer = await http.post(
                "/tokens", json={"user": name, "roles": roles, **more}, headers=made.get("root", {})
            )
            made[name] = {"Authorization": f"Bearer {answer.json()['token']}"}
        body = {"action": "cancel", "filter": {"ids": ["c000", "c001", "w"]}}
        accepted = await http.post("/bulk", json=body, headers=made["ann"])
        assert accepted.json()["matched"] == 1
        own = accepted.json()["id"]
        other = (await http.post("/bulk", json=body, headers=made["root"])).json()["id"]
        assert (await http.get(f"/bulk/{own}", headers=made["ann"])).status_code == 200
        assert (await http.get(f"/bulk/{other}", headers=made["ann"])).status_code == 404


async def test_a_run_is_deleted_with_those_below_it_once_all_have_ended(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "dialect: process\nname: p\nsteps: [{child: {workflow: c}}, {await: go}]\n"
    )
    (tmp_path / "c.yaml").write_text("dialect: process\nname: c\nsteps: [{await: go}]\n")
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(str(tmp_path))
        run = await engine.start("p", id="p")
        await run.settled(timeout=PATIENCE_S)
        (child,) = (await run.show())["children"]
        with pytest.raises(Exception, match="only runs that have ended"):
            await engine.delete("p")
        await engine.cancel("p")
        for id in (child, "p"):
            with pytest.raises(RunFailed):
                await (await engine.run(id)).result(PATIENCE_S)
        assert await engine.delete("p", by="ann") == {"id": "p", "removed": 2}
        assert await engine.list() == []
        assert (await engine.doctor(deep=True))["ok"]


def test_the_command_deletes_by_filter_after_a_rehearsal(cli: Cli, write: Callable[[str, str], Path]) -> None:
    write("w.yaml", "dialect: process\nname: w\nsteps: [{set: {state.x: 1}}]\n")
    for id in ("a", "b"):
        cli("run", "w.yaml", "--id", id, code=0)
    assert [one["id"] for one in cli("delete", "--status", "completed", "--dry-run", "--json").lines] == [
        "a",
        "b",
    ]
    assert len(cli("list", "--json").json) == 2
    answer = cli("delete", "--status", "completed", "--json", "--user", "ann", code=0)
    assert answer.lines == [{"id": "a", "status": "deleted"}, {"id": "b", "status": "deleted"}]
    assert "2 runs: 2 deleted" in answer.err
    assert cli("list", "--json").json == []
    assert {row["target"] for row in cli("audit", "--action", "run.delete", "--json").json} == {"a", "b"}
    assert "no run matches" in cli("delete", "--status", "completed", code=0).err
    assert cli("delete", code=2)
