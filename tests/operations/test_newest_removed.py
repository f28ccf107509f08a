"""Whoever remembers how far they were misses nothing that comes after the newest runs were removed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle import reactive as rx
from treadle.server import live
from treadle.testing import toy

DEADLINE_S = 30.0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/t.db"
    found: str = request.getfixturevalue("pg_store")
    return found


def engine_on(url: str) -> Engine:
    engine = Engine(url)
    toy.install(engine)
    return engine


async def made(engine: Engine, *ids: str) -> None:
    for id in ids:
        await (await engine.start("toy", {"do": ["work"]}, id=id)).result()


async def removed(engine: Engine, *ids: str) -> None:
    for id in ids:
        await engine.delete(id)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if what():
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kept", [0, 1])
async def test_a_live_view_that_comes_back_is_told_what_is_new(url: str, kept: int) -> None:
    async with engine_on(url) as engine:
        await asyncio.to_thread(engine.deploy, toy.TOY)
        await made(engine, *("old", "one", "two")[1 - kept :])
        seen = live.run_changes(engine, live.ChangesWanted(), None)
        last = (await anext(seen)).partition("\n")[0].removeprefix("id: ")
        await seen.aclose()  # type: ignore[attr-defined]
        await removed(engine, "one", "two")
        await made(engine, "new")
        again = live.run_changes(engine, live.ChangesWanted(), last)
        async with asyncio.timeout(DEADLINE_S):
            frame = await anext(again)
            while json.loads(frame.partition("data: ")[2])["id"] != "new":
                frame = await anext(again)
        await again.aclose()  # type: ignore[attr-defined]


async def test_an_observer_elsewhere_is_told_what_is_new(url: str) -> None:
    heard: list[str] = []
    async with engine_on(url) as owner:
        await asyncio.to_thread(owner.deploy, toy.TOY)
        async with engine_on(url) as other:
            other.observe(lambda event: heard.append(event["run"]))
            await made(owner, "one", "two")
            await until(lambda: heard.count("two") == 2)
            await asyncio.sleep(0.3)  # it has looked since
            await removed(owner, "one", "two")
            await made(owner, "new")
            await until(lambda: heard.count("new") == 2)


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_an_observer_is_told_of_another_run_with_the_id_of_one_that_is_gone(
    url: str, elsewhere: bool
) -> None:
    heard: list[tuple[str, Any]] = []
    async with engine_on(url) as owner, engine_on(url) as other:
        await asyncio.to_thread(owner.deploy, toy.TOY)
        (other if elsewhere else owner).observe(lambda event: heard.append((event["run"], event["seq"])))
        for _ in range(3):
            await made(owner, "same")
            await until(lambda: len(heard) >= 2)
            await asyncio.sleep(0.3)  # it has looked since
            assert heard == [("same", 1), ("same", 2)]
            heard.clear()
            await removed(owner, "same")


@rx.schema("com.newest/Put@1")
@dataclass(frozen=True, slots=True)
class Put:
    id: str


@rx.schema("com.newest/Kept@1")
@dataclass(frozen=True, slots=True)
class Kept:
    id: str


def application() -> rx.App:
    @rx.workflow("com.newest/shelf@1", state=Kept, events=[Put], key="id", effects=[])
    def shelf(state: Kept | None, event: Any, ctx: rx.Context) -> rx.Output[Kept]:
        return rx.Output(Kept(event.id))

    return rx.App("newest", [shelf])


async def test_a_snapshot_of_an_application_has_what_came_while_it_was_taken(url: str) -> None:
    async with engine_on(url) as engine:
        await asyncio.to_thread(engine.deploy, toy.TOY)
        await asyncio.to_thread(engine.deploy, application())
        await engine.publish(Put("a"))
        await made(engine, "one", "two")
        asked = {"app": "newest"}
        begun = await engine.operate("snapshot", asked, home="newest")
        assert not begun["done"], "all cells are read, and it is still to be finished"
        await removed(engine, "one", "two")
        await engine.publish(Put("b"))
        taken = await engine.operate("snapshot", asked, home="newest")
        assert taken["done"]
        roots = (await engine.snapshot())["newest"]["roots"]
        assert taken["roots"] == roots, "what a snapshot of the same moment has"
