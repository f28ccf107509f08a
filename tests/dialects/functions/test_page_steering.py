"""What FLOW.md says, line by line, of steering: cancel, timeout, retry, fork, check, graph, play; and of contexts."""

from __future__ import annotations

import asyncio
import contextvars
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, TreadleError, flow
from treadle.kernel.errors import NotWaiting
from treadle.testing import assert_replays, play
from treadle.testing.playing import Play

# Also on PostgreSQL, with a worker behind NATS.
pytestmark = pytest.mark.house


def whole(made: Play[Any]) -> Play[Any]:
    made.assert_replays()
    return made


@flow.step(name="steering.echo")
async def echo(given: Any) -> Any:
    return given


@flow.step(name="steering.undo")
async def undo(given: Any) -> None:
    return None


# --- cancelling ---


def test_cancelling_raises_at_every_open_await() -> None:
    @flow.workflow(name="steering.every")
    async def every(ctx: flow.Context) -> list[str]:
        seen: list[str] = []

        async def waits(name: str) -> None:
            try:
                await ctx.signal(name)
            except flow.Cancelled:
                seen.append(name)
                raise

        asyncio.create_task(waits("alone"))  # noqa: RUF006 # nobody waits for it
        try:
            await flow.gather(waits("one"), waits("two"))
        except flow.Cancelled:
            await ctx.sleep("1s")
        return sorted(seen)

    run = play(every).cancel().advance("1s")
    assert run.waiting == []
    assert (whole(run).status, run.result) == ("completed", ["alone", "one", "two"])


@pytest.mark.parametrize(
    ("how", "status"), [("return", "completed"), ("pass on", "cancelled"), ("raise", "failed")]
)
def test_how_a_cancelled_function_ends_decides(how: str, status: str) -> None:
    @flow.workflow(name="steering.ends")
    async def ends(ctx: flow.Context, how: str) -> str:
        try:
            await ctx.signal("never")
        except flow.Cancelled:
            if how == "return":
                return "anyway"
            if how == "raise":
                raise ValueError("no") from None
            raise
        return "?"

    assert whole(play(ends, how).crash().cancel("enough")).status == status


def test_a_function_that_raises_cancelled_by_itself_has_failed() -> None:
    @flow.workflow(name="steering.itself")
    async def itself(ctx: flow.Context) -> None:
        raise flow.Cancelled

    assert whole(play(itself)).status == "failed"


def test_a_second_cancel_ends_at_once_also_during_compensation() -> None:
    @flow.workflow(name="steering.second")
    async def second(ctx: flow.Context) -> None:
        ctx.compensate(undo, 1)
        await ctx.signal("never")

    run = play(second, by_hand=True).cancel("first")
    assert run.waiting == ["steering.undo"]
    assert (whole(run.crash().cancel("second")).status, run.waiting) == ("cancelled", [])


def test_the_clean_up_of_a_run_past_its_timeout_may_await_and_it_has_failed_whatever_it_returns() -> None:
    @flow.workflow(name="steering.past", timeout="1h")
    async def past(ctx: flow.Context) -> str:
        try:
            await ctx.signal("never")
        except flow.Cancelled:
            await ctx.sleep("5m")
            return "made it"
        return "?"

    run = play(past).advance("1h")
    assert run.status == "running"
    run.crash().advance("5m")
    assert whole(run).status == "failed"
    assert run.error is not None
    assert (run.error["class"], run.error["code"]) == ("timeout", "TIMEOUT")


# --- retry and fork ---


@flow.workflow(name="steering.three")
async def three(ctx: flow.Context) -> list[Any]:
    first = await echo("a")
    both = await flow.gather(echo("b"), ctx.signal("go"))
    return [first, *both, await undo("c")]


def test_a_retry_opens_anew_what_was_open_when_it_failed() -> None:
    run = play(three, steps={echo: ["a", OSError("no"), "b"]})
    assert (run.status, run.waiting) == ("failed", [])
    run.crash().retry()
    assert run.waiting == ["go"]
    assert [call["given"] for call in run.calls(echo)] == ["a", "b", "b"]
    assert whole(run.signal("go", 1)).result == ["a", "b", 1, None]


