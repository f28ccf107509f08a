"""Who did what is written by the commit that does it: over HTTP, at the command line, from another process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import nursery

from treadle import Engine
from treadle.access import tokens, trail
from treadle.host.acting import Origin, acting
from treadle.kernel.errors import RunNotFound, StoreFull
from treadle.server.app import create_app
from treadle.server.presence import Member
from treadle.testing import VirtualClock, assert_replays

from .conftest import APPROVAL, FLOW, deployed
from .test_access import client, made
from .test_serve import serving


async def log(engine: Engine, **asked: Any) -> list[dict[str, Any]]:
    return await trail.listed(engine, **asked)


async def did(engine: Engine, **asked: Any) -> list[tuple[str, str, str]]:
    """What was done, oldest first."""
    return [(row["user"], row["action"], row["target"]) for row in reversed(await log(engine, **asked))]


async def test_every_change_over_http_has_its_row_with_who_and_through_which_door(engine: Engine) -> None:
    app = create_app(engine, member=Member(name="s1"))
    token = await made(engine, "operator", "admin", "boss")
    async with client(app, token) as http:
        await deployed(http, approval=APPROVAL)
        asked = {"X-Request-Id": "req-7"}
        await http.post("/runs", json={"workflow": "approval", "id": "p"}, headers=asked)
        await http.post("/runs/p/wait", params={"timeout": 30})
        (task,) = (await http.get("/tasks")).json()["items"]
        for path, body in (
            (f"/tasks/{task['id']}/claim", None),
            (f"/tasks/{task['id']}/comment", {"text": "secret words"}),
            (f"/tasks/{task['id']}/complete", {"data": {"ok": True}}),
            ("/runs/p/signal", {"name": "other", "data": "secret words"}),
            ("/runs/p/fork", {"id": "q"}),
            ("/runs/q/cancel", {"reason": "secret words"}),
        ):
            assert (await http.post(path, json=body)).status_code < 300, path
        await http.post("/gc")
        who = "operator-admin-boss"
        assert (await did(engine))[0:] == [
            (who, "definition.deploy", "approval@1"),
            (who, "run.start", "p"),
            (who, "task.claim", task["id"]),
            (who, "task.comment", task["id"]),
            (who, "task.complete", task["id"]),
            (who, "run.signal", "p"),
            (who, "run.fork", "q"),
            (who, "run.cancel", "q"),
            (who, "store.collect", ""),
        ]
        page = (await http.get("/audit")).json()
        started = next(row for row in page["items"] if row["action"] == "run.start")
        assert (started["server"], started["request"]) == ("s1", "req-7")
        assert started["token"] == tokens.id_of(token)
        assert started["status"] == "ok"
        assert "secret words" not in json.dumps(page)
    await assert_replays(engine)


async def test_the_log_is_filtered_and_paged_newest_first(engine: Engine) -> None:
    app = create_app(engine)
    token = await made(engine, "admin")
    async with client(app, token) as http:
        await deployed(http, greet=FLOW)
        for number in range(5):
            await http.post("/runs", json={"workflow": "greet", "id": f"r{number}"})
        seen, asked = [], {"limit": 2, "action": "run"}
        while True:
            page = (await http.get("/audit", params=asked)).json()
            seen += [row["target"] for row in page["items"]]
            if page["next"] is None:
                break
            asked["cursor"] = page["next"]
        assert seen == ["r4", "r3", "r2", "r1", "r0"]
        for filters, count in (
            ({"target": "r1"}, 1),
            ({"action": "run.start"}, 5),
            ({"action": "definition"}, 1),
            ({"action": "run.s"}, 0),
            ({"user": "admin"}, 6),
            ({"user": "eve"}, 0),
            ({"since": "1h"}, 6),
            ({"until": "1h"}, 0),
            ({"status": "refused"}, 0),
        ):
            found = (await http.get("/audit", params=filters)).json()["items"]
            assert len(found) == count, filters
        assert (await http.get("/audit", params={"cursor": "x"})).status_code == 400


async def test_a_refused_change_is_written_down_with_its_code(engine: Engine) -> None:
    app = create_app(engine)
    async with client(app) as http:
        await deployed(http, greet=FLOW)
        await http.post("/runs", json={"workflow": "greet", "id": "a"})
        await http.post("/runs", json={"workflow": "greet", "id": "a", "input": {"name": "x"}})
        await http.post("/runs/nope/cancel")
        await http.post("/runs/a/wait", params={"timeout": 30})
        await http.post("/runs/a/cancel")
    rows = [(row["action"], row["target"], row["status"], row.get("code")) for row in await log(engine)]
    assert rows[:4] == [
        ("run.cancel", "a", "stale", None),
        ("run.cancel", "nope", "refused", "RUN_NOT_FOUND"),
        ("run.start", "a", "refused", "RUN_EXISTS"),
        ("run.start", "a", "ok", None),
    ]


async def test_requests_that_are_turned_away_are_written_down_one_a_second_for_an_address(
    engine: Engine,
) -> None:
    app = create_app(engine)
    token = await made(engine, "viewer")
    async with client(app, token) as http:
        for _ in range(50):
            assert (await http.post("/runs", json={})).status_code == 403
    deadline = time.monotonic() + 10
    while not (rows := await log(engine, status="refused")):
        assert time.monotonic() < deadline
    assert 1 <= len(rows) < 10
    assert (rows[0]["user"], rows[0]["action"], rows[0]["code"]) == ("viewer", "request.refuse", "FORBIDDEN")
    assert rows[0]["target"] == "POST /runs"


async def test_a_change_and_its_row_are_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that the store does not take leaves neither; the row comes with the one it takes."""
    async with Engine("memory:") as engine:
        app = create_app(engine)
        async with client(app) as http:
            await deployed(http, greet=FLOW)
            store = await engine.look(lambda view: view.store)
            batches: list[tuple[int, int]] = []
            take = store.commit

            def commit(batch: Any) -> None:
                if batch.runs_new:
                    batches.append((len(batch.runs_new), len(batch.audit)))
                    if len(batches) == 1:
                        raise StoreFull("no room")
                take(batch)

            monkeypatch.setattr(store, "commit", commit)
            body = {"workflow": "greet", "id": "a"}
            assert (await http.post("/runs", json=body)).status_code == 507
            assert await log(engine, action="run") == []
            assert (await http.post("/runs", json=body)).status_code == 201
            assert (await did(engine, action="run")) == [("local", "run.start", "a")]
            assert batches == [(1, 1), (1, 1)]


