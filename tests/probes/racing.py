"""Two callers at the same thing: what they are told, and what is there afterwards, is what one after the other would
have given.

Nobody writes down what a pair should give. Each pair is first asked one after the other, in both orders, of things of
their own; then at once. What one caller looks up and what it does about it are two moments: the other is let in at every
one of them, by steps and not by luck, so that a race that there is shows each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from treadle import Engine
from treadle.definitions.files import compile_text
from treadle.dialects.process import dialect as process
from treadle.kernel.errors import TreadleError
from treadle.lang.definition import Definition
from treadle.testing import assert_replays

DEADLINE_S = 60.0
# How long a call waits for the one that came in between before it goes on beside it.
HELD_UP_S = 0.3
Door = Callable[[Engine, str], Awaitable[Any]]
# Whether every two doors of everything meet (`make races`), or those of the tables of the tests.
ALL = os.environ.get("TREADLE_RACES") == "all"
# Who asks first, and who comes in between: the owner of the store, or its guest.
WHO = ("owner, guest", "guest, owner", *(("owner, owner", "guest, guest") if ALL else ()))
# Numbers and names that are drawn, and so differ from one thing to the next.
_DRAWN = ((r'"seq": \d+(, )?', ""), (r"\d{4}-\d\d-\d\dT[\d:.]+Z?", "TIME"), (r"\b[0-9a-f]{12,}\b", "DRAWN"))


@dataclass(frozen=True)
class Subject:
    """What callers meet at: how a fresh one is made, what can be asked of it, what is there afterwards."""

    make: Door
    doors: dict[str, Door]
    look: Door


class House:
    """An owner and a guest of one store."""

    def __init__(self, owner: Engine, guest: Engine) -> None:
        self.owner, self.guest = owner, guest
        self._names = count()

    def named(self, who: str) -> tuple[Engine, Engine]:
        engines = {"owner": self.owner, "guest": self.guest}
        first, second = who.split(", ")
        return engines[first], engines[second]

    def fresh(self) -> str:
        return f"n{next(self._names):06}x"


@asynccontextmanager
async def opened(folder: Path, flows: dict[str, str]) -> AsyncIterator[House]:
    """A house in which these processes are deployed. What was done in it decides the same again."""
    owner, guest = (Engine(f"sqlite:///{folder / 't.db'}") for _ in range(2))
    for name, text in flows.items():
        (folder / f"{name}.yaml").write_text(f"dialect: process\nname: {name}\nversion: '1'\n{text}\n")
        owner.deploy(folder / f"{name}.yaml")
    async with owner, guest:
        assert owner.owns
        assert not guest.owns
        yield House(owner, guest)
        await assert_replays(owner)
        health = await owner.doctor(deep=True)
        assert health["ok"], health


def compiled(text: str) -> Definition:
    found, problems = compile_text(text, {"process": process.DIALECT})
    assert found is not None, [*problems]
    return found


class Interrupted:
    """A call into which another one comes: after its `gap`th wait, before it goes on. If the other has to wait for it,
    it goes on all the same."""

    def __init__(
        self,
        call: Awaitable[Any],
        gap: int = 0,
        other: Callable[[], Coroutine[Any, Any, str]] | None = None,
    ) -> None:
        self._call = call
        self._gap = gap
        self._other = other
        # How often it waited, and the other's call if it came to that.
        self.waits = 0
        self.other: asyncio.Task[str] | None = None

    def __await__(self) -> Generator[Any, Any, Any]:
        waits = self._call.__await__()
        raised: BaseException | None = None
        while True:
            try:
                awaited = next(waits) if raised is None else waits.throw(raised)  # type: ignore[attr-defined]
            except StopIteration as end:
                return end.value
            raised = None
            try:
                yield awaited
            except BaseException as error:  # a task throws in what was awaited if that failed
                raised = error
            self.waits += 1
            if self.waits == self._gap and self._other is not None:
                self.other = asyncio.create_task(self._other())
                yield from asyncio.wait([self.other], timeout=HELD_UP_S).__await__()


async def said(call: Awaitable[Any]) -> str:
    """What a caller is told, as text."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            answer = await call
    except TreadleError as error:
        return f"{error.code}: {error.message}"
    except TimeoutError as error:
        return f"TimeoutError: {error}"
    return text(answer)


