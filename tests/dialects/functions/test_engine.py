"""Durable functions on a real engine: what steps may know and do, other runs, large values, types, lists."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, RunFailed, TreadleError, flow
from treadle.testing import assert_replays

from . import apart
from .waiting import until

# Also on PostgreSQL, with a worker behind NATS.
pytestmark = pytest.mark.house

SEEN: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    SEEN.clear()


@flow.step(name="engine.knows", secrets=["KEY"], retry={"attempts": 2})
async def knows(n: int) -> str:
    now = flow.current()
    SEEN.append((now.run, now.step, now.attempt, now.idempotency_key, now.secrets["KEY"], now.saved))
    await now.progress("knowing", share=0.5)
    await now.save({"n": n})
    assert now.saved == {"n": n}
    if now.attempt == 1:
        raise OSError(f"no luck with {now.secrets['KEY']}")
    return "known"


@flow.step(name="engine.spoils", retry={"attempts": 2})
def spoils(items: list[int], **more: list[int]) -> list[int]:
    SEEN.append(([*items], {name: [*given] for name, given in more.items()}))
    items.clear()
    more["others"].append(9)
    if flow.current().attempt == 1:
        raise OSError("no luck")
    return items


@flow.workflow(name="engine.spoiling")
async def spoiling(ctx: flow.Context) -> list[int]:
    return await spoils([1, 2], others=[3])


async def test_what_a_step_does_to_its_arguments_the_next_attempt_does_not_see(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(spoiling)
        assert await run.result(30) == []
        assert SEEN == [([1, 2], {"others": [3]})] * 2
        await assert_replays(engine)


@flow.workflow(name="engine.knowing")
async def knowing(ctx: flow.Context) -> str:
    return await knows(1)


async def test_a_step_knows_its_call_and_secrets_stay_out_of_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_KEY", "s3cr3t-value")
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(knowing, id="r")
        assert await run.result(30) == "known"
        first, second = SEEN
        assert first[:3] == ("r", "engine.knows", 1)
        assert second[:3] == ("r", "engine.knows", 2)
        assert first[3] == second[3], "one key for all attempts"
        assert first[4] == "s3cr3t-value"
        journal = await run.journal()
        assert "s3cr3t-value" not in repr(journal)
        assert "no luck" in repr(journal)
        assert "knowing" in [event["type"] async for event in run.events()]
        await assert_replays(engine)


def test_outside_of_a_step_there_is_no_current_call() -> None:
    with pytest.raises(TreadleError) as caught:
        flow.current()
    assert caught.value.code == "UNSUPPORTED"


@flow.step(name="engine.once", idempotent=False)
async def once() -> str:
    SEEN.append("once")
    await asyncio.Event().wait()
    return "never"


@flow.step(name="engine.saves")
async def saves() -> Any:
    now = flow.current()
    SEEN.append(now.saved)
    if now.saved is None:
        await now.save([1, 2])
        await asyncio.Event().wait()
    return now.saved


@flow.workflow(name="engine.doubtful")
async def doubtful(ctx: flow.Context) -> str:
    try:
        return await once.options(retry={"attempts": 5})()
    except flow.StepFailed as error:
        return f"{error.code} {error.attempts} {error.cls}"


@flow.workflow(name="engine.saving")
async def saving(ctx: flow.Context) -> Any:
    return await saves()


async def test_a_step_that_is_not_idempotent_is_in_doubt_after_a_crash(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    async with Engine(store) as engine:
        await engine.start(doubtful, id="r")
        await until(lambda: SEEN == ["once"])
    async with Engine(store) as engine:
        engine.deploy(doubtful)
        assert await (await engine.run("r")).result(30) == "IN_DOUBT 1 transport"
        assert SEEN == ["once"], "at most once"
        await assert_replays(engine)


async def test_what_a_step_saved_is_there_after_a_crash(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    async with Engine(store) as engine:
        await engine.start(saving, id="r")
        await until(lambda: SEEN == [None])

        async def checkpointed() -> bool:
            return bool(await engine.read(lambda reads: list(reads.checkpoints(reads.runs()[0].no))))

        await until(checkpointed)
    async with Engine(store) as engine:
        engine.deploy(saving)
        assert await (await engine.run("r")).result(30) == [1, 2]
        assert SEEN == [None, [1, 2]]


async def test_steps_run_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_SECRET_KEY", "k3y")
    mark = tmp_path / "hanging"
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(apart.everything, str(mark), id="r")
        where, raised, alive, late, saved = await run.result(60)
        assert where[0] != os.getpid()
        assert where[1].startswith("hi 1 k3y r/")
        assert where[2] == b"\x00\xff"
        assert raised == ["LookupError", "transport", "LookupError: not there"]
        assert (alive, late, saved) == ("alive", "timeout", 7)
        assert "half" in [event["type"] async for event in run.events()]
        pid = int(mark.read_text())
        await until(lambda: not _lives(pid))
        await assert_replays(engine)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_step_for_a_process_stands_at_the_top_of_its_module() -> None:
    def inner() -> None: ...

    with pytest.raises(TreadleError, match="at the top of its module"):
        flow.step(process=True)(inner)


# --- threads ---


@flow.step(name="engine.thread")
def thread() -> int:
    return threading.get_ident()


@flow.step(name="engine.calls")
async def calls() -> bool:
    return await thread() == threading.get_ident()


@flow.workflow(name="engine.threads")
async def threads(ctx: flow.Context) -> list[Any]:
    return [await thread(), await calls()]


async def test_a_plain_function_runs_in_a_thread_and_a_step_in_a_step_is_a_plain_call() -> None:
    async with Engine("memory:") as engine:
        ident, within = await (await engine.start(threads)).result(30)
        assert ident != threading.get_ident()
        assert within is True
        assert await thread() == threading.get_ident(), "outside of a run, a plain call"


# --- large values ---


@flow.step(name="engine.size")
def size(text: str, more: list[str]) -> str:
    return text + str(len(more))


@flow.workflow(name="engine.echo")
async def echo(ctx: flow.Context, text: str) -> str:
    return text


@flow.workflow(name="engine.large")
async def large(ctx: flow.Context, n: int) -> list[str]:
    ctx.state["text"] = "s" * n
    ctx.state["small"] = 1
    first = await size("a" * n, ["x" * 1000] * 100)
    said = await ctx.signal("data", type=str)
    second = await ctx.run(echo, "c" * n)
    ctx.state["small"] = len(ctx.state["text"])
    if ctx.generation == 0:
        ctx.continue_as(n)
    return [first, said, second, ctx.state["text"]]


async def test_arguments_results_and_state_above_64_kib_go_by_reference(tmp_path: Path) -> None:
    n = 300_000
    async with Engine(f"sqlite:///{tmp_path}/t.db", hot_runs=1) as engine:
        run = await engine.start(large, n, id="r")
        for round in range(2):
            await engine.start(echo, "other", id=f"other{round}")  # evicts the run
            await engine.signal("r", "data", "b" * n)
        result = await run.result(60)
        assert result == ["a" * n + "100", "b" * n, "c" * n, "s" * n]
        assert (await run.state())["text"] == "s" * n
        assert (await run.state())["small"] == n
        assert len(repr(await run.journal())) < 100_000
        rows = await engine.list(workflow="engine.large", state={"text": "s" * n})
        assert [row["id"] for row in rows] == ["r"]
        await assert_replays(engine)


@flow.workflow(name="engine.wide")
async def wide(ctx: flow.Context, n: int) -> int:
    return sum(len(text) for text in await flow.gather(*(size("a" * 60_000, []) for _ in range(n))))


async def test_many_large_calls_at_once_fit_into_records() -> None:
    async with Engine("memory:") as engine:
        run = await engine.start(wide, 60)
        assert await run.result(60) == 60 * 60_001
        await assert_replays(engine)


# --- lists by state ---


@flow.workflow(name="engine.staged")
async def staged(ctx: flow.Context, stage: str) -> None:
    ctx.state["stage"] = stage
    ctx.state["deep"] = {"n": len(stage)}
    await ctx.signal("go")
    ctx.state["stage"] = "done"


async def test_runs_are_listed_by_their_state(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        for n, stage in enumerate(("paid", "sent", "paid")):
            await engine.start(staged, stage, id=f"r{n}")
        assert [row["id"] for row in await engine.list(state={"stage": "paid"})] == ["r2", "r0"]
        assert [row["id"] for row in await engine.list(state={"stage": "paid"}, limit=1)] == ["r2"]
        assert [row["id"] for row in await engine.list(state={"deep.n": 4, "stage": "sent"})] == ["r1"]
        await engine.signal("r0", "go")
        await (await engine.run("r0")).result(30)
        assert [row["id"] for row in await engine.list(state={"stage": "done"})] == ["r0"]
        assert await engine.list(state={"stage": None}) == []
        with pytest.raises(TreadleError):
            await engine.list(state=["stage"])  # type: ignore[arg-type]


# --- other runs ---


@flow.workflow(name="engine.listener")
async def listener(ctx: flow.Context) -> Any:
    return [await ctx.signal("news"), await ctx.signal("news", timeout="1ms", default="once")]


@flow.workflow(name="engine.sender")
async def sender(ctx: flow.Context, run: str) -> str:
    await ctx.send(run, "news", {"n": 1})
    try:
        await ctx.send("nobody", "news")
    except flow.StepFailed as error:
        return error.code
    return "?"


async def test_a_function_signals_another_run(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        other = await engine.start(listener, id="other")
        assert await (await engine.start(sender, "other")).result(30) == "RUN_NOT_FOUND"
        assert await other.result(30) == [{"n": 1}, "once"]
        await assert_replays(engine)


async def test_what_goes_to_other_runs_is_done_by_an_engine_that_leaves_work_to_others() -> None:
    async with Engine("memory:", work=False) as engine:
        other = await engine.start(listener, id="other")
        assert await (await engine.start(sender, "other")).result(30) == "RUN_NOT_FOUND"
        assert await other.result(30) == [{"n": 1}, "once"]
        await assert_replays(engine)


@flow.workflow(name="engine.parent")
async def parent(ctx: flow.Context) -> list[Any]:
    child = await ctx.start(staged, "apart", reference="c-1")
    try:
        await ctx.run(failing, 3)
    except flow.ChildFailed as error:
        return [child, error.code, error.run, error.cls, "three" in error.message]
    return []


@flow.workflow(name="engine.failing")
async def failing(ctx: flow.Context, n: int) -> None:
    raise ValueError("three")


async def test_a_child_that_fails_says_which_run_it_was(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(parent, id="p")
        started, code, failed, cls, told = await run.result(30)
        assert (code, cls, told) == ("CHILD_FAILED", "user", True)
        assert (await (await engine.run(failed)).show())["status"] == "failed"
        shown = await (await engine.run(started)).show()
        assert (shown["status"], shown["parent"], shown["reference"]) == ("waiting", None, "c-1")
        await assert_replays(engine)


@flow.workflow(name="engine.caller")
async def caller(ctx: flow.Context) -> None:
    await ctx.run(staged, "called")


async def test_a_child_is_cancelled_with_its_parent(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(caller, id="p")
        await run.settled(timeout=30)
        (child,) = (await run.show())["children"]
        await engine.cancel("p", "no more")
        assert (await run.show())["status"] == "cancelled"
        shown = await (await engine.run(child)).settled(timeout=30)
        assert shown["status"] == "cancelled"
        await assert_replays(engine)


# --- people ---


@dataclass
class Decision:
    ok: bool
    note: str = ""


@flow.workflow(name="engine.asking")
async def asking(ctx: flow.Context) -> Decision:
    return await ctx.ask("review", roles=["boss"], payload={"n": 1}, type=Decision)


async def test_a_person_answers_by_the_form_that_the_type_gives(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(asking, id="r")
        await run.settled(timeout=30)
        (task,) = await engine.tasks(role="boss")
        await engine.task_claim(task["id"], user="ann", roles=["boss"])
        with pytest.raises(TreadleError):
            await engine.task_complete(task["id"], {"ok": "perhaps"}, user="ann", roles=["boss"])
        await engine.task_complete(task["id"], {"ok": True, "note": "fine"}, user="ann", roles=["boss"])
        assert await run.result(30) == Decision(True, "fine")
        await assert_replays(engine)


# --- what a run gives ---


async def test_an_input_that_does_not_fit_makes_no_run(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        for wrong in ("three", None, [1]):
            with pytest.raises(TreadleError) as caught:
                await engine.start(failing, wrong)  # type: ignore[call-overload]
            assert caught.value.code == "INPUT_INVALID"
        with pytest.raises(TreadleError) as caught:
            await engine.start(listener, 5)  # type: ignore[call-overload]
        assert caught.value.code == "INPUT_INVALID"
        assert await engine.list() == []


async def test_an_exception_fails_the_run_with_its_line(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(failing, 3)
        with pytest.raises(RunFailed) as caught:
            await run.result(30)
        error = caught.value.error
        assert error is not None
        assert (error["code"], error["class"], error["message"]) == (
            "FUNCTION_RAISED",
            "user",
            "ValueError: three",
        )
        (line,) = error["details"]["traceback"]
        assert error["where"] == f"test_engine.py:{line['line']}"
        assert (line["function"], line["text"]) == ("failing", 'raise ValueError("three")')


async def test_a_fork_repeats_its_past(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(chancy, id="r")
        await run.settled(timeout=30)
        fork = await engine.fork("r", new_id="f")
        await engine.signal("r", "go")
        await engine.signal("f", "go")
        assert await run.result(30) == await fork.result(30)
        await assert_replays(engine)


@flow.workflow(name="engine.chancy")
async def chancy(ctx: flow.Context) -> list[Any]:
    found = [ctx.id, str(ctx.uuid()), ctx.random.random()]
    await ctx.signal("go")
    return [*found, ctx.id, str(ctx.uuid())]
