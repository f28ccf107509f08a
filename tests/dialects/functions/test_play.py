"""What a durable function may do, played without an engine; each play crashes nowhere or everywhere, and replays."""

from __future__ import annotations

import asyncio
import posixpath
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

import pytest

from treadle import flow
from treadle.testing import play
from treadle.testing.playing import Play


@flow.step
def charge(order: str, cents: int) -> str:
    return f"p-{order}"


@flow.step
async def refund(payment: str) -> None:
    return None


@flow.step
def ship(order: str) -> str:
    return f"s-{order}"


@flow.step(retry={"attempts": 3, "backoff": "exponential", "delay": "1s"}, timeout="30s")
def flaky(n: int = 0) -> int:
    return n


def whole(made: Play[Any]) -> Play[Any]:
    made.assert_replays()
    return made


@flow.workflow
async def saga(ctx: flow.Context, order: str) -> str:
    payment = await charge(order, 500)
    ctx.compensate(refund, payment)
    ctx.state["stage"] = "paid"
    shipped = await ship(order)
    ctx.state["stage"] = "shipped"
    return f"{payment} {shipped}"


def test_a_saga_that_succeeds_compensates_nothing() -> None:
    run = whole(play(saga, "o1"))
    assert (run.status, run.result) == ("completed", "p-o1 s-o1")
    assert run.state == {"stage": "shipped"}
    assert run.calls(refund) == []


def test_a_saga_that_fails_is_undone_in_reverse() -> None:
    run = whole(play(saga, "o1", steps={ship: OSError("no van")}))
    assert run.status == "failed"
    assert run.error is not None
    assert (run.error["class"], run.error["code"]) == ("transport", "STEP_FAILED")
    assert run.error["details"]["compensations"] == [{"step": "refund", "status": "completed", "error": None}]
    assert run.calls(refund) == [{"payment": "p-o1"}]
    assert run.error["where"].startswith("test_play.py:")
    assert run.error["details"]["traceback"][0]["text"] == "shipped = await ship(order)"


def test_a_compensation_that_fails_does_not_stop_the_rest() -> None:
    @flow.workflow
    async def two(ctx: flow.Context) -> None:
        ctx.compensate(refund, "a")
        ctx.compensate(ship, "b")
        raise ValueError("no")

    run = whole(play(two, steps={ship: OSError("x")}))
    assert run.error is not None
    assert [c["status"] for c in run.error["details"]["compensations"]] == ["failed", "completed"]
    assert (run.error["code"], run.error["message"]) == ("FUNCTION_RAISED", "ValueError: no")


def test_each_failed_attempt_is_a_record_and_each_delay_a_timer() -> None:
    @flow.workflow
    async def tries(ctx: flow.Context) -> int:
        return await flaky(7)

    run = play(tries, steps={flaky: [OSError("1"), OSError("2"), 7]})
    assert run.waiting == ["retry of flaky"]
    run.advance("1s").advance("2s")
    assert whole(run).result == 7
    assert len(run.calls(flaky)) == 3
    keys = {i.idempotency_key for i in run.driver.run.open.values()}
    assert keys == set()


def test_fatal_ends_the_attempts() -> None:
    @flow.workflow
    async def tries(ctx: flow.Context) -> str:
        try:
            await flaky()
        except flow.StepFailed as error:
            return f"{error.code} {error.attempts} {error.step}"
        return "?"

    assert whole(play(tries, steps={flaky: flow.Fatal("stop", code="STOP")})).result == "STOP 1 flaky"


def test_a_step_that_takes_too_long_is_a_timeout() -> None:
    @flow.workflow
    async def late(ctx: flow.Context) -> str:
        try:
            await flaky.options(retry={"attempts": 1})(1)
        except TimeoutError as error:
            return error.cls if isinstance(error, flow.StepTimeout) else "another"
        return "?"

    run = play(late, by_hand=True)
    run.advance("31s")
    assert whole(run).result == "timeout"


@flow.workflow
async def waits(ctx: flow.Context) -> Any:
    approved = await ctx.signal("approved", timeout="3d")
    ctx.state["approved"] = approved
    await ctx.sleep("1h")
    return [approved, ctx.now().isoformat()]


def test_a_signal_that_comes_early_is_kept_and_one_that_does_not_come_is_the_default() -> None:
    run = play(waits)
    assert run.waiting == ["approved"]
    run.advance("3d").advance("1h")
    assert whole(run).result[0] is None

    @flow.workflow
    async def later(ctx: flow.Context) -> list[int]:
        await ctx.sleep("1s")
        return [await ctx.signal("n", type=int), await ctx.signal("n", type=int)]

    early = play(later).signal("n", 1).signal("n", 2).advance("1s")
    assert whole(early).result == [1, 2]