def text(value: Any) -> str:
    return json.dumps(value, default=repr, sort_keys=True)


def plain(name: str, told: str) -> str:
    """Without what differs from one thing to the next."""
    told = told.replace(name, "NAME")
    for drawn, instead in _DRAWN:
        told = re.sub(drawn, instead, told)
    return told


async def one_after_the_other(
    house: House, subject: Subject, first: str, second: str
) -> tuple[str, str, str]:
    """What both are told, and what is there then."""
    name = house.fresh()
    await subject.make(house.owner, name)
    told = [await said(subject.doors[door](house.owner, name)) for door in (first, second)]
    looked = text(await subject.look(house.owner, name))
    return plain(name, told[0]), plain(name, told[1]), plain(name, looked)


async def at_once(house: House, subject: Subject, first: str, second: str, who: str) -> list[tuple[str, Any]]:
    """What became of every way in which the two can meet, each with its name. After its last wait a call is over."""
    name, (one, other) = house.fresh(), house.named(who)
    await subject.make(house.owner, name)
    call = Interrupted(subject.doors[first](one, name))
    told = await asyncio.gather(said(call), said(subject.doors[second](other, name)))
    ways: list[tuple[str, Any]] = [("at the same time", await _seen(house, subject, name, *told))]
    for gap in range(1, call.waits):
        found = await _interrupted(house, subject, first, second, who, gap)
        if found is not None:
            ways.append((f"{second} after wait {gap} of {first}", found))
    return ways


async def _interrupted(
    house: House, subject: Subject, first: str, second: str, who: str, gap: int
) -> tuple[str, str, str] | None:
    name, (one, other) = house.fresh(), house.named(who)
    await subject.make(house.owner, name)
    call = Interrupted(subject.doors[first](one, name), gap, lambda: said(subject.doors[second](other, name)))
    told = await said(call)
    return None if call.other is None else await _seen(house, subject, name, told, await call.other)


async def _seen(house: House, subject: Subject, name: str, one: str, other: str) -> tuple[str, str, str]:
    looked = text(await subject.look(house.owner, name))
    return plain(name, one), plain(name, other), plain(name, looked)


def meetings(
    subjects: dict[str, Subject], table: dict[str, dict[str, tuple[str, ...]]]
) -> list[tuple[str, str, tuple[str, ...]]]:
    """Of what, who asks, and who comes in between. Into what is two calls ("… and …") anything may come, so it
    meets only what the table says."""
    chosen = [(of, first, others) for of, rows in table.items() for first, others in rows.items()]
    if not ALL:
        return chosen
    single = {of: tuple(door for door in it.doors if " and " not in door) for of, it in subjects.items()}
    return [*chosen, *((of, first, doors) for of, doors in single.items() for first in doors)]


async def meet(house: House, subject: Subject, first: str, others: tuple[str, ...]) -> None:
    """Lets a caller and each of the others meet in every way."""
    await asyncio.gather(*(_check(house, subject, first, second) for second in others))


async def _check(house: House, subject: Subject, first: str, second: str) -> None:
    after = await one_after_the_other(house, subject, first, second)
    before = await one_after_the_other(house, subject, second, first)
    allowed = [after, (before[1], before[0], before[2])]
    ways = await asyncio.gather(*(at_once(house, subject, first, second, who) for who in WHO))
    wrong = [
        f"{who}: {how}:\n    {found}"
        for who, each in zip(WHO, ways, strict=True)
        for how, found in each
        if found not in allowed
    ]
    told = "\n  ".join(
        [f"no order of {first} and {second} gives this:", *wrong, "allowed:", *map(str, allowed)]
    )
    assert not wrong, told
