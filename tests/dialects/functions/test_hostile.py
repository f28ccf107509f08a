"""Durable functions probed from outside: odd values, names, places; what asyncio does, or a clear refusal."""

from __future__ import annotations

import asyncio
import contextlib
import cProfile
import pstats
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest

from treadle import TreadleError, flow
from treadle.testing import play
from treadle.testing.playing import Play


def whole(made: Play[Any]) -> Play[Any]:
    made.assert_replays()
    return made


@flow.step(name="hostile.echo")
async def echo(given: Any = None) -> Any:
    return given


@flow.step(name="hostile.undo")
async def undo(given: Any = None) -> Any:
    return given


@flow.step(name="expired")
async def expired() -> int:
    return 1


# --- names ---


def test_whatever_is_called_expired_is_not_the_time_limit_of_the_run() -> None:
    @flow.workflow(name="hostile.names", timeout="1h")
    async def names(ctx: flow.Context) -> list[Any]:
        found = [await expired(), await ctx.signal("expired"), await ctx.ask("expired")]
        return [*found, await ctx.run("expired")]

    run = play(names, steps={"expired": 5}).signal("expired", 2).answer("expired", 3)
    assert whole(run).result == [5, 2, 3, 5]


@pytest.mark.parametrize(
    "asks",
    [
        lambda ctx: ctx.signal(5),
        lambda ctx: ctx.ask(None),
        lambda ctx: ctx.ask("x", roles="boss"),
        lambda ctx: ctx.run(5),
        lambda ctx: ctx.run(""),
        lambda ctx: ctx.start(None),
        lambda ctx: ctx.send("r", 5),
        lambda ctx: ctx.patched(5),
    ],
)
def test_what_is_no_name_is_refused_at_the_authors_line(asks: Callable[[flow.Context], Any]) -> None:
    @flow.workflow(name="hostile.unnamed")
    async def unnamed(ctx: flow.Context) -> None:
        asked = asks(ctx)
        if asyncio.iscoroutine(asked):
            await asked

    run = whole(play(unnamed))
    assert run.error is not None
    assert run.error["message"].startswith("TypeError: ")
    assert run.error["where"].startswith("test_hostile.py:")
    assert run.waiting == []


@pytest.mark.parametrize("wrong", ["9" * 5000 + "s", 10**400, "", "-1s", float("inf"), True, b"1s"])
def test_what_is_no_duration_is_refused_as_one(wrong: Any) -> None:
    with pytest.raises(TreadleError, match="duration"):
        flow.step(name="hostile.duration", timeout=wrong)(lambda: None)


# --- values ---


def test_a_result_that_its_annotation_does_not_promise_fails_the_run() -> None:
    @flow.workflow(name="hostile.promise")
    async def promise(ctx: flow.Context) -> int:
        return "seven"  # type: ignore[return-value] # that is the point

    run = whole(play(promise))
    assert run.error is not None
    assert (run.status, run.error["code"]) == ("failed", "VALUE_REFUSED")
    assert "what hostile.promise returned: int expected" in run.error["message"]


def test_a_play_calls_steps_with_large_arguments_as_a_worker_does() -> None:
    @flow.workflow(name="hostile.large")
    async def large(ctx: flow.Context) -> int:
        return len(await echo({"deep": ["x" * 100_000]}))

    run = whole(play(large))
    assert run.result == 1
    assert run.calls(echo) == [{"given": {"deep": ["x" * 100_000]}}]


# --- continue_as in odd places ---


async def within_a_task(call: Callable[[], Any]) -> None:
    async def inner() -> None:
        call()

    await asyncio.create_task(inner())


async def within_a_group(call: Callable[[], Any]) -> None:
    async def inner() -> None:
        call()

    async with asyncio.TaskGroup() as group:
        group.create_task(inner())
        group.create_task(asyncio.sleep(1000))


async def within_a_gather(call: Callable[[], Any]) -> None:
    async def inner() -> None:
        call()

    await flow.gather(asyncio.sleep(1000), inner())


async def within_a_finally(call: Callable[[], Any]) -> None:
    try:
        raise ValueError("forgotten")
    finally:
        call()


@pytest.mark.parametrize("where", [within_a_task, within_a_group, within_a_gather, within_a_finally])
def test_a_function_continues_as_itself_from_wherever_it_says_so(
    where: Callable[[Callable[[], Any]], Awaitable[None]],
) -> None:
    @flow.workflow(name="hostile.again")
    async def again(ctx: flow.Context, n: int) -> int:
        if n:
            await where(lambda: ctx.continue_as(n - 1))
        return ctx.generation

    run = whole(play(again, 2))
    assert (run.result, run.waiting) == (2, [])