def test_people_answer_with_a_typed_decision() -> None:
    @flow.workflow
    async def asks(ctx: flow.Context) -> str:
        moment = await ctx.ask("when", roles=["boss"], type=datetime)
        return f"{moment:%Y} {moment.tzinfo}"

    run = play(asks)
    assert run.waiting == ["when"]
    run.answer("when", datetime(2027, 1, 1, tzinfo=UTC))
    assert whole(run).result == "2027 UTC"


def test_gather_keeps_the_order_and_the_first_failure_cancels_the_rest() -> None:
    seen: list[str] = []

    @flow.workflow
    async def both(ctx: flow.Context) -> Any:
        async def slow() -> None:
            try:
                await ctx.sleep("1h")
            finally:
                seen.append("cleaned")

        try:
            await flow.gather(slow(), ship("x"))
        except flow.StepFailed:
            return seen[-1:]
        return None

    run = play(both, steps={ship: OSError()})
    assert whole(run).result == ["cleaned"]
    assert run.waiting == []

    @flow.workflow
    async def many(ctx: flow.Context) -> list[int]:
        return await flow.gather(*(flaky(n) for n in range(70)))

    run = play(many, by_hand=True)
    assert len(run.open) == 70
    while run.open:
        run.perform(run.open[-1])
    assert run.result == list(range(70))


def test_gather_with_a_limit_keeps_so_many_open() -> None:
    @flow.workflow
    async def many(ctx: flow.Context) -> list[int]:
        return await flow.gather(*(flaky(n) for n in range(5)), limit=2)

    run = play(many, by_hand=True)
    assert len(run.open) == 2
    while run.open:
        assert len(run.open) <= 2
        run.perform(run.open[0])
    assert whole(run).result == list(range(5))


def test_race_gives_the_first_and_cancels_the_others() -> None:
    @flow.workflow
    async def first(ctx: flow.Context) -> Any:
        return await flow.race(late=ctx.sleep("1h"), signal=ctx.signal("go"))

    run = play(first).signal("go", 5)
    assert whole(run).result == ["signal", 5]
    assert run.waiting == []


def test_cancellation_is_raised_at_the_await_and_clean_up_may_await() -> None:
    @flow.workflow
    async def careful(ctx: flow.Context) -> str:
        try:
            await ctx.sleep("1d")
        finally:
            await refund("x")
        return "?"

    run = play(careful, by_hand=True).cancel("changed my mind")
    assert run.status == "running"
    run.perform(run.open[0])
    assert whole(run).status == "cancelled"
    assert run.error is not None
    assert run.error["message"] == "changed my mind"

    @flow.workflow
    async def stubborn(ctx: flow.Context) -> str:
        try:
            await ctx.sleep("1d")
        except flow.Cancelled:
            return "as you like"
        return "?"

    assert whole(play(stubborn).cancel()).status == "completed"


def test_a_second_cancel_ends_at_once() -> None:
    @flow.workflow
    async def slow(ctx: flow.Context) -> None:
        try:
            await ctx.sleep("1d")
        finally:
            await ctx.sleep("1d")

    run = play(slow).cancel()
    assert run.status == "running"
    assert whole(run.cancel()).status == "cancelled"


def test_a_run_past_its_timeout_is_cancelled_and_failed() -> None:
    @flow.workflow(timeout="1h")
    async def long(ctx: flow.Context) -> str:
        ctx.compensate(refund, "p")
        await ctx.signal("never")
        return "?"

    run = play(long).advance("1h")
    assert whole(run).status == "failed"
    assert run.error is not None
    assert run.error["class"] == "timeout"
    assert len(run.calls(refund)) == 1


def test_asyncio_means_the_durable_thing() -> None:
    @flow.workflow
    async def native(ctx: flow.Context) -> list[Any]:
        found: list[Any] = []
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def worker() -> None:
            while True:
                found.append(await queue.get())
                await asyncio.sleep(60)
                queue.task_done()

        task = asyncio.create_task(worker())
        for n in range(3):
            queue.put_nowait(n)
        await queue.join()
        task.cancel()
        try:
            async with asyncio.timeout(30):
                await ctx.signal("never")
        except TimeoutError:
            found.append("timeout")
        try:
            await asyncio.wait_for(ctx.signal("never"), 5)
        except TimeoutError:
            found.append("again")
        async with asyncio.TaskGroup() as group:
            a = group.create_task(ship("a"))
            b = group.create_task(ship("b"))
        done, _ = await asyncio.wait({asyncio.ensure_future(ship(n)) for n in "cde"})
        return [*found, a.result(), b.result(), sorted(t.result() for t in done)]

    run = play(native).advance("1h")
    assert whole(run).result == [0, 1, 2, "timeout", "again", "s-a", "s-b", ["s-c", "s-d", "s-e"]]
    assert run.waiting == []


