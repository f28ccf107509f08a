"""Schedules on an engine whose time a test moves: each tick is one run, and what becomes of the others is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from treadle import Engine
from treadle.kernel.errors import TreadleError
from treadle.lang.duration import parse_instant
from treadle.lang.recurrence import Cron, instants
from treadle.lang.schedules import run_id
from treadle.testing import VirtualClock, assert_replays

START = parse_instant("2026-01-01T00:00:30Z")
DAY = 86_400

QUICK = """
dialect: process
name: quick
version: "1"
steps:
  - set: {state.done: true}
"""
SLOW = """
dialect: process
name: slow
version: "1"
steps:
  - await: go
"""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
async def engine(clock: VirtualClock, tmp_path: Any) -> AsyncIterator[Engine]:
    (tmp_path / "quick.yaml").write_text(QUICK)
    (tmp_path / "slow.yaml").write_text(SLOW)
    async with clock.engine(f"sqlite:///{tmp_path}/s.db") as engine:
        engine.deploy(str(tmp_path))
        yield engine


async def ids(engine: Engine) -> list[str]:
    return sorted(row["id"] for row in await engine.list(limit=10_000))


async def test_through_a_year_in_five_time_zones_each_tick_is_one_run(
    clock: VirtualClock, tmp_path: Any
) -> None:
    (tmp_path / "quick.yaml").write_text(QUICK)
    async with clock.engine("memory:") as engine:
        engine.deploy(str(tmp_path))
        await a_year_of_ticks(clock, engine)


async def a_year_of_ticks(clock: VirtualClock, engine: Engine) -> None:
    zones = ["Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago"]
    for zone in zones:
        await engine.schedule_add(zone, "quick", cron="30 2 * * *", timezone=zone, overlap="allow")
    await clock.advance(365 * DAY)
    wanted = [
        run_id(zone, tick)
        for zone in zones
        for tick in instants(Cron("30 2 * * *", zone), START, clock.now_ns())
    ]
    assert await ids(engine) == sorted(wanted)
    assert len(wanted) == 5 * 365
    assert {row["status"] for row in await engine.list(limit=10_000)} == {"completed"}
    assert await assert_replays(engine) == len(wanted)


async def test_a_tick_starts_the_run_that_is_named_after_it_with_the_schedules_input(
    clock: VirtualClock, engine: Engine
) -> None:
    row = await engine.schedule_add("nightly", "quick", {"day": 1}, every="1h")
    assert row["next"][0] == "2026-01-01T01:00:00.000000Z"
    assert len(row["next"]) == 5
    await clock.advance(3600)
    run = await (await engine.run("nightly@2026-01-01T01:00:00Z")).show()
    assert (run["status"], run["input"]) == ("completed", {"day": 1})
    shown = await engine.schedule("nightly")
    assert shown["last"]["outcome"] == "started"
    assert shown["last"]["status"] == "completed"
    await assert_replays(engine)


async def test_jitter_delays_the_start_and_not_the_id(clock: VirtualClock, engine: Engine) -> None:
    await engine.schedule_add("nightly", "quick", every="1h", jitter="30m")
    await clock.advance(2 * 3600 + 1800)
    shown = [await (await engine.run(id)).show() for id in await ids(engine)]
    assert [run["id"] for run in shown] == ["nightly@2026-01-01T01:00:00Z", "nightly@2026-01-01T02:00:00Z"]
    assert all(not run["started_at"].endswith("00:00.000000Z") for run in shown)


async def test_a_tick_that_meets_a_run_of_before_is_skipped_and_says_so(
    clock: VirtualClock, engine: Engine
) -> None:
    await engine.schedule_add("s", "slow", every="1h")
    await clock.advance(3 * 3600)
    assert await ids(engine) == ["s@2026-01-01T01:00:00Z"]
    last = (await engine.schedule("s"))["last"]
    assert (last["outcome"], last["tick"]) == ("skipped", "2026-01-01T03:00:00.000000Z")
    await engine.signal("s@2026-01-01T01:00:00Z", "go")
    await clock.advance(3600)
    assert (await ids(engine))[-1] == "s@2026-01-01T04:00:00Z"


async def test_ticks_that_queue_start_one_after_another_in_order(clock: VirtualClock, engine: Engine) -> None:
    await engine.schedule_add("s", "slow", every="1h", overlap="queue")
    await clock.advance(3 * 3600)
    assert await ids(engine) == ["s@2026-01-01T01:00:00Z"]
    assert (await engine.schedule("s"))["waiting"] == ["s@2026-01-01T02:00:00Z", "s@2026-01-01T03:00:00Z"]
    await engine.signal("s@2026-01-01T01:00:00Z", "go")
    await clock.settle()
    assert (await ids(engine))[-1] == "s@2026-01-01T02:00:00Z"
    await engine.signal("s@2026-01-01T02:00:00Z", "go")
    await clock.settle()
    assert (await ids(engine))[-1] == "s@2026-01-01T03:00:00Z"


async def test_at_most_a_hundred_ticks_queue(clock: VirtualClock, engine: Engine) -> None:
    await engine.schedule_add("s", "slow", every="1h", overlap="queue")
    await clock.advance(103 * 3600)
    shown = await engine.schedule("s")
    assert len(shown["waiting"]) == 100
    assert shown["last"]["outcome"] == "skipped"


async def test_a_tick_that_cancels_ends_the_run_of_before_first(clock: VirtualClock, engine: Engine) -> None:
    await engine.schedule_add("s", "slow", every="1h", overlap="cancel")
    await clock.advance(2 * 3600)
    statuses = {row["id"]: row["status"] for row in await engine.list()}
    assert statuses == {"s@2026-01-01T01:00:00Z": "cancelled", "s@2026-01-01T02:00:00Z": "waiting"}
    await assert_replays(engine)


@pytest.mark.parametrize(
    ("policy", "caught_up"), [("none", []), ("last", ["05"]), ("all", ["01", "02", "03", "04", "05"])]
)
async def test_ticks_that_were_missed_are_caught_up_with_as_the_schedule_says(
    clock: VirtualClock, tmp_path: Any, policy: str, caught_up: list[str]
) -> None:
    (tmp_path / "quick.yaml").write_text(QUICK)
    store = f"sqlite:///{tmp_path}/missed.db"
    async with clock.engine(store) as first:
        first.deploy(str(tmp_path / "quick.yaml"))
        await first.schedule_add("s", "quick", every="1h", catch_up=policy, overlap="allow")
    await clock.advance(5 * 3600)
    async with clock.engine(store) as second:
        await clock.settle()
        assert await ids(second) == [f"s@2026-01-01T{hour}:00:00Z" for hour in caught_up]
        await clock.advance(3600)
        assert (await ids(second))[-1] == "s@2026-01-01T06:00:00Z"


async def test_ticks_of_a_pause_were_missed(clock: VirtualClock, engine: Engine) -> None:
    for policy in ("none", "last", "all"):
        await engine.schedule_add(policy, "quick", every="1h", catch_up=policy, overlap="allow", paused=True)
    assert (await engine.schedule("all"))["next"] == []
    await clock.advance(3 * 3600)
    assert await ids(engine) == []
    for policy in ("none", "last", "all"):
        await engine.schedule_resume(policy)
    await clock.settle()
    assert await ids(engine) == [
        "all@2026-01-01T01:00:00Z",
        "all@2026-01-01T02:00:00Z",
        "all@2026-01-01T03:00:00Z",
        "last@2026-01-01T03:00:00Z",
    ]


async def test_a_start_by_hand_is_a_run_also_when_paused_and_whatever_goes_on(
    clock: VirtualClock, engine: Engine
) -> None:
    await engine.schedule_add("s", "slow", every="1h", paused=True)
    assert await engine.schedule_trigger("s") == "s@2026-01-01T00:00:30.000Z"
    await clock.advance(1)
    await engine.schedule_trigger("s")
    assert len(await ids(engine)) == 2


async def test_who_starts_by_hand_is_told_when_the_run_is_there_or_why_it_is_not(
    clock: VirtualClock, engine: Engine
) -> None:
    await engine.schedule_add("hourly", workflow="slow", every="1h")
    both = await asyncio.gather(*(engine.schedule_trigger("hourly") for _ in range(2)))
    assert len(set(both)) == 2, "within one millisecond"
    for id in both:
        assert (await (await engine.run(id)).show())["status"] == "waiting"
    await engine.limit_set("slow", concurrency=1, queue=0)
    third = await engine.schedule_trigger("hourly")
    with pytest.raises(TreadleError) as refused:
        await engine.schedule_trigger("hourly")
    assert refused.value.code == "QUEUE_FULL"
    assert await ids(engine) == sorted([*both, third])
    await assert_replays(engine)


async def test_a_past_range_is_filled_in_once(clock: VirtualClock, engine: Engine) -> None:
    await engine.schedule_add("s", "quick", every="1h")
    since, until = START - 6 * 3600 * 10**9, START
    filled = await engine.schedule_backfill("s", since_ns=since, until_ns=until)
    again = await engine.schedule_backfill("s", since_ns=since, until_ns=until)
    assert filled == again
    assert len(filled) == 6
    await clock.settle()
    assert await ids(engine) == filled
    with pytest.raises(TreadleError, match="by now"):
        await engine.schedule_backfill("s", since_ns=START, until_ns=START + DAY * 10**9)


async def test_once_is_once_and_past_is_refused(clock: VirtualClock, engine: Engine) -> None:
    await engine.schedule_add("one", "quick", at="2026-01-02T08:00:00Z")
    await clock.advance(3 * DAY)
    assert await ids(engine) == ["one@2026-01-02T08:00:00Z"]
    assert (await engine.schedule("one"))["next"] == []
    with pytest.raises(TreadleError) as refused:
        await engine.schedule_add("late", "quick", at="2026-01-02T08:00:00Z")
    assert refused.value.code == "SCHEDULE_INVALID"


async def test_a_workflow_that_does_not_take_a_tick_is_told_and_the_schedule_goes_on(
    clock: VirtualClock, engine: Engine, tmp_path: Any
) -> None:
    strict = (
        QUICK.replace("name: quick", "name: strict") + "start: {schema: {type: object, required: [day]}}\n"
    )
    (tmp_path / "strict.yaml").write_text(strict)
    engine.deploy(str(tmp_path / "strict.yaml"))
    with pytest.raises(TreadleError):
        await engine.schedule_add("bad", "strict", every="1h")
    await engine.schedule_add("bad", "strict", {"day": 1}, every="1h")
    (tmp_path / "strict.yaml").write_text(strict.replace('"1"', '"2"').replace("[day]", "[week]"))
    engine.deploy(str(tmp_path / "strict.yaml"))
    await clock.advance(3600)
    assert (await engine.schedule("bad"))["last"]["outcome"] == "refused"
    (tmp_path / "strict.yaml").write_text(strict.replace('"1"', '"3"'))
    engine.deploy(str(tmp_path / "strict.yaml"))
    await clock.advance(3600)
    assert (await engine.schedule("bad"))["last"]["outcome"] == "started"


async def test_the_same_schedule_again_is_the_same_and_another_is_refused(engine: Engine) -> None:
    assert (await engine.schedule_add("s", "quick", every="1h"))["new"] is True
    assert (await engine.schedule_add("s", "quick", every="1h"))["new"] is False
    with pytest.raises(TreadleError) as refused:
        await engine.schedule_add("s", "quick", every="2h")
    assert refused.value.code == "SCHEDULE_EXISTS"
    with pytest.raises(TreadleError) as unknown:
        await engine.schedule_add("t", "nothing", every="1h")
    assert unknown.value.code == "UNKNOWN_WORKFLOW"
    await engine.schedule_remove("s")
    with pytest.raises(TreadleError) as gone:
        await engine.schedule("s")
    assert gone.value.code == "SCHEDULE_NOT_FOUND"


async def test_a_change_counts_from_now(clock: VirtualClock, engine: Engine) -> None:
    await engine.schedule_add("s", "quick", every="1h")
    shown = await engine.schedule_change("s", cron="0 12 * * *", timezone="Europe/Zurich")
    assert shown["next"][0] == "2026-01-01T11:00:00.000000Z"
    assert "every" not in shown
    await clock.advance(2 * 3600)
    assert await ids(engine) == []


SAID = (
    QUICK.replace("name: quick", "name: nightly")
    + 'schedule: {cron: "30 2 * * *", timezone: Europe/Zurich}\n'
)


async def test_a_definition_says_its_schedule_and_the_next_version_changes_it(
    clock: VirtualClock, engine: Engine, tmp_path: Any
) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(SAID)
    engine.deploy(str(file))
    engine.deploy(str(file))
    (row,) = await engine.schedules()
    assert (row["name"], row["workflow"], row["origin"]) == ("nightly", "nightly", "nightly")
    await clock.advance(DAY)
    assert await ids(engine) == ["nightly@2026-01-01T01:30:00Z"]
    await engine.schedule_pause("nightly")
    file.write_text(SAID.replace('"1"', '"2"').replace("30 2", "45 2"))
    engine.deploy(str(file))
    (row,) = await engine.schedules()
    assert (row["cron"], row["paused"]) == ("45 2 * * *", True)
    file.write_text(QUICK.replace("name: quick", "name: nightly").replace('"1"', '"3"'))
    engine.deploy(str(file))
    assert await engine.schedules() == []
    await assert_replays(engine)


async def test_a_playbook_says_its_schedule_in_its_metadata(engine: Engine, tmp_path: Any) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("metadata: {name: p, schedule: {every: 1h}}\nworkflow: [{step: s, tool: {kind: noop}}]\n")
    engine.deploy(str(file))
    assert [row["name"] for row in await engine.schedules()] == ["p"]


async def test_a_definition_does_not_take_a_schedule_that_somebody_added(
    engine: Engine, tmp_path: Any
) -> None:
    await engine.schedule_add("nightly", "quick", every="1h")
    file = tmp_path / "nightly.yaml"
    file.write_text(SAID)
    with pytest.raises(TreadleError) as refused:
        engine.deploy(str(file))
    assert refused.value.code == "SCHEDULE_EXISTS"
    assert [row["name"] for row in await engine.definitions()] == ["quick", "slow"]


async def test_a_schedule_that_a_definition_gets_wrong_is_a_problem_at_its_line(
    engine: Engine, tmp_path: Any
) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(SAID.replace("30 2 * * *", "nonsense"))
    (problem,) = engine.check(str(file))
    assert (problem.code, problem.path, problem.line) == ("BAD_CRON", "schedule", 7)


def test_a_process_with_a_schedule_is_exported_to_the_same_digest(tmp_path: Any) -> None:
    engine = Engine("memory:")
    (tmp_path / "n.yaml").write_text(SAID)
    (said,) = engine.load(str(tmp_path / "n.yaml"))
    dialect = engine.dialects["process"]
    (tmp_path / "e.yaml").write_text(dialect.export(said, "yaml"))
    (tmp_path / "e.py").write_text(dialect.export(said, "python"))
    assert engine.load(str(tmp_path / "e.yaml"))[0].digest == said.digest
    assert engine.load(str(tmp_path / "e.py"))[0].digest == said.digest
