"""A reactive application whose cells several members decide: its apply is a barrier, its snapshot is of one moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

import pytest

from treadle import Engine
from treadle import reactive as rx
from treadle.apps import barrier
from treadle.dialects.reactive.index import EMPTY
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import decode_trusted
from treadle.testing import assert_replays

CELLS = 24
# So large that a cell at rest is not snapshotted with each event.
LARGE = "x" * 6_000


@rx.schema("sums/Add@1")
@dataclass(frozen=True, slots=True)
class Add:
    key: str
    n: int


@rx.schema("sums/Ask@1")
@dataclass(frozen=True, slots=True)
class Ask:
    key: str


@rx.schema("sums/Total@1")
@dataclass(frozen=True, slots=True)
class Total:
    n: int = 0
    # Which code decided each event, in order.
    by: tuple[str, ...] = ()
    text: str = LARGE


wait = rx.effect("sums/wait@1", params=Ask, receipt=None)


def sums(version: str) -> rx.App:
    @rx.workflow("sums/sum@1", state=Total, events=[Add, Ask], key="key", effects=[wait], version=version)
    def total(state: Total | None, event: Any) -> rx.Output[Total]:
        state = state or Total()
        if isinstance(event, Ask):
            return rx.Output(state, effects=[wait(event, ref="wait")])
        return rx.Output(replace(state, n=state.n + 1, by=(*state.by, version)))

    return rx.App("sums", [total])


@rx.schema("pairs/Told@1")
@dataclass(frozen=True, slots=True)
class Told:
    key: str


@rx.schema("pairs/Count@1")
@dataclass(frozen=True, slots=True)
class Count:
    n: int = 0


@rx.workflow("pairs/source@1", state=Count, events=[Add], key="key", effects=[])
def source(state: Count | None, event: Any) -> rx.Output[Count]:
    return rx.Output(Count((state or Count()).n + 1), events=[Told(event.key)])


@rx.workflow("pairs/sink@1", state=Count, events=[Told], key="key", effects=[])
def sink(state: Count | None, event: Any) -> rx.Output[Count]:
    return rx.Output(Count((state or Count()).n + 1))


PAIRS = rx.App("pairs", [source, sink])
OLD, NEW = sums("1"), sums("2")


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def shared(*engines: Engine) -> None:
    for engine in engines:
        engine.deploy(OLD)
    each = 64 // len(engines)
    await until(lambda: all(engine.shards["held"] in (each, each + 1) for engine in engines))


def key(number: int) -> str:
    return f"k{number % CELLS}"


async def states(engine: Engine) -> dict[str, Any]:
    found = {}
    for number in range(CELLS):
        cell = await engine.cell("sums/sum@1", key(number))
        assert cell is not None
        found[key(number)] = await cell.state()
    return found


async def test_an_apply_over_members_loses_no_event_and_none_is_decided_by_old_code_after_it(
    pg_store: str,
) -> None:
    async with Engine(pg_store) as one, Engine(pg_store) as two, Engine(pg_store) as three:
        members = (one, two, three)
        await shared(*members)
        for number in range(2 * CELLS):
            await members[number % 3].publish(Add(key(number), number))
        for engine in members:
            engine.load(NEW)
        told, over = 2 * CELLS, asyncio.Event()

        async def busy(engine: Engine, first: int) -> int:
            number = first
            while not over.is_set():
                await engine.publish(Add(key(number), number))
                number += 1
            return number - first

        publishing = [asyncio.create_task(busy(engine, 7 * n)) for n, engine in enumerate(members)]
        applied = await two.apply(NEW, wait=True)
        assert applied["manifest"] == NEW.digest
        over.set()
        told += sum(await asyncio.gather(*publishing))
        for number in range(CELLS):
            await members[number % 3].publish(Add(key(number), number))
        told += CELLS
        found = await states(one)
        assert sum(state["n"] for state in found.values()) == told, "each event once"
        for name, state in found.items():
            assert list(state["by"]) == sorted(state["by"]), f"{name} was decided by old code after the new"
            assert state["by"][-1] == "2"
        books = await one.read(lambda reads: reads.run("sums"))
        assert books is not None
        ops = [
            r["event"]["data"]["op"] for r in await (await one.run("sums")).journal() if r["kind"] == "patch"
        ]
        assert ops[-2:] == ["close", "apply"]
        assert await assert_replays(one) == CELLS + 1


async def test_what_blocks_an_apply_is_found_wherever_it_is_decided_and_the_cells_are_open_again(
    pg_store: str,
) -> None:
    async with Engine(pg_store, work=False) as one, Engine(pg_store, work=False) as two:
        await shared(one, two)
        for number in range(CELLS):
            await one.publish(Add(key(number), number))
        for engine in (one, two):
            engine.load(NEW)
        asked = next(key(n) for n in range(CELLS) if not one.decides(f"sums/sum@1/{key(n)}"))
        await one.publish(Ask(asked))
        with pytest.raises(TreadleError) as caught:
            await one.apply(NEW)
        assert caught.value.code == "APPLY_BLOCKED"
        assert [blocker["run"] for blocker in caught.value.details["blockers"]] == [f"sums/sum@1/{asked}"]
        for number in range(CELLS):
            await two.publish(Add(key(number), number))
        found = await states(two)
        assert {state["n"] for state in found.values()} == {2}
        assert {part for state in found.values() for part in state["by"]} == {"1"}


async def counts(engine: Engine, root: str) -> dict[str, int]:
    """What each cell below a root has counted."""
    found = {}
    for entry in await engine.applications.compare(EMPTY, root):
        body = await engine.read(methodcaller("blob", entry["after"]))
        found[entry["key"]] = decode_trusted(body)["n"]
    return found


async def test_a_snapshot_over_members_is_of_one_moment(pg_store: str) -> None:
    """A source tells its sink of each event, elsewhere: at no moment has a sink heard more than was told."""
    async with Engine(pg_store) as one, Engine(pg_store) as two:
        for engine in (one, two):
            engine.deploy(PAIRS)
        await until(lambda: one.shards["held"] == two.shards["held"] == 32)
        over = asyncio.Event()

        async def busy(engine: Engine, first: int) -> None:
            number = first
            while not over.is_set():
                await engine.publish(Add(key(number), number))
                number += 1

        publishing = [asyncio.create_task(busy(engine, 7 * n)) for n, engine in enumerate((one, two))]
        try:
            for _ in range(3):
                roots = (await two.snapshot())["pairs"]["roots"]
                told, heard = [
                    await counts(one, roots[workflow]) for workflow in ("pairs/source@1", "pairs/sink@1")
                ]
                assert all(told[name] >= count for name, count in heard.items())
        finally:
            over.set()
            await asyncio.gather(*publishing)


async def test_every_member_has_to_have_the_new_code(pg_store: str) -> None:
    async with Engine(pg_store) as one, Engine(pg_store) as two:
        await shared(one, two)
        for number in range(CELLS):
            await one.publish(Add(key(number), number))
        with pytest.raises(TreadleError) as caught:
            await one.apply(NEW)
        assert caught.value.code == "APPLY_BLOCKED"
        assert "does not have this code" in caught.value.message
        await two.publish(Add(key(0), 1))


async def test_a_barrier_whose_driver_died_gives_way(pg_store: str) -> None:
    async with Engine(pg_store) as one, Engine(pg_store) as two:
        await shared(one, two)
        await one.publish(Add(key(0), 0))
        closing = {"app": "sums", "manifest": NEW.digest, "token": "t", "deploys": [], "do": "close"}
        await one.operate("barrier", {**closing, "closed_ns": 1_500_000_000}, home="sums")
        async with asyncio.timeout(60):
            for number in range(CELLS):
                await two.publish(Add(key(number), number))
        assert sum(state["n"] for state in (await states(one)).values()) == CELLS + 1
        with pytest.raises(TreadleError) as caught:
            await one.operate("apply", {**closing, "token": "t"}, home="sums")
        assert caught.value.code in ("APPLY_BLOCKED", "CODE_MISSING")


async def test_cells_that_were_closed_for_what_is_active_already_are_open_again(pg_store: str) -> None:
    """Two apply the same; the second one finds out when it has closed the cells."""
    async with Engine(pg_store) as one, Engine(pg_store) as two:
        await shared(one, two)
        await one.publish(Add(key(0), 0))
        about = {"app": "sums", "manifest": OLD.digest, "token": "t", "deploys": []}
        await two.operate("barrier", {**about, "do": "close"}, home="sums")
        await two.operate("apply", about, home="sums")
        moves = [
            r["event"]["data"]["op"] for r in await (await one.run("sums")).journal() if r["kind"] == "patch"
        ]
        assert moves == ["close", "open"]
        for number in range(CELLS):
            await two.publish(Add(key(number), number))


async def test_no_message_closes_cells_for_longer_than_a_barrier_lasts() -> None:
    async with Engine(":memory:") as engine:
        engine.load(OLD)
        await engine.publish(Add(key(0), 0))
        about = {"app": "sums", "manifest": OLD.digest, "token": "t", "deploys": []}
        await engine.operate("barrier", {**about, "do": "close", "closed_ns": 10**17}, home="sums")
        (closed,) = [r for r in await (await engine.run("sums")).journal() if r["kind"] == "patch"]
        assert closed["event"]["data"]["until_ns"] <= time.time_ns() + barrier.CLOSED_NS


async def test_an_application_that_somebody_began_under_another_manifest_is_no_error() -> None:
    """Who publishes first begins the application, and so does who applies first; neither knows of the other."""
    async with Engine(":memory:") as engine:
        engine.load(OLD)
        await engine.apply(NEW)
        await engine.applications.begin("sums")
        await engine.publish(Add(key(0), 0))
        cell = await engine.cell("sums/sum@1", key(0))
        assert cell is not None
        assert list((await cell.state())["by"]) == ["2"]
