"""Odd values through every door of a reactive application, as the owner of the store and as a guest: each is answered or
refused with an error of ours, the same by whoever asks, and what was recorded decides the same again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from tests.probes.odd import DEADLINE_S, MARKS, ODD

from treadle import Engine
from treadle import reactive as rx
from treadle.kernel.errors import TreadleError
from treadle.testing import assert_replays


class Colour(Enum):
    red = "red"


@rx.schema("odd/Came@1")
@dataclass(frozen=True)
class Came:
    k: str
    text: str | None = None
    whole: int | None = None
    nat: rx.Nat | None = None
    fraction: float | None = None
    money: Decimal | None = None
    raw: bytes | None = None
    at: datetime | None = None
    lasts: timedelta | None = None
    id: UUID | None = None
    words: set[str] | None = None
    counts: dict[str, int] | None = None
    numbered: dict[int, str] | None = None
    colour: Colour | None = None
    table: list[list[int]] | None = None


@rx.schema("odd/Tick@1")
@dataclass(frozen=True)
class Tick:
    n: int


@rx.schema("odd/Bad@1")
@dataclass(frozen=True)
class Bad:
    k: str


@rx.schema("odd/Seen@1")
@dataclass(frozen=True)
class Seen:
    times: int = 0


@rx.workflow("odd/cells@1", state=Seen, events=[Came], key="k", effects=[])
def cells(seen: Seen | None, event: Any, ctx: rx.Context) -> rx.Output[Seen]:
    return rx.Output(Seen((seen or Seen()).times + 1))


@rx.workflow("odd/alone@1", state=Seen, events=[Tick], effects=[])
def alone(seen: Seen | None, event: Any, ctx: rx.Context) -> rx.Output[Seen]:
    return rx.Output(Seen((seen or Seen()).times + 1))


def _refusing(name: str) -> rx.Workflow:
    def refuse(seen: Seen | None, event: Any, ctx: rx.Context) -> rx.Output[Seen]:
        raise ValueError("not this one")

    return rx.workflow(name, state=Seen, events=[Bad], key="k", effects=[])(refuse)


APP = rx.App("odd", [cells, alone, _refusing("odd/no@1"), _refusing("odd/never@1")])
Door = Callable[[Engine, Any], Awaitable[Any]]


def _field(name: str) -> Door:
    return lambda e, v: e.publish("odd/Came@1", {"k": "a", name: v})


DOORS: dict[str, Door] = {
    **{f"the field {name}": _field(name) for name in Came.__dataclass_fields__},
    "a field of an object": lambda e, v: e.publish(Came("a", whole=v)),
    "the key of an object": lambda e, v: e.publish(Came(v)),
    "an event": lambda e, v: e.publish(v),
    "a schema": lambda e, v: e.publish(v, {"k": "a"}),
    "a value": lambda e, v: e.publish("odd/Came@1", v),
    "a key": lambda e, v: e.publish("odd/Came@1", {"k": "a"}, key=v),
    "a submission": lambda e, v: e.publish("odd/Came@1", {"k": "a"}, submission_id=v),
    "cells of": lambda e, v: e.cells(v),
    "how many cells": lambda e, v: e.cells(cells, limit=v),
    "a cell of": lambda e, v: e.cell(v, "a"),
    "a cell by key": lambda e, v: e.cell(cells, v),
    "a cell that has no key": lambda e, v: e.cell(alone, v),
    "reset": lambda e, v: e.reset(v),
    "apply": lambda e, v: e.apply(v),
    "apply of": lambda e, v: e.apply(1, app=v),
    "shadow": lambda e, v: e.shadow(v),
    "shadow of": lambda e, v: e.shadow(1, app=v),
    "shadow a run": lambda e, v: e.shadow(APP, run=v),
    "propose": lambda e, v: e.propose(v),
    "approve": lambda e, v: e.approve(v),
    "approve of": lambda e, v: e.approve(1, app=v),
    "reject": lambda e, v: e.reject(v),
    "proposals of": lambda e, v: e.proposals(v),
    "a signal to a cell": lambda e, v: e.signal("odd/cells@1/a", "go", v),
    "a patch of a cell": lambda e, v: e.patch("odd/cells@1/a", {"a": v}),
    "start": lambda e, v: e.start("odd/cells@1", v),
}
VALUES = {**ODD, "nothing": "", "no": None, "a truth": True, "a folder": "/nowhere/" + "x" * 300}
# Here nothing is meant by nothing.
ABSENT = {"reset", "apply"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Engine, Engine]]:
    store = f"sqlite:///{tmp_path_factory.mktemp('reactive') / 't.db'}"
    owner, guest = Engine(store), Engine(store)
    for engine in (owner, guest):
        engine.deploy(APP)
    async with owner, guest:
        assert owner.owns
        await owner.publish(Came("a"))
        yield owner, guest
        await assert_replays(owner)
        health = await owner.doctor(deep=True)
        assert health["ok"], health


async def _answer(door: Door, engine: Engine, value: Any) -> tuple[str, str]:
    try:
        async with asyncio.timeout(DEADLINE_S):
            found = await door(engine, value)
    except TreadleError as error:
        return "refused", json.dumps(error.to_value())
    return "answered", type(found).__name__


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("door", DOORS)
async def test_an_odd_value_is_answered_or_refused_alike_by_owner_and_guest(
    two: tuple[Engine, Engine], door: str
) -> None:
    for what, value in VALUES.items():
        by_owner, by_guest = [await _answer(DOORS[door], engine, value) for engine in two]
        assert by_owner == by_guest, what
        assert not [mark for mark in MARKS if mark in by_owner[1]], what


@pytest.mark.asyncio(loop_scope="module")
async def test_a_number_of_a_proposal_is_a_number(two: tuple[Engine, Engine]) -> None:
    number = await two[0].propose(APP)
    for engine in two:
        for odd in (True, float(number), str(number)):
            for ask in (engine.approve, engine.reject, engine.shadow):
                with pytest.raises(TreadleError, match="number"):
                    await ask(odd)


@pytest.mark.asyncio(loop_scope="module")
async def test_who_names_the_key_of_what_has_none_is_told(two: tuple[Engine, Engine]) -> None:
    for engine in two:
        await engine.publish(Tick(1))
        assert await engine.cell(alone, None) is not None
        with pytest.raises(TreadleError, match="no key"):
            await engine.cell(alone, "a")


@pytest.mark.asyncio(loop_scope="module")
async def test_the_same_submission_gets_the_same_refusal_of_many_cells(two: tuple[Engine, Engine]) -> None:
    """Its answer is durable: who asks again, the owner or a guest, is not told that it was taken."""
    told = []
    for engine in (*two, *two):
        with pytest.raises(TreadleError) as refused:
            await engine.publish(Bad("a"), submission_id="S")
        told.append((refused.value.code, refused.value.message))
    assert told == [told[0]] * 4