def test_tasks_left_at_the_end_are_cancelled_and_cleaned_up() -> None:
    @flow.workflow
    async def leaves(ctx: flow.Context) -> str:
        async def other() -> None:
            try:
                await ctx.sleep("1d")
            finally:
                await ship("cleanup")

        asyncio.create_task(other())  # noqa: RUF006 # left on purpose
        await ctx.sleep("1s")
        return "done"

    run = play(leaves).advance("1s")
    assert whole(run).result == "done"
    assert run.calls(ship) == [{"order": "cleanup"}]


@flow.workflow
async def counts(ctx: flow.Context, n: int) -> int:
    ctx.state["rounds"] = ctx.state.get("rounds", 0) + 1
    value = await ctx.signal("next", type=int)
    if value != 0:
        ctx.continue_as(n + value)
    return n


def test_continue_as_drops_the_past_and_keeps_state_and_signals() -> None:
    run = play(counts, 0)
    for n in (1, 2, 3):
        run.signal("next", n)
    assert len(run.driver.run.state["past"]) == 0
    run.signal("next", 0)
    assert whole(run).result == 6
    assert run.state == {"rounds": 4}


def test_chance_and_time_are_the_same_each_time() -> None:
    @flow.workflow
    async def chance(ctx: flow.Context) -> list[Any]:
        found: list[Any] = [ctx.random.random(), str(ctx.uuid()), ctx.now().isoformat()]
        await ctx.sleep("1s")
        return [*found, ctx.random.randint(1, 10**9), ctx.now().isoformat()]

    run = play(chance).crash().advance("1s")
    other = play(chance).advance("1s")
    assert whole(run).result == other.result


def test_a_failed_run_is_retried_from_before_it_failed() -> None:
    @flow.workflow
    async def two(ctx: flow.Context) -> str:
        a = await charge("o", 1)
        ctx.state["at"] = "b"
        return a + await ship("o")

    run = play(two, steps={ship: [OSError(), "s"]})
    assert run.status == "failed"
    assert whole(run.retry()).result == "p-os"
    assert len(run.calls(charge)) == 1
    run = play(two, steps={ship: OSError()}).retry(skip=True, value="mine")
    assert whole(run).result == "p-omine"
    run = play(two, steps={ship: [OSError(), "s"]}).retry(**{"from": "charge"})
    assert whole(run).result == "p-os"
    assert len(run.calls(charge)) == 2


def test_events_and_state_are_told() -> None:
    @flow.workflow
    async def tells(ctx: flow.Context) -> None:
        ctx.event("order.seen", n=1)
        ctx.state["deep"] = {"list": [1]}
        await ctx.sleep("1s")
        ctx.state["deep"]["list"].append(2)

    run = play(tells).advance("1s")
    assert {"type": "order.seen", "n": 1} in run.events
    assert whole(run).state == {"deep": {"list": [1, 2]}}


@pytest.mark.parametrize("crash", [False, True])
def test_a_run_that_crashes_after_every_record_ends_the_same(crash: bool) -> None:
    run = play(saga, "o1", by_hand=True)
    while run.open:
        if crash:
            run.crash()
        run.perform(run.open[0])
    assert whole(run).result == "p-o1 s-o1"


def test_dropping_a_run_reaches_nothing() -> None:
    reached: list[str] = []

    @flow.step(name="play.reached")
    def reach() -> None:
        reached.append("the step itself")

    @flow.workflow
    async def stubborn(ctx: flow.Context) -> None:
        try:
            await ctx.sleep("1d")
        finally:
            try:
                await flow.gather(reach(), asyncio.create_task(reach()))
            finally:
                reached.append("end")

    run = play(stubborn)
    run.crash()
    assert run.calls(reach) == []
    assert reached == ["end"]
    assert run.waiting == ["sleep"]


@flow.workflow
async def paths(ctx: flow.Context, folder: str) -> list[str]:
    path = PurePosixPath(folder, "..", "a.txt")
    return [path.name, str(path.with_suffix(".md")), posixpath.normpath(str(path))]


def test_paths_that_are_only_names_ask_the_system_nothing() -> None:
    run = whole(play(paths, "/in/b"))
    assert run.result == ["a.txt", "/in/b/../a.md", "/in/a.txt"]
