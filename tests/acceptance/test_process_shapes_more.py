"""PROCESS.md, the sentences between the shapes: forks, nesting, deadlines, escalation, gc, inspection."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.process import payload, process, result, start, state, task
from treadle.testing import VirtualClock, assert_replays

from .conftest import Desk
from .test_process_shapes import proc

DAY = 86400.0


async def test_a_task_escalates_then_expires() -> None:
    approve = task("approve", roles=["clerk"], timeout="1d", escalate_to=["boss"])

    @process("Escalates")
    def flow(p: Any) -> None:
        p.ask(approve)
        p.complete(payload.answer)

    clock = VirtualClock()
    async with clock.engine() as engine:
        run = await engine.start(flow)
        (row,) = await engine.tasks()
        assert row["roles"] == ["clerk"]
        await clock.advance(DAY)
        rows = [row for row in await engine.tasks() if row["status"] in ("open", "claimed")]
        assert rows[0]["roles"] == ["boss"] or "boss" in rows[0]["roles"]
        await engine.task_complete(rows[0]["id"], user="b", roles=["admin"], data={"answer": 1})
        assert await run.result(timeout=60) == 1
        await assert_replays(engine)


async def test_a_task_without_a_branch_expires_and_stalls() -> None:
    @process("Expires")
    def flow(p: Any) -> None:
        p.ask(task("t", roles=["r"], timeout="1d"))
        p.complete("done")

    clock = VirtualClock()
    async with clock.engine() as engine:
        run = await engine.start(flow)
        await clock.advance(DAY)
        shown = await run.show()
        assert (shown["status"], shown["error"]["class"]) == ("stalled", "timeout")
        rows = await engine.tasks(status=["expired"])
        assert [row["status"] for row in rows] == ["expired"]
        await engine.retry(run.id)
        await clock.settle()
        shown = await run.show()
        assert shown["status"] == "waiting"
        await engine.task_complete(shown["waiting_for"][0]["id"], user="b", roles=["admin"], data={})
        assert await run.result(timeout=60) == "done"


async def test_on_timeout_of_a_task_runs_its_branch() -> None:
    @process("Late")
    def flow(p: Any) -> None:
        p.ask(task("t", roles=["r"], timeout="1d", on_timeout=lambda p: p.set(state.late, True)))
        p.complete(state.late)

    clock = VirtualClock()
    async with clock.engine() as engine:
        run = await engine.start(flow)
        await clock.advance(DAY)
        assert await run.result(timeout=60) is True


@pytest.mark.parametrize("backoff", ["none", "linear", "exponential"])
async def test_backoff(backoff: str) -> None:
    clock = VirtualClock()
    engine = clock.engine()
    at: list[float] = []

    @engine.transport("flaky")
    def flaky(payload: Any) -> Any:
        at.append(clock.now_ns() / 1e9)
        raise OSError("no")

    @process("B")
    def flow(p: Any) -> None:
        p.call(
            "flaky",
            into="x",
            retry={"attempts": 4, "backoff": backoff, "delay": "10s"},
            on_failure=lambda p: p.complete("gave up"),
        )

    async with engine:
        run = await engine.start(flow)
        await clock.advance(1000)
        assert await run.result(timeout=60) == "gave up"
    gaps = [round(b - a) for a, b in pairwise(at)]
    assert gaps == {"none": [10, 10, 10], "linear": [10, 20, 30], "exponential": [10, 20, 40]}[backoff]


async def test_kill_at_every_wait_of_a_nest(tmp_path: Path) -> None:
    """if, repeat, fork, child and their waits: a new engine at each wait, and the same result."""

    @process("Kid", version="1.0.0")
    def kid(p: Any) -> None:
        p.await_signal("kid", into="k")
        p.complete(result.k)

    @process("Nest", version="1.0.0")
    def nest(p: Any) -> None:
        p.set(state.log, "")
        with p.each("row", in_=start.rows):
            with p.when(p.row > 1):
                p.fork(
                    left=lambda q: q.await_signal("l", into="l"),
                    right=lambda q: q.child("Kid", into="kid"),
                )
            with p.otherwise():
                p.ask(task("t", roles=["r"]))
            p.set(state.n, p.row)
        p.complete({"n": state.n, "kid": result.kid, "l": result.l})

    url = f"sqlite:///{tmp_path / 'n.db'}"
    id = "nest"
    for turn in range(20):
        engine = Engine(url)
        engine.deploy(kid)
        engine.deploy(nest)
        async with engine:
            run = await engine.start("Nest", {"rows": [1, 2, 3]}, id=id)
            shown = await run.settled(timeout=60)
            shown = await run.show(engine=True)
            if shown["status"] != "waiting":
                break
            assert shown["engine"]["resume_pointer"] is not None
            wait = shown["waiting_for"][0]
            if wait["kind"] == "task":
                await engine.task_complete(wait["id"], user="u", roles=["admin"], data={})
            elif wait["kind"] == "signal":
                await engine.signal(id, wait["name"], turn)
            else:
                running = [
                    c
                    for c in shown["children"]
                    if (await (await engine.run(c)).show())["status"] == "waiting"
                ]
                child = running[0]
                await engine.signal(child, "kid", turn)
    assert shown["status"] == "completed"
    assert shown["result"]["n"] == 3


def test_13_payload_and_writes_of_a_fork(desk: Desk) -> None:
    run = desk.run(
        proc(
            """
