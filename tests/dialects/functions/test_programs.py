"""Generated programs: a durable function does what plain asyncio does with the same code, whatever the order in which
its awaits complete, however often its process ends in between, and however often it is evicted."""

from __future__ import annotations

import asyncio
import os
from random import Random
from typing import Any, Protocol

import pytest

from treadle import flow
from treadle.dialects.function.machine import FunctionMachine
from treadle.kernel.model import OpenIntent
from treadle.testing import play
from treadle.testing.playing import Play

COUNT = int(os.environ.get("TREADLE_PROGRAMS", "60"))
# How many share a machine.
ABREAST = 3
Program = list[Any]


class Boom(Exception):
    """How a step of a program fails, in both worlds."""


class World(Protocol):
    async def step(self, label: str, ok: bool) -> str: ...

    async def child(self, label: str, ok: bool) -> str: ...

    async def signal(self, label: str) -> str: ...

    async def sleep(self, label: str, seconds: int) -> None: ...

    def note(self, text: str) -> None: ...


def generated(random: Random, depth: int = 3, path: str = "p") -> Program:
    kinds = ["step", "step", "sleep", "signal", "child"]
    if depth:
        kinds += ["seq", "seq", "gather", "gather", "limit", "race", "group", "agather", "try", "finally"]
    kind = random.choice(kinds)
    if kind in ("step", "child", "signal"):
        return [kind, path, kind == "signal" or random.random() < 0.8]
    if kind == "sleep":
        return ["sleep", path, random.randint(1, 9)]
    count = 2 if kind in ("try", "finally") else random.randint(2, 4)
    parts = [generated(random, depth - 1, f"{path}.{n}") for n in range(count)]
    return [kind, parts, random.random() < 0.5]


async def run(program: Program, world: World) -> Any:
    kind, first, second = program
    if kind == "step":
        return await world.step(first, second)
    if kind == "child":
        return await world.child(first, second)
    if kind == "signal":
        return await world.signal(first)
    if kind == "sleep":
        await world.sleep(first, second)
        return "slept"
    parts = [lambda part=part: run(part, world) for part in first]
    if kind == "seq":
        return [await part() for part in parts]
    if kind in ("gather", "limit"):
        limit = 2 if kind == "limit" else None
        found = await flow.gather(*(part() for part in parts), return_exceptions=second, limit=limit)
        return [str(item) if isinstance(item, BaseException) else item for item in found]
    if kind == "agather":
        found = await asyncio.gather(*(part() for part in parts), return_exceptions=True)
        return [type(item).__name__ if isinstance(item, BaseException) else item for item in found]
    if kind == "race":
        return await flow.race(*(part() for part in parts))
    if kind == "group":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part()) for part in parts]
        return [task.result() for task in tasks]
    if kind == "try":
        try:
            return await parts[0]()
        except Exception as error:
            world.note(type(error).__name__)
            return ["caught", await parts[1]()]
    try:
        return await parts[0]()
    finally:
        world.note(f"clean up after {first[0][0]}")
        await parts[1]()


# --- the durable world ---


@flow.step(name="programs.step")
async def step(label: str, ok: bool) -> str:
    raise AssertionError("performed by the test")


class Durable:
    def __init__(self, ctx: flow.Context) -> None:
        self.ctx = ctx

    async def step(self, label: str, ok: bool) -> str:
        try:
            return await step(label, ok)
        except flow.StepFailed:
            raise Boom(label) from None

    async def child(self, label: str, ok: bool) -> str:
        try:
            return str(await self.ctx.run("programs.child", ok, reference=label))
        except flow.ChildFailed:
            raise Boom(label) from None

    async def signal(self, label: str) -> str:
        return str(await self.ctx.signal(label))

    async def sleep(self, label: str, seconds: int) -> None:
        await self.ctx.sleep(seconds)

    def note(self, text: str) -> None:
        self.ctx.state.setdefault("notes", []).append(text)


@flow.workflow(name="programs")
async def programs(ctx: flow.Context, program: list[Any]) -> Any:
    return await run(program, Durable(ctx))


# --- the plain world ---