def test_a_function_that_is_cancelled_does_not_begin_anew() -> None:
    @flow.workflow(name="hostile.defiant")
    async def defiant(ctx: flow.Context, n: int) -> None:
        ctx.compensate(undo, n)
        try:
            await ctx.signal("never")
        except flow.Cancelled:
            ctx.continue_as(n + 1)

    run = whole(play(defiant, 1).crash().cancel("enough"))
    assert run.error is not None
    assert (run.status, run.error["message"]) == ("cancelled", "enough")
    assert run.calls(undo) == [{"given": 1}]


# --- asyncio ---


def test_as_completed_of_coroutines_is_refused_for_its_order_is_that_of_addresses() -> None:
    begun: list[Any] = []

    @flow.workflow(name="hostile.unordered")
    async def unordered(ctx: flow.Context) -> list[Any]:
        begun[:] = [echo(1), echo(2)]
        return [await done for done in asyncio.as_completed(begun)]

    with pytest.raises(TreadleError) as caught:
        play(unordered)
    for call in begun:
        call.close()
    assert caught.value.code == "NOT_DETERMINISTIC"
    assert "asyncio.create_task" in caught.value.message
    assert str(caught.value.where).startswith("test_hostile.py:")


def test_as_completed_of_tasks_gives_them_as_they_come() -> None:
    @flow.workflow(name="hostile.ordered")
    async def ordered(ctx: flow.Context) -> list[Any]:
        async def after(seconds: int) -> int:
            await ctx.sleep(seconds)
            return seconds

        tasks = [asyncio.create_task(after(seconds)) for seconds in (3, 1, 2)]
        return [await done for done in asyncio.as_completed(tasks)]

    assert whole(play(ordered).crash().advance("5s")).result == [1, 2, 3]


@pytest.mark.parametrize("raised", [SystemExit(2), KeyboardInterrupt(), ValueError("x")], ids=repr)
def test_a_task_that_raises_hands_it_to_who_awaits_it(raised: BaseException) -> None:
    @flow.workflow(name="hostile.tasks")
    async def tasks(ctx: flow.Context) -> str:
        async def bad() -> None:
            await ctx.sleep(1)
            raise raised

        try:
            await asyncio.create_task(bad())
        except BaseException as error:
            return type(error).__name__
        return "?"

    assert whole(play(tasks).crash().advance("1s")).result == type(raised).__name__


def test_timeouts_within_timeouts_end_as_asyncio_ends_them() -> None:
    @flow.workflow(name="hostile.timeouts")
    async def timeouts(ctx: flow.Context) -> list[str]:
        seen = []
        for outer, inner in ((10, 5), (5, 10)):
            try:
                async with asyncio.timeout(outer):
                    try:
                        async with asyncio.timeout(inner):
                            await ctx.signal("never")
                    except TimeoutError:
                        seen.append("inner")
                        await ctx.signal("never either")
            except TimeoutError:
                seen.append("outer")
        return seen

    run = play(timeouts)
    for _ in range(3):
        run.crash().advance("5s")
    assert whole(run).result == ["inner", "outer", "outer"]


def test_a_cancel_that_comes_during_the_clean_up_of_a_gather_is_raised_then() -> None:
    @flow.workflow(name="hostile.late")
    async def late(ctx: flow.Context) -> str:
        async def careful() -> None:
            try:
                await ctx.sleep(100)
            finally:
                await ctx.sleep(10)

        try:
            await flow.gather(careful(), echo(1))
        except BaseException as error:
            return type(error).__name__
        return "?"

    run = play(late, steps={echo: OSError("no")}).crash().cancel()
    assert run.status == "running"
    assert whole(run.advance("10s")).result == "CancelledError"


# --- contexts that are handed on ---