- fork:
    a: [{task: x}, {set: {state.a: {$: payload.v}, state.last: a}}]
    b: [{task: y}, {set: {state.b: {$: payload.v}, state.last: b}}]
- complete: {a: {$: state.a}, b: {$: state.b}, payload: {$: payload.v}, last: {$: state.last}}
""",
            "tasks: {x: {roles: [r]}, y: {roles: [r]}}",
        ),
        code=3,
    )
    ids = {wait["name"]: wait["id"] for wait in run["waiting_for"]}
    desk(
        "task",
        "complete",
        ids["y"],
        "--user",
        "u",
        "--role",
        "admin",
        "--data",
        '{"v": "Y"}',
        "--json",
        code=3,
    )
    done = desk(
        "task",
        "complete",
        ids["x"],
        "--user",
        "u",
        "--role",
        "admin",
        "--data",
        '{"v": "X"}',
        "--json",
        code=0,
    ).json
    assert done["result"] == {"a": "X", "b": "Y", "payload": "X", "last": "a"}


def test_engine_state_is_apart(desk: Desk) -> None:
    run = desk.run(
        proc("- set: {state.n: 1}\n- if: true\n  then: [{await: {signal: s, timeout: 1d}}]"), code=3
    )
    assert "engine" not in run
    assert run["state"] == {"n": 1}
    shown = desk("show", run["id"], "--engine", "--json", code=0).json
    (wait,) = shown["engine"]["waits"]
    assert wait["kind"] == "signal"
    assert wait["token"] == run["waiting_for"][0]["id"]
    assert "steps[1].then[0]" in wait["path"]
    assert wait["due"] == run["waiting_for"][0]["due"]
    assert shown["engine"]["last_event"] is not None
    assert "then" in json.dumps(shown["engine"]["resume_pointer"])
    desk("signal", run["id"], "s", code=0)
    ended = desk("show", run["id"], "--engine", "--json", code=0).json
    assert ended["engine"]["timers"] == []
    assert ended["engine"]["retain_until"] == ended["retain_until"]


def test_version_no_counts_commits(desk: Desk) -> None:
    run = desk.run(
        proc("- set: {state.a: 1}\n- set: {state.a: 2}\n- await: {signal: s}\n- set: {state.a: 3}"), code=3
    )
    assert run["version_no"] == 1
    assert desk("signal", run["id"], "s", "--json", code=0).json["version_no"] == 2


def test_gc_takes_what_is_past_its_retention(desk: Desk) -> None:
    run = desk.run(proc("- complete: 1", "retention: 1ms"))
    keep = desk.run(proc("- complete: 1"))
    for _ in range(1000):  # a millisecond passes at some point
        desk("gc", "--json", code=0)
        if [row["id"] for row in desk("list", "--json", code=0).json] == [keep["id"]]:
            break
    assert desk("show", run["id"], "--json").code == 2


def test_strict_children_by_version(desk: Desk) -> None:
    for version in ("1.0.0", "2.0.0"):
        desk.write(
            "kid.yaml",
            proc(f"- complete: v{version}", name="Kid").replace("version: 1.0.0", f"version: {version}"),
        )
        desk("deploy", "kid.yaml", code=0)
    assert (
        desk.run(proc("- child: {workflow: Kid, into: k}\n- complete: {$: result.k}"))["result"] == "v2.0.0"
    )
    assert (
        desk.run(proc("- child: {workflow: Kid@1.0.0, into: k}\n- complete: {$: result.k}"))["result"]
        == "v1.0.0"
    )


def test_fork_after_a_fix(desk: Desk) -> None:
    bad = proc(
        "- set: {state.x: 1}\n- await: {signal: s, into: s}\n- set: {state.y: {$: state.x + 'a'}}\n- complete: {$: state.y}"
    )
    run = desk.run(bad, code=3)
    failed = desk("signal", run["id"], "s", "--json", code=1).json
    assert failed["error"]["class"] == "expression"
    desk.write("fixed.yaml", bad.replace("state.x + 'a'", "state.x + 1"))
    forked = desk(
        "fork", run["id"], "--at", str(run["version_no"]), "--definition", "fixed.yaml", "--json", code=3
    ).json
    assert desk("signal", forked["id"], "s", "--json", code=0).json["result"] == 2