async def test_what_is_done_in_python_is_written_down_where_somebody_is_named(engine: Engine) -> None:
    app_less = engine
    app_less.deploy(_file(APPROVAL), by="dan")
    await engine.start("approval", id="p")
    assert await did(engine) == [("dan", "definition.deploy", "approval@1")], "nobody was named"
    await engine.signal("p", "early", by="ann")
    with acting(Origin("bob")):
        await engine.start("approval", id="q")
        with pytest.raises(RunNotFound):
            await engine.cancel("nope")
    assert (await did(engine))[1:] == [
        ("ann", "run.signal", "p"),
        ("bob", "run.start", "q"),
        ("bob", "run.cancel", "nope"),
    ]


async def test_rows_are_kept_for_a_year() -> None:
    clock = VirtualClock()
    async with clock.engine("memory:") as engine:
        await made(engine, "admin")
        with acting(Origin("ann")):
            await tokens.create(engine, "bob", ["viewer"])
        await clock.advance(364 * 86_400)
        await engine.gc()
        assert len(await log(engine)) == 1
        await clock.advance(2 * 86_400)
        await engine.gc()
        assert await log(engine) == []


def treadle(folder: Path, *arguments: str, **environment: str) -> Any:
    import os

    command = ["-m", "treadle.cli", *arguments, "--json", "--store", "sqlite:///t.db"]
    env = {**os.environ, **environment}
    done = nursery.run(command, cwd=folder, env=env)
    assert done.returncode in (0, 3), done.stderr + done.stdout
    return json.loads(done.stdout)


def test_the_command_line_says_who_did_it(tmp_path: Path) -> None:
    (tmp_path / "approval.yaml").write_text(APPROVAL)
    treadle(tmp_path, "run", "approval.yaml", "--id", "p", "--user", "ann")
    treadle(tmp_path, "signal", "p", "go", "--user", "bob")
    treadle(tmp_path, "cancel", "p", TREADLE_USER="carl")
    rows = treadle(tmp_path, "audit")
    assert [(row["user"], row["action"], row["target"]) for row in rows] == [
        ("carl", "run.cancel", "p"),
        ("bob", "run.signal", "p"),
        ("ann", "run.start", "p"),
    ]
    assert [row["user"] for row in treadle(tmp_path, "audit", "--by", "bob")] == ["bob"]
    treadle(tmp_path, "token", "create", "--user", "eve", "--role", "viewer", LOGNAME="dora")
    assert treadle(tmp_path, "audit", "--action", "token")[0]["user"] == "dora"


def test_every_command_that_changes_something_takes_user() -> None:
    from typer.main import get_command

    from treadle.cli.main import app

    def walk(command: Any, path: str) -> list[str]:
        if hasattr(command, "commands"):
            return [found for name, sub in command.commands.items() for found in walk(sub, f"{path} {name}")]
        options = {option for parameter in command.params for option in parameter.opts}
        return [] if "--user" in options else [path]

    assert walk(get_command(app), "treadle") == []


def test_a_guest_of_a_server_is_written_down_by_the_owner(tmp_path: Path) -> None:
    (tmp_path / "approval.yaml").write_text(APPROVAL)
    with serving(tmp_path, "--deploy", "approval.yaml") as (_, said):
        httpx.post(f"{said['url']}/api/v1/runs", json={"workflow": "approval", "id": "p"}, timeout=60)
        treadle(tmp_path, "cancel", "p", "--user", "ann")
        rows = httpx.get(f"{said['url']}/api/v1/audit", params={"action": "run"}, timeout=60).json()["items"]
        assert [(row["user"], row["action"], row["server"]) for row in rows] == [
            ("ann", "run.cancel", None),
            ("local", "run.start", said["name"]),
        ]


def _file(text: str) -> str:
    import tempfile

    path = Path(tempfile.mkdtemp()) / "flow.yaml"
    path.write_text(text)
    return str(path)


async def test_tokens_rows_and_limits_are_the_same_on_postgresql(pg_store: str) -> None:
    async with Engine(pg_store) as engine:
        app = create_app(engine)
        token = await made(engine, "admin")
        async with client(app, token) as http:
            await deployed(http, greet=FLOW, other=FLOW.replace("greet", "other"))
            for workflow in ("greet", "other"):
                await http.post("/runs", json={"workflow": workflow, "id": f"{workflow}-1"})
                await http.post(f"/runs/{workflow}-1/wait", params={"timeout": 60})
            page = (await http.get("/audit", params={"action": "run", "user": "admin"})).json()["items"]
            assert [row["target"] for row in page] == ["other-1", "greet-1"]
        async with client(app, await made(engine, "viewer", workflow="gre")) as http:
            assert [row["id"] for row in (await http.get("/runs")).json()["items"]] == ["greet-1"]
        await engine.gc()