def test_a_retry_from_a_step_begins_before_its_last_opening() -> None:
    run = play(three, steps={undo: [OSError("no"), None]}).signal("go", 1)
    assert run.status == "failed"
    run.retry(**{"from": "steering.undo"})
    assert whole(run).result == ["a", "b", 1, None]
    assert len(run.calls(echo)) == 2
    with pytest.raises(TreadleError):
        run.retry()


def test_a_retry_of_what_the_run_never_came_to_is_refused() -> None:
    run = play(three, steps={echo: OSError("no")})
    with pytest.raises(NotWaiting, match=r"has not come to 'steering\.undo'"):
        run.retry(**{"from": "steering.undo"})
    assert whole(run).status == "failed"


def test_a_run_that_failed_at_no_step_has_nothing_to_skip() -> None:
    @flow.workflow(name="steering.nothing")
    async def nothing(ctx: flow.Context) -> None:
        raise ValueError("at once")

    run = play(nothing)
    with pytest.raises(TreadleError):
        run.retry(skip=True, value=1)
    assert whole(run.retry()).status == "failed"


@flow.workflow(name="steering.child")
async def child(ctx: flow.Context) -> int:
    return 1


@flow.workflow(name="steering.careful", timeout="1h")
async def careful(ctx: flow.Context) -> list[Any]:
    await echo("a")
    try:
        return [await echo("b"), await ctx.run(child)]
    finally:
        await undo("b")


def test_a_retry_goes_back_before_the_step_that_failed_also_where_a_clean_up_came_after_it() -> None:
    run = play(careful, steps={echo: ["a", OSError("no"), "b"], child: 5})
    assert run.status == "failed"
    assert len(run.calls(undo)) == 1
    assert whole(run.retry()).result == ["b", 5]
    assert [call["given"] for call in run.calls(echo)] == ["a", "b", "b"]
    run = play(careful, steps={echo: ["a", OSError("no")], child: 5}).retry(skip=True, value="mine")
    assert whole(run).result == ["mine", 5]


def test_the_child_that_failed_is_skipped_with_its_result() -> None:
    run = play(careful, steps={child: OSError("no")}).crash().retry(skip=True, value=7)
    assert whole(run).result == ["b", 7]


def test_a_run_that_was_past_its_timeout_is_retried_with_its_time_anew() -> None:
    run = play(careful, steps={child: []}).advance("1h")
    assert (run.error or {})["class"] == "timeout"
    with pytest.raises(NotWaiting, match="nothing to skip"):
        run.retry(skip=True, value=1)
    run.advance("5h").retry()
    assert run.waiting == ["expired", "steering.child@1"]
    run.crash().advance("59m")
    assert run.status == "waiting"
    run.driver.ok(run.open[0], {"run": "c", "result": 5})
    run.perform(run.open[0])
    assert whole(run).result == ["b", 5]


def test_a_compensated_run_is_not_retried() -> None:
    @flow.workflow(name="steering.compensated")
    async def compensated(ctx: flow.Context) -> None:
        ctx.compensate(undo, 1)
        await echo(1)

    run = play(compensated, steps={echo: OSError("no")})
    for how in ({}, {"skip": True, "value": 1}, {"from": "steering.echo"}):
        with pytest.raises(TreadleError, match="has undone its steps"):
            run.retry(**how)
    assert whole(run).status == "failed"


def test_many_that_are_cancelled_at_once_fit_into_records() -> None:
    @flow.workflow(name="steering.wide")
    async def wide(ctx: flow.Context, count: int) -> str:
        try:
            await flow.gather(*(echo(n) for n in range(count)))
        except flow.StepFailed:
            return "one failed"
        return "?"

    failed = play(wide, 300, by_hand=True)
    failed.driver.error(failed.open[7], "no")
    assert whole(failed).result == "one failed"
    cancelled = play(wide, 300, by_hand=True).crash().cancel()
    assert whole(cancelled).status == "cancelled"
    for run in (failed, cancelled):
        ends = [event["type"] for event in run.events if event["type"] in ("step.cancelled", "step.failed")]
        assert len(ends) == 300


def test_many_that_were_open_are_opened_anew_by_a_retry() -> None:
    @flow.workflow(name="steering.many")
    async def many(ctx: flow.Context) -> int:
        return sum(await flow.gather(*(echo(n) for n in range(150))))

    run = play(many, by_hand=True)
    run.driver.error(run.open[140], "no")
    assert run.status == "failed"
    run.crash().retry()
    assert len(run.open) == 150
    for intent in run.crash().open:
        run.perform(intent)
    assert whole(run).result == sum(range(150))