class Plain:
    """The same program on asyncio's own loop, its steps completed by hand, its time virtual."""

    def __init__(self, program: Program) -> None:
        self.loop = asyncio.new_event_loop()
        self.open: list[tuple[str, bool, float, asyncio.Future[Any]]] = []
        self.notes: list[str] = []
        self.now = 0.0
        self.task = self.loop.create_task(run(program, self))
        self.pump()

    async def step(self, label: str, ok: bool) -> str:
        future = self.loop.create_future()
        self.open.append((label, ok, 0.0, future))
        return str(await future)

    async def child(self, label: str, ok: bool) -> str:
        return await self.step(label, ok)

    async def signal(self, label: str) -> str:
        return await self.step(label, True)

    async def sleep(self, label: str, seconds: int) -> None:
        future = self.loop.create_future()
        self.open.append(("sleep", True, self.now + seconds, future))
        await future

    def note(self, text: str) -> None:
        self.notes.append(text)

    def pump(self) -> None:
        while True:
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            if not self.loop._ready:  # type: ignore[attr-defined] # nothing is left to do by itself
                break
        self.open = [item for item in self.open if not item[3].done()]

    def labels(self) -> list[str]:
        return [label for label, _, _, _ in self.open]

    def complete(self, label: str) -> None:
        for name, ok, _, future in self.open:
            if name == label:
                if ok:
                    future.set_result(f"v{label}")
                else:
                    future.set_exception(Boom(label))
                break
        self.pump()

    def fire(self) -> None:
        due = min(when for name, _, when, _ in self.open if name == "sleep")
        future = next(item[3] for item in self.open if item[0] == "sleep" and item[2] == due)
        self.now = due
        future.set_result(None)
        self.pump()

    def outcome(self) -> Any:
        self.loop.close()
        if self.task.cancelled():
            return "cancelled", None
        error = self.task.exception()
        return ("failed", type(error).__name__) if error is not None else ("completed", self.task.result())


def label_of(intent: OpenIntent) -> str:
    """What an open await of the durable world is called in both."""
    match intent.kind:
        case "step":
            return str(intent.params["args"]["label"])
        case "child":
            return str(intent.params["reference"])
        case "signal":
            return intent.name
        case _:
            return "sleep"


def complete(durable: Play[Any], intent: OpenIntent) -> None:
    """Does what an await waits for: its step or child ends, or its signal comes."""
    label, driver = label_of(intent), durable.driver
    if intent.kind == "signal":
        driver.signal(label, f"v{label}")
    elif not (intent.params["input"] if intent.kind == "child" else intent.params["args"]["ok"]):
        driver.error(intent, label)
    else:
        driver.ok(intent, {"run": label, "result": f"v{label}"} if intent.kind == "child" else f"v{label}")


class Pair:
    """One program in both worlds, moved alike."""

    def __init__(self, seed: int, machine: FunctionMachine) -> None:
        self.random = Random(seed)
        self.program = generated(self.random)
        self.plain = Plain(self.program)
        self.durable = play(programs, self.program, by_hand=True, machine=machine, id=f"p{seed}")
        self.cancel_at = self.random.randint(1, 40)
        self.moves = 0

    def labels(self) -> list[str]:
        return [label_of(intent) for intent in self.durable.driver.run.open.values()]

    def move(self) -> None:
        durable, plain = self.durable, self.plain
        assert self.labels() == plain.labels(), f"after {self.moves} moves of {self.program}"
        self.moves += 1
        if self.random.random() < 0.3:
            durable.crash()
        if self.moves == self.cancel_at:
            plain.task.cancel()
            plain.pump()
            durable.cancel()
            return
        label = self.random.choice(self.labels())
        if label == "sleep":
            timers = [i for i in durable.driver.run.open.values() if i.kind == "timer"]
            first = min(timers, key=lambda intent: intent.due_ns or 0)
            durable.driver.now_ns = first.due_ns or 0
            durable.driver.ok(first)
            plain.fire()
        else:
            complete(durable, next(i for i in durable.driver.run.open.values() if label_of(i) == label))
            plain.complete(label)

    def compare(self) -> None:
        durable = self.durable
        status, result = self.plain.outcome()
        assert durable.status == status
        if status == "completed":
            assert durable.result == result
        if status == "failed":
            assert durable.error is not None
            assert durable.error["details"]["exception"] == result
        assert durable.state.get("notes", []) == self.plain.notes


@pytest.mark.parametrize("seed", range(0, COUNT, ABREAST))
def test_a_program_does_what_plain_asyncio_does(seed: int) -> None:
    """Several at once, on a machine that keeps one function alive: each is evicted by the next."""
    machine = FunctionMachine(lives_max=1)
    pairs = [Pair(seed + n, machine) for n in range(ABREAST)]
    random = Random(seed)
    while going := [pair for pair in pairs if not pair.plain.task.done()]:
        random.choice(going).move()
        assert machine.alive <= 1
    for pair in pairs:
        pair.compare()
    if seed % 10 == 0:
        pairs[0].durable.assert_replays()