def test_the_context_of_another_run_is_refused_and_changes_nothing_there() -> None:
    kept: list[flow.Context] = []

    @flow.workflow(name="hostile.owner")
    async def owner(ctx: flow.Context) -> str:
        kept.append(ctx)
        await ctx.signal("go")
        return "mine"

    @flow.workflow(name="hostile.thief")
    async def thief(ctx: flow.Context) -> list[str]:
        seen = []
        for steal in (
            lambda other: other.sleep("1h"),
            lambda other: other.event("stolen"),
            lambda other: other.compensate(undo, 1),
            lambda other: other.patched("x"),
        ):
            try:
                asked = steal(kept[0])
                if asyncio.iscoroutine(asked):
                    await asked
            except RuntimeError as error:
                seen.append(str(error))
        return seen

    mine = play(owner, id="mine")
    told = whole(play(thief, id="other")).result
    assert len(told) == 4
    assert all("the context of mine" in said for said in told)
    with pytest.raises(RuntimeError, match="the context of mine"):
        asyncio.run(kept[0].sleep("1h"))
    kept.clear()
    assert whole(mine.signal("go")).result == "mine"
    assert "stolen" not in [event["type"] for event in mine.events]


def test_a_function_can_be_profiled() -> None:
    @flow.workflow(name="hostile.profiled")
    async def profiled(ctx: flow.Context) -> int:
        return await echo(1) + await echo(2)

    profiler = cProfile.Profile()
    run = profiler.runcall(lambda: play(profiled, steps={"hostile.echo": 5}))
    assert whole(run).result == 10
    functions = {function for _, _, function in pstats.Stats(profiler).stats}  # type: ignore[attr-defined]  # its table
    assert "assert_replays" not in functions
    assert "play" in functions


@dataclass
class Stamped:
    """The author's own code is asked to read one: it looks at a clock that the source does not name."""

    n: int

    def __post_init__(self) -> None:
        self.at = getattr(__import__("time"), "time")()  # noqa: B009


@flow.step(name="hostile.stamped")
async def stamped(n: int) -> Stamped:
    return Stamped(n)


def test_code_of_the_author_that_reads_a_result_is_watched() -> None:
    @flow.workflow(name="hostile.reads")
    async def reads(ctx: flow.Context) -> int:
        await echo(1)
        return (await stamped(1)).n

    with pytest.raises(TreadleError) as refused:
        play(reads, steps={"hostile.echo": 1, "hostile.stamped": {"n": 1}}).result  # noqa: B018
    assert refused.value.code == "NOT_DETERMINISTIC"


class Timed(asyncio.Future[int]):
    """Looks at the clock whenever somebody looks at it."""

    def exception(self) -> BaseException | None:
        getattr(__import__("time"), "time")()  # noqa: B009
        return super().exception()


class Timely(int):
    def __gt__(self, other: int) -> bool:
        getattr(__import__("time"), "time")()  # noqa: B009
        return int(self) > other


@pytest.mark.parametrize("way", ["branch", "raced", "limit", "inside"])
def test_code_of_the_author_that_a_gather_comes_to_is_watched(way: str) -> None:
    async def looks() -> int:
        await echo(1)
        return int(getattr(__import__("time"), "time")())  # noqa: B009

    @flow.workflow(name="hostile.gathers")
    async def gathers(ctx: flow.Context) -> None:
        if way == "limit":
            await flow.gather(echo(1), echo(2), limit=Timely(1))
            return
        if way == "inside":
            await flow.gather(echo(1), looks())
            return
        branch = Timed(loop=asyncio.get_running_loop())
        branch.set_result(1)
        both = echo(1), branch
        await (flow.gather(*both) if way == "branch" else flow.race(*both))

    with pytest.raises(TreadleError) as refused:
        play(gathers, steps={"hostile.echo": 1}).result  # noqa: B018
    assert refused.value.code == "NOT_DETERMINISTIC"
    assert "time.time()" in refused.value.message


def test_a_step_that_is_called_outside_a_run_leaves_a_profiler_alone() -> None:
    seen = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        seen.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call = echo(1)
        still = sys.getprofile()
    finally:
        sys.setprofile(before)
    assert asyncio.run(call) == 1
    assert still is profile
    assert "__call__" in seen


@pytest.mark.parametrize(
    "count", [lambda asked: asked.cancel(), lambda asked: (asked.cancel(), asked.cancel())]
)
def test_an_await_that_is_cancelled_is_taken_back_once(count: Callable[[asyncio.Task[Any]], Any]) -> None:
    @flow.workflow(name="hostile.takes.back")
    async def takes_back(ctx: flow.Context) -> str:
        asked = asyncio.create_task(ctx.signal("never"))
        await echo(1)
        count(asked)
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        return str(await echo("done"))

    run = whole(play(takes_back, steps={"hostile.echo": "done"}))
    assert run.result == "done"
    assert [event["type"] for event in run.events].count("signal.cancelled") == 1