def test_however_many_events_a_function_tells_all_are_told_in_order() -> None:
    @flow.workflow(name="steering.telling")
    async def telling(ctx: flow.Context) -> str:
        for n in range(300):
            ctx.event("n", n=n)
        await ctx.signal("go")
        for n in range(300, 900):
            ctx.event("n", n=n, text="x" * 5000)
        try:
            ctx.event("large", text="x" * 70_000)
        except TreadleError as error:
            return error.code
        return "?"

    run = play(telling).crash().signal("go")
    assert whole(run).result == "VALUE_REFUSED"
    assert [event["n"] for event in run.events if event["type"] == "n"] == list(range(900))


async def test_a_fork_at_any_record_goes_its_own_way(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(three, id="r")
        await engine.signal("r", "go", "mine")
        result = await run.result(60)
        last = (await run.show())["version_no"]
        for at in range(1, last + 1):
            fork = await engine.fork("r", at=at, new_id=f"f{at}")
            status = (await fork.settled(timeout=60))["status"]
            if status == "waiting":
                await engine.signal(f"f{at}", "go", "mine")
            assert await fork.result(60) == result
        await assert_replays(engine)


# --- pictures ---


async def test_a_picture_of_a_run_is_what_happened_and_of_a_source_what_it_names(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(three, id="r")
        await run.settled(timeout=60)
        drawn = [node.label for node in (await engine.graph("r")).nodes]
        assert drawn == ["steering.three", "step steering.echo", "step steering.echo", "signal go"]
        named = [node.label for node in (await engine.graph(three)).nodes]
        assert named == ["steering.three", "steering.echo", "steering.echo", "steering.undo"]


# --- contexts ---

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


def test_each_run_has_contextvars_of_its_own_and_they_are_the_same_after_a_crash() -> None:
    @flow.workflow(name="steering.vars")
    async def vars_of(ctx: flow.Context, name: str) -> list[str]:
        before = NAME.get()
        NAME.set(name)

        async def inner() -> str:
            NAME.set("inner")
            await ctx.sleep("1s")
            return NAME.get()

        task = asyncio.create_task(inner())
        await ctx.signal("go")
        return [before, NAME.get(), await task]

    NAME.set("outside")
    one, other = play(vars_of, "one"), play(vars_of, "other")
    for run in (one.crash(), other):
        run.advance("1s").signal("go")
    assert whole(one).result == ["nobody", "one", "inner"]
    assert whole(other).result == ["nobody", "other", "inner"]
    assert NAME.get() == "outside"


def test_a_function_that_is_called_by_another_is_within_the_same_run() -> None:
    @flow.workflow(name="steering.inner")
    async def inner(ctx: flow.Context, n: int) -> int:
        return await echo(n) + 1

    @flow.workflow(name="steering.outer")
    async def outer(ctx: flow.Context) -> list[int]:
        return [await inner(ctx, 1), await ctx.run(inner, 5)]

    run = play(outer, by_hand=True)
    assert [(i.kind, i.name) for i in run.open] == [("step", "steering.echo")]
    run.perform(run.open[0])
    assert [(i.kind, i.name) for i in run.open] == [("child", "steering.inner@1")]


# --- play ---


def test_a_play_scripts_steps_by_their_calls_and_the_last_is_repeated() -> None:
    @flow.workflow(name="steering.scripted")
    async def scripted(ctx: flow.Context) -> list[Any]:
        return [await echo(n) for n in range(4)]

    assert whole(play(scripted, steps={echo: [7, 8]})).result == [7, 8, 8, 8]
    assert whole(play(scripted, steps={"steering.echo": "one text"})).result == ["one text"] * 4
    assert whole(play(scripted)).result == [0, 1, 2, 3], "others are really called"


def test_a_play_says_what_it_waits_for_when_asked_for_something_else() -> None:
    @flow.workflow(name="steering.waits")
    async def waits(ctx: flow.Context) -> None:
        await ctx.ask("review")

    run = play(waits)
    with pytest.raises(NotWaiting, match=r"waits for \['review'\]"):
        run.answer("other")
    with pytest.raises(TreadleError):
        _ = run.result
    assert whole(run.answer("review")).status == "completed"
