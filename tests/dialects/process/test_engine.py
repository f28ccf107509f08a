"""Processes through the engine: documents, children, signals by reference, stale and late inputs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import Engine, Run
from treadle.kernel.errors import (
    DefinitionError,
    InputInvalid,
    NotWaiting,
    RunEnded,
    RunFailed,
    TreadleError,
    VersionMismatch,
    VersionTaken,
)
from treadle.kernel.model import Receipt
from treadle.process import payload, process, result, start, state, task
from treadle.testing.clock import VirtualClock

# Also on PostgreSQL, with a worker behind NATS.
pytestmark = pytest.mark.house


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(clock: VirtualClock) -> AsyncIterator[Engine]:
    engine = clock.engine("memory:")
    engine.transport("echo")(lambda payload: payload)

    @engine.transport("broken")
    def broken(payload: Any) -> Any:
        raise ValueError(f"no {payload}")

    async with engine:
        yield engine


def deploy(engine: Engine, tmp_path: Path, steps: str, *, name: str = "wf", version: str = "1.0.0") -> None:
    path = tmp_path / f"{name}-{version}.yaml"
    path.write_text(f"dialect: process\nname: {name}\nversion: {version}\n{steps}\n")
    engine.deploy(str(path))


async def begun(
    engine: Engine, clock: VirtualClock, input: Any = None, *, name: str = "wf", **more: Any
) -> Run:
    run = await engine.start(name, input, **more)
    await clock.settle()
    return run


approve = task("approve", roles=["boss"], timeout="3d", payload={"total": result.quote.total})


@process("Renewal", version="1.2.0", start={"type": "object", "required": ["id"]}, retention="7d")
def renewal(p: Any) -> None:
    p.reference(start.id)
    p.set(state.id, start.id)
    p.call("echo", payload={"total": start.total}, into="quote")
    with p.when(result.quote.total > 1000):
        p.ask(approve)
        with p.when(payload.answer == "reject"):
            p.complete({"renewed": False})
    p.await_signal("documents", into="docs", timeout="7d")
    p.complete({"renewed": True, "docs": result.docs})


async def test_a_whole_process(engine: Engine, clock: VirtualClock) -> None:
    engine.deploy(renewal)
    run = await begun(engine, clock, {"id": "P1", "total": 2000}, name="Renewal")
    shown = await run.show(engine=True)
    assert shown["status"] == "waiting"
    assert (shown["workflow"], shown["version"], shown["dialect"]) == ("Renewal", "1.2.0", "process")
    assert (shown["reference"], shown["state"]) == ("P1", {"id": "P1"})
    assert shown["results"]["quote"] == {"total": 2000}
    (wait,) = shown["waiting_for"]
    assert (wait["kind"], wait["name"], wait["due"]) == ("task", "approve", "2027-01-18T08:00:00.000000Z")
    (inner,) = shown["engine"]["waits"]
    assert inner == {"kind": "task", "token": wait["id"], "path": "steps[3].then[0]", "due": wait["due"]}
    assert shown["engine"]["resume_pointer"]["branch"] == "steps[3].then"
    assert shown["engine"]["timers"][0]["token"] == wait["id"]
    assert set(shown["engine"]) >= {
        "waits",
        "resume_pointer",
        "frames",
        "timers",
        "last_event",
        "children",
        "retain_until",
    }
    (row,) = await engine.tasks(role="boss")
    assert row["id"] == wait["id"]
    assert (row["payload"], row["reference"]) == ({"total": 2000}, "P1")
    await engine.task_complete(row["id"], {"answer": "yes"}, user="ann", roles=["admin"])
    await clock.settle()
    assert await engine.signal_reference("P1", "documents", ["a.pdf"]) == [run.id]
    assert await run.result(timeout=60) == {"renewed": True, "docs": ["a.pdf"]}
    shown = await run.show(engine=True)
    assert shown["retain_until"] == "2027-01-22T08:00:00.000000Z"
    assert shown["engine"]["waits"] == []
    assert await engine.replay(run.id) == {"id": run.id, "equal": True}


async def test_a_bad_start_payload_makes_no_run(engine: Engine) -> None:
    engine.deploy(renewal)
    with pytest.raises(InputInvalid) as caught:
        await engine.start("Renewal", {"total": 5})
    assert caught.value.cls == "user"
    assert await engine.list() == []


async def test_a_call_in_flight_is_a_wait_of_its_own(clock: VirtualClock, tmp_path: Path) -> None:
    async with clock.engine("memory:", work=False) as engine:
        deploy(engine, tmp_path, "steps: [{call: {transport: http, url: 'http://x', into: q, timeout: 30s}}]")
        run = await engine.start("wf")
        shown = await run.show()
        assert shown["status"] == "waiting"
        assert [(w["kind"], w["name"]) for w in shown["waiting_for"]] == [("call", "q")]


async def test_an_error_stalls_and_retry_goes_on(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    deploy(
        engine,
        tmp_path,
        "steps: [{call: {transport: broken, payload: 7, into: r}}, {complete: {$: result.r}}]",
    )
    run = await begun(engine, clock)
    shown = await run.show()
    assert shown["status"] == "stalled"
    assert (shown["error"]["class"], shown["error"]["code"], shown["error"]["where"]) == (
        "transport",
        "PYTHON_ERROR",
        "steps[0]",
    )
    assert shown["error"]["message"] == "ValueError: no 7"
    engine.transport("broken")(lambda payload: payload * 2)
    await engine.retry(run.id)
    assert await run.result(timeout=60) == 14


async def test_an_error_of_an_odd_shape_stalls_as_any_other(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    odd: Any = ["no", "mapping"]

    @engine.transport("odd")
    def raises(payload: Any) -> None:
        raise TreadleError("no", code="ODD", details=odd)

    deploy(engine, tmp_path, "steps: [{call: {transport: odd, payload: 7}}]")
    run = await begun(engine, clock)
    shown = await run.show()
    assert (shown["status"], shown["error"]["message"]) == ("stalled", "no"), shown["error"]


async def test_skip_and_fail(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    deploy(engine, tmp_path, "steps: [{call: {transport: broken, into: r}}, {complete: {$: result.r}}]")
    run = await begun(engine, clock)
    await engine.retry(run.id, skip={"by": "hand"})
    assert await run.result(timeout=60) == {"by": "hand"}
    run = await begun(engine, clock)
    await engine.retry(run.id, fail="given up")
    with pytest.raises(RunFailed) as caught:
        await run.result(timeout=60)
    assert caught.value.error is not None
    assert caught.value.error["message"] == "given up"
    run = await begun(engine, clock)
    with pytest.raises(TreadleError):
        await engine.retry(run.id, wild=1)
    assert (await run.show())["status"] == "stalled"


async def test_an_expression_error_fails_and_a_fork_mends_it(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(
        engine,
        tmp_path,
        "steps: [{call: {transport: echo, payload: 1, into: n}}, {wait: 1h}, {set: {state.x: {$: result.n + result.m}}}]",
    )
    run = await begun(engine, clock)
    await clock.advance(3600)
    shown = await run.show()
    assert shown["status"] == "failed"
    assert shown["error"]["class"] == "expression"
    assert shown["error"]["where"] == "steps[2]"
    assert shown["error"]["details"]["expression"] == "result.n + result.m"
    deploy(
        engine,
        tmp_path,
        "steps: [{call: {transport: echo, payload: 1, into: n}}, {wait: 1h}, {complete: {$: result.n + 1}}]",
        version="1.0.1",
    )
    fork = await engine.fork(run.id, at=2, definition="wf@1.0.1")
    await clock.advance(3600)
    assert await fork.result(timeout=60) == 2


async def test_a_fork_shows_the_input_of_its_original(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(engine, tmp_path, "steps: [{wait: 1h}, {complete: {$: start.n}}]")
    run = await begun(engine, clock, {"n": 5})
    fork = await engine.fork(run.id)
    again = await engine.fork(fork.id)
    for each in (run, fork, again):
        assert (await each.show())["input"] == {"n": 5}
    await clock.advance(3600)
    assert await again.result(timeout=60) == 5


async def test_a_fork_to_a_definition_that_does_not_fit_is_refused(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(engine, tmp_path, "steps: [{if: {$: 'true'}, then: [{wait: 1h}]}]")
    run = await begun(engine, clock)
    deploy(engine, tmp_path, "steps: [{set: {state.a: 1}}, {wait: 1h}]", version="2.0.0")
    with pytest.raises(TreadleError, match=r"steps\[0\]\.then"):
        await engine.fork(run.id, definition="wf@2.0.0")


# --- children -------------------------------------------------------------------------------------


async def test_an_inline_child_shares_the_parents_commit(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(engine, tmp_path, "steps: [{reference: C}, {complete: {$: start.n + 1}}]", name="sub")
    deploy(
        engine,
        tmp_path,
        "steps: [{reference: P}, {child: {workflow: sub, input: {n: 1}, into: s}}, {complete: {$: result.s}}]",
    )
    run = await begun(engine, clock)
    assert await run.result(timeout=60) == 2
    shown = await run.show()
    (child,) = shown["children"]
    inner = await (await engine.run(child)).show()
    assert (inner["parent"], inner["workflow"], inner["reference"], inner["status"]) == (
        run.id,
        "sub",
        "C",
        "completed",
    )
    assert shown["version_no"] == 2


async def test_a_child_that_waits(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    deploy(engine, tmp_path, "steps: [{await: go}, {complete: {$: payload}}]", name="sub")
    deploy(
        engine,
        tmp_path,
        "steps: [{reference: P}, {child: {workflow: sub, into: s}}, {complete: {$: result.s}}]",
    )
    run = await begun(engine, clock)
    shown = await run.show(engine=True)
    assert [(w["kind"], w["name"]) for w in shown["waiting_for"]] == [("child", "sub")]
    (child,) = shown["engine"]["children"]
    assert child == {
        "id": shown["children"][0],
        "name": "sub",
        "version": "1.0.0",
        "reference": None,
        "into": "s",
    }
    await engine.signal(child["id"], "go", 5)
    assert await run.result(timeout=60) == 5


async def test_the_childs_version_is_chosen_when_it_starts(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    for version in ("1.0.0", "1.10.0", "1.9.0"):
        deploy(engine, tmp_path, f"steps: [{{complete: '{version}'}}]", name="sub", version=version)
    deploy(
        engine,
        tmp_path,
        "steps: [{child: {workflow: sub, into: latest}}, {child: {workflow: sub@1.0.0, into: pinned}}, {complete: {$: result}}]",
    )
    run = await begun(engine, clock)
    assert await run.result(timeout=60) == {"latest": "1.10.0", "pinned": "1.0.0"}


async def test_an_ended_run_cannot_be_retried(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    deploy(engine, tmp_path, "steps: [{fail: no}]")
    run = await begun(engine, clock)
    with pytest.raises(RunEnded, match="fork"):
        await engine.retry(run.id)


async def test_a_cancelled_parent_cancels_its_children(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(engine, tmp_path, "tasks: {t: {roles: [x]}}\nsteps: [{task: t}]", name="sub")
    deploy(engine, tmp_path, "steps: [{child: {workflow: sub}}]")
    run = await begun(engine, clock)
    (child,) = (await run.show())["children"]
    await engine.cancel(run.id, "enough")
    await clock.settle()
    assert (await (await engine.run(child)).show())["status"] == "cancelled"
    assert await engine.tasks() == []
    assert [row["status"] for row in await engine.tasks(status=["cancelled"])] == ["cancelled"]


async def test_a_failed_child_stalls_its_parent(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    deploy(engine, tmp_path, "steps: [{fail: {message: nope, code: NO}}]", name="sub")
    deploy(engine, tmp_path, "steps: [{child: {workflow: sub, into: s}}, {complete: {$: result.s}}]")
    run = await begun(engine, clock)
    shown = await run.show()
    assert shown["status"] == "stalled"
    assert "nope" in shown["error"]["message"]
    await engine.retry(run.id, skip=1)
    assert await run.result(timeout=60) == 1


async def test_continue_with(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    deploy(engine, tmp_path, "steps: [{wait: 1h}, {complete: {$: start.n}}]", name="archive")
    deploy(engine, tmp_path, "steps: [{continue_with: {workflow: archive, input: {n: 3}}}, {complete: done}]")
    run = await begun(engine, clock)
    assert await run.result(timeout=60) == "done"
    (other,) = await engine.list(workflow="archive")
    shown = await (await engine.run(other["id"])).show()
    assert (shown["parent"], shown["continued_from"], shown["status"]) == (None, run.id, "waiting")


async def test_continue_with_an_unknown_workflow_stalls(clock: VirtualClock, tmp_path: Path) -> None:
    async with clock.engine("memory:", validation="warn") as engine:
        path = tmp_path / "wf.yaml"
        path.write_text(
            "dialect: process\nname: wf\nsteps: [{continue_with: {workflow: nobody}}, {complete: done}]"
        )
        (definition,) = engine.load(str(path))
        run = await engine.start(definition.digest)
        await clock.settle()
        shown = await run.show()
        assert (shown["status"], shown["error"]["code"]) == ("stalled", "UNKNOWN_WORKFLOW")
        deploy(engine, tmp_path, "steps: []", name="nobody")
        await engine.retry(run.id)
        assert await run.result(timeout=60) == "done"


# --- definitions ----------------------------------------------------------------------------------


async def test_strict_and_warn(clock: VirtualClock, tmp_path: Path) -> None:
    text = "steps: [{child: {workflow: missing}}]"
    async with clock.engine("memory:") as strict:
        with pytest.raises(DefinitionError, match="missing"):
            deploy(strict, tmp_path, text)
        assert await strict.definitions() == []
    async with clock.engine("memory:", validation="warn") as warn:
        deploy(warn, tmp_path, text)
        (row,) = await warn.definitions()
        assert row["status"] == "unavailable"
        assert "missing" in row["reasons"][0]
        with pytest.raises(TreadleError):
            await warn.start("wf")


async def test_warn_keeps_what_does_not_compile(clock: VirtualClock, tmp_path: Path) -> None:
    """The engine starts; the definition is unavailable and says why; a valid one takes its place."""
    engine = clock.engine("memory:", validation="warn")
    deploy(engine, tmp_path, "steps: [{call: {transport: nowhere}}, {wait: soon}]")
    async with engine:
        (row,) = await engine.definitions()
        assert (row["name"], row["version"], row["status"]) == ("wf", "1.0.0", "unavailable")
        assert [reason.split(":")[0] for reason in row["reasons"]] == [
            "steps[0].call.transport",
            "steps[1].wait",
        ]
        with pytest.raises(TreadleError, match="unavailable"):
            await engine.start("wf")
        deploy(engine, tmp_path, "steps: [{complete: 1}]")
        assert [found["status"] for found in await engine.definitions()] == ["available"]
        assert await (await engine.start("wf")).result(timeout=60) == 1


async def test_a_version_is_taken_once(engine: Engine, tmp_path: Path) -> None:
    deploy(engine, tmp_path, "steps: [{complete: 1}]")
    deploy(engine, tmp_path, "steps: [{complete: 1}]  # the same")
    with pytest.raises(VersionTaken):
        deploy(engine, tmp_path, "steps: [{complete: 2}]")


async def test_an_unknown_transport_is_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError) as caught:
        deploy(engine, tmp_path, "steps: [{call: {transport: nowhere}}]")
    assert caught.value.code == "UNKNOWN_TRANSPORT"

    @process("Own")
    def own(p: Any) -> None:
        p.call("nowhere")

    with pytest.raises(DefinitionError):
        engine.deploy(own)
    engine.transport("nowhere")(lambda payload: "here")
    engine.deploy(own)


async def test_an_unregistered_transport_leaves_the_call_open(tmp_path: Path, clock: VirtualClock) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    first = clock.engine(store)
    first.transport("billing")(lambda payload: 1)
    async with first:
        deploy(
            first,
            tmp_path,
            "steps: [{wait: 1h}, {call: {transport: billing, into: b}}, {complete: {$: result.b}}]",
        )
        run = await first.start("wf", id="r")
    async with clock.engine(store) as second:
        await clock.advance(3600)
        shown = await (await second.run("r")).show()
        assert [w["kind"] for w in shown["waiting_for"]] == ["call"]
        assert "work.unavailable" in [e["type"] for e in await second.events_after("r", 0)]
    third = clock.engine(store)
    third.transport("billing")(lambda payload: 2)
    async with third:
        run = await third.run("r")
        assert await run.result(timeout=60) == 2


# --- stale, duplicate, late, out of order ---------------------------------------------------------


async def unchanged(run: Run, engine: Engine, before: dict[str, Any], *, diagnostics: int) -> None:
    after = await run.show()
    assert after == before
    assert len(await engine.diagnostics(run.id)) == diagnostics


@pytest.mark.parametrize("versioned", [False, True])
async def test_a_second_completion_is_stale(
    engine: Engine, clock: VirtualClock, tmp_path: Path, versioned: bool
) -> None:
    deploy(engine, tmp_path, "tasks: {t: {roles: [x]}}\nsteps: [{task: t}, {await: go}]")
    run = await begun(engine, clock)
    (row,) = await engine.tasks()
    await engine.task_complete(row["id"], 1, user="ann", roles=["admin"])
    before = await run.show()
    more = {"expected_version": before["version_no"]} if versioned else {}
    for number in (1, 2):
        answer = await engine.task_complete(row["id"], 2, user="bob", roles=["admin"], **more)
        assert answer["stale"] is True
        await unchanged(run, engine, before, diagnostics=number)
    stale = [event for event in await engine.events_after(run.id, 0) if event["type"] == "stale"]
    assert len(stale) == 2


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("status", ["ok", "error", "timeout"])
async def test_a_receipt_for_a_settled_wait_of_any_kind_is_stale(
    engine: Engine, clock: VirtualClock, tmp_path: Path, status: Any, versioned: bool
) -> None:
    """Delivered for real, twice, in reverse order: timer, signal, call, child and task."""
    deploy(engine, tmp_path, "steps: [{complete: 1}]", name="sub")
    deploy(
        engine,
        tmp_path,
        "tasks: {t: {roles: [x]}}\nsteps: [{call: {transport: echo, payload: 1, into: c}}, {child: {workflow: sub, into: s}}, {await: go}, {wait: 1h}, {task: t}, {await: end}]",
    )
    run = await begun(engine, clock)
    await engine.signal(run.id, "go")
    await clock.advance(3600)
    (row,) = await engine.tasks()
    await engine.task_complete(row["id"], 1, user="ann", roles=["admin"])
    await clock.settle()
    opened = [intent for record in await run.journal() for intent in record.get("opened", [])]
    settled = [intent for intent in opened if intent["params"]["name"] != "end"]
    assert sorted(intent["kind"] for intent in settled) == ["call", "child", "signal", "task", "timer"]
    before = await run.show()
    more = {"expected_version": before["version_no"]} if versioned else {}
    for number, intent in enumerate([*reversed(settled), *settled], 1):
        late = Receipt(intent=intent["id"], status=status, value={"run": "x", "result": 9})
        assert (await engine.submit(run.id, late, **more))["stale"] is True
        await unchanged(run, engine, before, diagnostics=number)
    stale = [event for event in await engine.events_after(run.id, 0) if event["type"] == "stale"]
    assert len(stale) == 10


async def test_a_wrong_version_is_refused_before_anything_changes(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(engine, tmp_path, "tasks: {t: {roles: [x]}}\nsteps: [{fork: {a: [{task: t}], b: [{await: go}]}}]")
    run = await begun(engine, clock)
    before = await run.show()
    (row,) = await engine.tasks()
    for wrong in (before["version_no"] - 1, before["version_no"] + 1):
        with pytest.raises(VersionMismatch):
            await engine.signal(run.id, "go", expected_version=wrong)
        with pytest.raises(VersionMismatch):
            await engine.task_complete(row["id"], 1, user="ann", roles=["admin"], expected_version=wrong)
    assert await run.show() == before
    await engine.signal(run.id, "go", expected_version=before["version_no"])
    assert (await run.show())["version_no"] == before["version_no"] + 1


async def test_a_timer_that_lost_the_race(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    """The task is done before its deadline: the deadline is gone with it."""
    deploy(
        engine,
        tmp_path,
        "tasks: {t: {roles: [x], timeout: 1h, on_timeout: [{fail: late}]}}\nsteps: [{task: t}, {wait: 2h}, {complete: ok}]",
    )
    run = await begun(engine, clock)
    (row,) = await engine.tasks()
    await engine.task_complete(row["id"], 1, user="ann", roles=["admin"])
    await clock.advance(2 * 3600)
    assert await run.result(timeout=60) == "ok"


async def test_a_completion_that_lost_the_race(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    deploy(
        engine,
        tmp_path,
        "tasks: {t: {roles: [x], timeout: 1h, on_timeout: [{set: {state.late: true}}]}}\nsteps: [{task: t}, {await: go}]",
    )
    run = await begun(engine, clock)
    (row,) = await engine.tasks()
    await clock.advance(3600)
    before = await run.show()
    answer = await engine.task_complete(row["id"], 1, user="ann", roles=["admin"])
    assert answer["stale"] is True
    await unchanged(run, engine, before, diagnostics=1)
    assert (await engine.task(row["id"]))["status"] == "expired"


async def test_signals_duplicate_early_and_late(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    deploy(
        engine,
        tmp_path,
        "steps: [{wait: 1h}, {await: {signal: s, into: a}}, {await: {signal: s, into: b}}, {complete: {$: result}}]",
    )
    run = await begun(engine, clock)
    await engine.signal(run.id, "s", 1, key="k1")
    again = await engine.signal(run.id, "s", 1, key="k1")
    assert again.get("duplicate")
    await engine.signal(run.id, "s", 2, key="k2")
    await clock.advance(3600)
    assert await run.result(timeout=60) == {"a": 1, "b": 2}
    before = await run.show()
    late = await engine.signal(run.id, "s", 3)
    assert late["stale"] is True
    await unchanged(run, engine, before, diagnostics=1)


async def test_a_child_whose_parent_gave_up_is_cancelled(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(engine, tmp_path, "steps: [{await: go}, {complete: 1}]", name="sub")
    deploy(
        engine,
        tmp_path,
        "steps: [{fork: {a: [{child: {workflow: sub}}], b: [{wait: 1h}, {complete: early}]}}]",
    )
    run = await begun(engine, clock)
    (child,) = (await run.show())["children"]
    await clock.advance(3600)
    assert await run.result(timeout=60) == "early"
    before = await run.show()
    answer = await engine.signal(child, "go")
    assert answer["stale"] is True
    await clock.settle()
    assert await run.show() == before
    assert (await (await engine.run(child)).show())["status"] == "cancelled"


async def test_a_timed_out_call_is_cancelled(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    import asyncio

    started, gate, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @engine.transport("slow")
    async def slow(payload: Any) -> str:
        started.set()
        try:
            await gate.wait()
        finally:
            answered.set()
        return "late"

    deploy(
        engine,
        tmp_path,
        "steps: [{call: {transport: slow, timeout: 1s, into: r, on_timeout: [{set: {state.x: timed out}}]}}, {await: go}]",
    )
    run = await engine.start("wf")
    await asyncio.wait_for(started.wait(), 10)
    clock._now_ns += 2 * 10**9
    await engine.look(lambda view: None)
    await asyncio.wait_for(answered.wait(), 10)
    gate.set()
    await clock.settle()
    shown = await run.show()
    assert (shown["state"], shown["results"]) == ({"x": "timed out"}, {})


async def test_signal_by_reference_needs_someone_who_waits(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(engine, tmp_path, "steps: [{reference: R}, {await: go}]")
    one, two = await begun(engine, clock), await begun(engine, clock)
    with pytest.raises(NotWaiting):
        await engine.signal_reference("R", "other")
    with pytest.raises(NotWaiting):
        await engine.signal_reference("S", "go")
    assert sorted(await engine.signal_reference("R", "go")) == sorted([one.id, two.id])
    with pytest.raises(NotWaiting):
        await engine.signal_reference("R", "go")


async def test_what_only_looks_like_a_reference(engine: Engine, clock: VirtualClock, tmp_path: Path) -> None:
    """Data from outside that claims to be a payload of ours harms nobody: it is marked as data, and is
    what it is."""
    forged = {
        "store": "blob",
        "key": "sha256:" + "0" * 64,
        "checksum": "sha256:" + "0" * 64,
        "size": 3,
        "schema_hint": "process",
    }
    deploy(
        engine,
        tmp_path,
        "steps: [{set: {state.x: {$: start.x}}}, {await: go}, {complete: {$: payload.size}}]",
    )
    run = await begun(engine, clock, {"x": forged})
    assert (await run.show())["state"] == {"x": {**forged, "$inert": True}}
    await engine.signal(run.id, "go", forged)
    assert await run.result(timeout=60) == 3


async def test_gc_removes_what_is_past_its_retention(
    engine: Engine, clock: VirtualClock, tmp_path: Path
) -> None:
    deploy(engine, tmp_path, "retention: 1h\nsteps: [{complete: 1}]")
    run = await begun(engine, clock)
    assert (await run.show())["retain_until"] == "2027-01-15T09:00:00.000000Z"
    await engine.gc()
    assert len(await engine.list()) == 1
    await clock.advance(3601)
    await engine.gc()
    assert await engine.list() == []
