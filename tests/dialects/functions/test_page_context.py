"""What FLOW.md says, line by line, of `ctx`: time, chance, signals, people, other runs, many at once, state."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from treadle import Engine, TreadleError, flow
from treadle.testing import assert_replays, play
from treadle.testing.playing import Play

from .waiting import until


def whole(made: Play[Any]) -> Play[Any]:
    made.assert_replays()
    return made


@flow.step(name="context.echo")
async def echo(given: Any) -> Any:
    return given


@flow.step(name="context.undo")
async def undo(given: Any) -> None:
    return None


# --- the run itself ---


@flow.workflow(name="context.about")
async def about(ctx: flow.Context, n: int) -> list[Any]:
    found = [ctx.id, ctx.generation, ctx.reference, isinstance(ctx.state, dict)]
    if n:
        ctx.continue_as(n - 1)
    return found


@pytest.mark.house
async def test_a_function_knows_its_run(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(about, 2, id="r", reference="order 7")
        assert await run.result(60) == ["r", 2, "order 7", True]
        await assert_replays(engine)


def test_now_is_the_time_of_the_record_in_utc() -> None:
    @flow.workflow(name="context.now")
    async def nows(ctx: flow.Context) -> list[Any]:
        first, again = ctx.now(), ctx.now()
        await ctx.sleep("90s")
        return [first == again, first.tzinfo == UTC, (ctx.now() - first).total_seconds()]

    assert whole(play(nows).advance("90s")).result == [True, True, 90.0]


def test_uuids_are_of_version_4_and_each_is_another() -> None:
    @flow.workflow(name="context.uuid")
    async def uuids(ctx: flow.Context) -> list[UUID]:
        return [ctx.uuid(), ctx.uuid()]

    one, other = whole(play(uuids)).result
    assert one != other
    assert one.version == 4


@pytest.mark.parametrize("seconds", [60, 0, -60])
def test_sleep_takes_a_duration_or_a_time(seconds: int) -> None:
    @flow.workflow(name="context.until")
    async def sleeps(ctx: flow.Context, seconds: int) -> float:
        begun = ctx.now()
        await ctx.sleep(until=begun + timedelta(seconds=seconds))
        return (ctx.now() - begun).total_seconds()

    run = play(sleeps, seconds)
    assert run.waiting == (["sleep"] if seconds > 0 else [])
    assert whole(run.advance("1m")).result == max(seconds, 0)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"duration": "1s", "until": datetime(2030, 1, 1, tzinfo=UTC)}, {"until": datetime(2030, 1, 1)}],
)
def test_sleep_refuses_neither_both_and_a_time_without_a_zone(wrong: dict[str, Any]) -> None:
    @flow.workflow(name="context.wrong")
    async def wrongly(ctx: flow.Context) -> str:
        try:
            await ctx.sleep(**wrong)
        except (TypeError, TreadleError) as error:
            return type(error).__name__
        return "slept"

    assert whole(play(wrongly)).result in ("TypeError", "ValueRefused")


def test_a_timeout_of_the_context_raises_within_it() -> None:
    @flow.workflow(name="context.timeout")
    async def late(ctx: flow.Context) -> str:
        try:
            async with ctx.timeout("5m"):
                await ctx.signal("never")
        except TimeoutError:
            return "late"
        return "?"

    run = play(late).advance("299s")
    assert run.status == "waiting"
    assert whole(run.crash().advance("1s")).result == "late"
    assert run.waiting == []


def test_the_log_speaks_once_and_is_quiet_while_a_past_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    @flow.workflow(name="context.log")
    async def logs(ctx: flow.Context) -> None:
        ctx.log.warning("before")
        await ctx.signal("go")
        ctx.log.warning("after")

    with caplog.at_level(logging.WARNING, "treadle.flow"):
        play(logs, id="r").crash().crash().signal("go")
    assert [record.getMessage() for record in caplog.records] == ["r: before", "r: after"]


# --- signals ---


def test_signals_are_taken_by_their_exact_names_first_come_first_served() -> None:
    @flow.workflow(name="context.names")
    async def names(ctx: flow.Context) -> list[Any]:
        await ctx.sleep("1s")
        return [await ctx.signal("a"), await ctx.signal("a"), await ctx.signal("A"), await ctx.signal("a.b")]

    run = (
        play(names)
        .signal("a.b", "dot")
        .signal("A", "big")
        .signal("a", 1)
        .signal("a", 2)
        .crash()
        .advance("1s")
    )
    assert whole(run).result == [1, 2, "big", "dot"]


def test_two_that_wait_for_one_name_are_served_in_the_order_in_which_they_began() -> None:
    @flow.workflow(name="context.two")
    async def two(ctx: flow.Context) -> list[Any]:
        return await flow.gather(ctx.signal("a"), ctx.signal("a"))

    assert whole(play(two).signal("a", "first").crash().signal("a", "second")).result == ["first", "second"]


def test_a_cancelled_wait_takes_no_signal() -> None:
    @flow.workflow(name="context.takes")
    async def takes(ctx: flow.Context) -> list[Any]:
        try:
            async with asyncio.timeout(60):
                await ctx.signal("a")
        except TimeoutError:
            pass
        first = await flow.race(ctx.signal("a", timeout="1h"), ctx.sleep("30m"))
        return [first, await ctx.signal("a")]

    run = play(takes).advance("1m").advance("30m").crash()
    assert run.waiting == ["a"]
    assert whole(run.signal("a", "kept")).result == [None, "kept"]


def test_signals_iterate_until_none_comes_in_time() -> None:
    @flow.workflow(name="context.iterates")
    async def iterates(ctx: flow.Context) -> list[int]:
        return [item async for item in ctx.signals("item", type=int, timeout="10m")]

    run = (
        play(iterates)
        .signal("item", 1)
        .advance("9m")
        .signal("item", 2)
        .crash()
        .advance("9m")
        .signal("item", 3)
    )
    assert run.status == "waiting"
    assert whole(run.advance("10m")).result == [1, 2, 3]


def test_a_signal_that_does_not_fit_its_type_is_told_to_the_function() -> None:
    @flow.workflow(name="context.unfit")
    async def unfit(ctx: flow.Context) -> list[Any]:
        try:
            await ctx.signal("n", type=int)
        except TreadleError as error:
            return [error.code, await ctx.signal("n", type=int, timeout="1s", default=-1)]
        return []

    assert whole(play(unfit).signal("n", "seven").advance("1s")).result == ["INPUT_INVALID", -1]


# --- people ---


@dataclass
class Answer:
    ok: bool


def test_ask_opens_a_task_with_its_roles_payload_and_form() -> None:
    @flow.workflow(name="context.asks")
    async def asks(ctx: flow.Context) -> list[Any]:
        typed = await ctx.ask("typed", roles=["boss"], payload={"n": 1}, type=Answer)
        schema = {"type": "object", "required": ["n"]}
        formed = await ctx.ask("formed", schema=schema)
        return [typed.ok, formed, await ctx.ask("late", timeout="1d", default="nobody")]

    run = play(asks)
    (task,) = run.driver.run.open.values()
    assert (task.params["roles"], task.params["payload"]) == (["boss"], {"n": 1})
    assert "ok" in str(task.params["schema"])
    run.answer("typed", {"ok": True})
    (task,) = run.driver.run.open.values()
    assert task.params["schema"] == {"type": "object", "required": ["n"]}
    run.answer("formed", {"n": 3}).advance("1d")
    assert whole(run).result == [True, {"n": 3}, "nobody"]


# --- other runs ---


@flow.workflow(name="context.child", version="7")
async def child(ctx: flow.Context, answer: Answer) -> Answer:
    return answer


@flow.workflow(name="context.slow")
async def slow(ctx: flow.Context) -> str:
    try:
        await ctx.signal("never")
    finally:
        await ctx.sleep("1h")
    return "?"


@flow.workflow(name="context.parent")
async def parent(ctx: flow.Context) -> list[Any]:
    typed = await ctx.run(child, Answer(True))
    named = await ctx.run("context.child@7", {"ok": False}, reference="c")
    try:
        await ctx.run(slow, timeout="50ms")
    except flow.StepTimeout as error:
        return [typed, type(typed).__name__, named, error.cls, isinstance(error, TimeoutError)]
    return []


@pytest.mark.house
async def test_a_child_gives_its_typed_result_or_times_out(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(parent)
        assert await run.result(60) == [{"ok": True}, "Answer", {"ok": False}, "timeout", True]
        assert [row["reference"] for row in await engine.list(workflow="context.child")] == ["c", None]
        await assert_replays(engine)


@flow.workflow(name="context.caller")
async def caller(ctx: flow.Context) -> None:
    await ctx.run(slow)


@pytest.mark.house
async def test_a_parent_that_is_cancelled_does_not_wait_for_its_childs_clean_up(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(caller, id="p")
        await run.settled(timeout=60)
        (id,) = (await run.show())["children"]
        await engine.cancel("p")
        assert (await run.show())["status"] == "cancelled"
        below = await engine.run(id)

        async def cleans_up() -> bool:
            return "cancel" in [record["kind"] for record in await below.journal()]

        await until(cleans_up, 60)
        assert (await below.show())["status"] == "running", "its clean-up sleeps"
        await engine.cancel(id)
        assert (await below.show())["status"] == "cancelled"
        await assert_replays(engine)


def test_start_gives_the_id_and_a_child_is_named_with_its_version() -> None:
    @flow.workflow(name="context.starts")
    async def starts(ctx: flow.Context) -> str:
        return await ctx.start(child, Answer(True), reference="x")

    run = play(starts, steps={child: None}, id="p")
    (call,) = run.calls("context.child@7")
    assert call == {"input": {"ok": True}, "reference": "x"}
    assert whole(run).result.startswith("p.")


# --- many at once ---


def test_gather_gives_failures_where_they_are_asked_for_and_nothing_of_nothing() -> None:
    @flow.workflow(name="context.gathers")
    async def gathers(ctx: flow.Context) -> list[Any]:
        found = await flow.gather(echo(1), echo("bad"), echo(3), return_exceptions=True)
        return [found[0], type(found[1]).__name__, found[2], await flow.gather()]

    run = play(gathers, steps={echo: [1, OSError("no"), 3]})
    assert whole(run).result == [1, "StepFailed", 3, []]


@pytest.mark.parametrize("count", [64, 65, 130])
def test_more_than_a_record_holds_is_opened_in_slices_without_waiting(count: int) -> None:
    @flow.workflow(name="context.slices")
    async def slices(ctx: flow.Context, count: int) -> int:
        return sum(await flow.gather(*(echo(n) for n in range(count))))

    run = play(slices, count, by_hand=True)
    assert len(run.open) == count
    run.crash()
    for intent in reversed(run.open):
        run.perform(intent)
    assert whole(run).result == sum(range(count))


def test_race_raises_the_failure_of_the_first() -> None:
    @flow.workflow(name="context.races")
    async def races(ctx: flow.Context) -> str:
        try:
            await flow.race(slow=ctx.sleep("1h"), bad=echo(1))
        except flow.StepFailed as error:
            return error.step
        return "?"

    run = whole(play(races, steps={echo: OSError("no")}))
    assert (run.result, run.waiting) == ("context.echo", [])


def test_a_branch_is_cancelled_once_and_its_clean_up_awaited_before_the_failure_is_raised() -> None:
    @flow.workflow(name="context.cleans")
    async def cleans(ctx: flow.Context) -> list[str]:
        seen = []

        async def careful() -> None:
            try:
                await ctx.sleep("1d")
            except flow.Cancelled:
                await ctx.sleep("1h")
                seen.append("cleaned")
                raise

        try:
            await flow.gather(careful(), echo(1))
        except flow.StepFailed:
            seen.append("raised")
        return seen

    run = play(cleans, steps={echo: OSError("no")})
    assert run.waiting == ["sleep"]
    assert whole(run.crash().advance("1h")).result == ["cleaned", "raised"]


# --- again ---


@flow.workflow(name="context.again")
async def again(ctx: flow.Context, n: int) -> list[Any]:
    ctx.state["seen"] = [*ctx.state.get("seen", []), [ctx.generation, n]]
    if n:
        await ctx.signal("go")
        try:
            ctx.continue_as(n - 1)
        finally:
            ctx.state["left"] = n
    return [ctx.id, ctx.state, await ctx.signal("early")]


@pytest.mark.house
async def test_continue_as_is_the_same_run_with_its_state_and_unread_signals(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        run = await engine.start(again, 2, id="r")
        await engine.signal("r", "early", "kept")
        await engine.signal("r", "go")
        await engine.signal("r", "go")
        seen = [[0, 2], [1, 1], [2, 0]]
        assert await run.result(60) == ["r", {"seen": seen, "left": 1}, "kept"]
        assert [row["id"] for row in await engine.list()] == ["r"]
        await assert_replays(engine)


def test_the_first_answer_of_patched_stays_for_its_run() -> None:
    @flow.workflow(name="context.patched")
    async def patches(ctx: flow.Context) -> list[bool]:
        first = ctx.patched("one")
        await ctx.signal("go")
        return [first, ctx.patched("one"), ctx.patched("two")]

    assert whole(play(patches).crash().signal("go")).result == [True, True, True]


# --- state ---


def test_state_holds_values_nested_changes_count_and_what_is_taken_out_is_gone() -> None:
    @flow.workflow(name="context.state")
    async def states(ctx: flow.Context) -> None:
        ctx.state["deep"] = {"list": [{"n": 1}]}
        ctx.state["gone"] = 1
        await ctx.signal("go")
        ctx.state["deep"]["list"][0]["n"] = 2
        del ctx.state["gone"]

    run = play(states)
    assert run.state == {"deep": {"list": [{"n": 1}]}, "gone": 1}
    assert whole(run.crash().signal("go")).state == {"deep": {"list": [{"n": 2}]}}


@pytest.mark.parametrize("how", ["set", "update", "default", "or", "key"])
def test_what_is_no_value_is_refused_where_it_is_put_into_the_state(how: str) -> None:
    @flow.workflow(name="context.unstorable")
    async def unstorable(ctx: flow.Context) -> None:
        ctx.compensate(undo, 1)
        await ctx.signal("go")
        state: Any = ctx.state
        match how:
            case "set":
                state["x"] = object()
            case "update":
                state.update(x=object())
            case "default":
                state.setdefault("x", object())
            case "or":
                state |= {"x": object()}
            case _:
                state[1] = 1

    run = whole(play(unstorable).signal("go"))
    error = run.error or {}
    assert error["code"] == "FUNCTION_RAISED"
    assert "TypeError: ctx.state" in error["message"]
    assert error["where"].startswith("test_page_context.py:")
    assert run.calls(undo) == [{"given": 1}], "it is undone like any other failure"


def test_state_made_unstorable_deep_inside_fails_the_run_and_a_retry_does_only_what_is_open() -> None:
    deep: list[Any] = [object()]

    @flow.workflow(name="context.deep")
    async def unstorable(ctx: flow.Context) -> str:
        ctx.state["x"] = []
        await echo(1)
        await echo(2)
        ctx.state["x"].extend(deep)
        return "done"

    run = play(unstorable)
    assert run.status == "failed"
    assert (run.error or {})["code"] == "VALUE_REFUSED"
    deep.clear()
    assert run.retry().result == "done"
    assert [call["given"] for call in run.calls(echo)] == [1, 2, 2]


def test_events_of_the_function_are_told_as_they_are() -> None:
    @flow.workflow(name="context.events")
    async def events(ctx: flow.Context) -> None:
        ctx.event("order.seen", n=1, who=Answer(True))

    run = whole(play(events))
    assert {"type": "order.seen", "n": 1, "who": {"ok": True}} in run.events


# --- compensations ---


def test_compensations_run_when_a_run_is_cancelled_one_by_one_the_last_first() -> None:
    @flow.workflow(name="context.undone")
    async def undone(ctx: flow.Context) -> None:
        for n in range(3):
            ctx.compensate(undo, n)
        await ctx.signal("never")

    run = play(undone, by_hand=True).cancel("no")
    seen = []
    while run.open:
        (only,) = run.open
        seen.append(only.params["args"]["given"])
        assert run.status == "running"
        run.crash().perform(only)
    assert seen == [2, 1, 0]
    assert whole(run).status == "cancelled"
    assert run.error is not None
    assert [told["status"] for told in run.error["details"]["compensations"]] == ["completed"] * 3
