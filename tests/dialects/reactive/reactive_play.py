"""Random play: any sequence of events, receipts, frames, deletes, snapshots and restarts on one world.

Run as a program it prints the digest of several plays, for comparing processes with different hash seeds.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

from treadle import reactive as rx
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import digest


@rx.schema("p/Do@1")
@dataclass(frozen=True)
class Do:
    k: int
    what: str
    tags: frozenset[str] = frozenset()


@rx.schema("p/Told@1")
@dataclass(frozen=True)
class Told:
    k: int
    by: str


@rx.schema("p/State@1")
@dataclass(frozen=True)
class State:
    log: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    by_tag: dict[str, int] | None = None


@rx.schema("p/Answer@1")
@dataclass(frozen=True)
class Answer:
    n: int
    tags: frozenset[str] = frozenset()


work = rx.effect("p/work@1", params=Do, receipt=Answer)


def decide(state: State | None, event: Any, ctx: rx.Context) -> rx.Output[State]:
    was = state or State()
    line = f"{ctx.seq} {type(event).__name__} {ctx.random().randint(0, 99)} {str(ctx.uuid())[:8]}"
    new = State((*was.log, line)[-6:], was.tags, {tag: len(tag) for tag in was.tags})
    match event:
        case Do(what="delete"):
            return rx.delete(events=[Told(event.k, "deleted")])
        case Do(what="fail"):
            raise ValueError("refused")
        case Do(what="timer"):
            return rx.Output(new, effects=[rx.timer(ctx.now_ns + 5_000_000_000, ref="t")])
        case Do(what="tell"):
            return rx.Output(new, events=[Told(event.k, "asked"), Told((event.k + 1) % 4, "asked")])
        case Do(_, _, tags):
            tagged = State(new.log, was.tags | tags, new.by_tag)
            return rx.Output(tagged, effects=[work(event, ref=f"{ctx.seq}:{i}") for i in range(2)])
        case rx.Receipt(status="ok", value=Answer(n=13)):
            raise ValueError("unlucky")
        case rx.Receipt(status="ok", value=Answer(tags=tags)):
            return rx.Output(State(new.log, was.tags | tags, new.by_tag), events=[Told(ctx.key, "answered")])
        case _:
            return rx.Output(None if state is None else new)


def flow(name: str, **more: Any) -> rx.Workflow:
    return rx.workflow(name, state=State, events=[Do], key="k", effects=[work, rx.timer], **more)(decide)


soft = flow("p/soft@1", frames=True, terminal=lambda s: len(s.log) > 4)
hard = flow("p/hard@1", rejected=False)
logged = flow("p/logged@1", determinism="decision_log")


@rx.workflow("p/hear@1", state=State, events=[Told], key="k", effects=[])
def hear(state, event, ctx):
    if len(state.log if state else ()) == 5:
        raise ValueError("enough")
    return rx.Output(State((*(state.log if state else ()), event.by)))


def app() -> rx.App:
    return rx.App("play", [soft, hard, logged, hear])


def act(world: rx.testing.World, rng: random.Random) -> rx.testing.World:
    """One random act; the world to go on with."""
    intents = world.open()
    choice = rng.randrange(12)
    match choice:
        case 0 | 1 | 2 | 3:
            what = rng.choice(("work", "work", "work", "timer", "tell", "delete", "fail"))
            tags = frozenset(rng.sample(["a", "bb", "ccc", "dddd"], rng.randrange(3)))
            submission = f"s{rng.randrange(20)}" if rng.random() < 0.3 else None
            try:
                world.send(Do(rng.randrange(4), what, tags), run=rng.random() < 0.8, submission_id=submission)
            except TreadleError:
                return world
        case 4 | 5 if intents:
            answer = Answer(
                rng.choice((1, 2, 3, 3, 13)), frozenset(rng.sample(["x", "yy"], rng.randrange(3)))
            )
            chosen = rng.choice(intents)
            world.receipt(chosen, "ok", answer if chosen.effect == "p/work@1" else None)
        case 6 if intents:
            chosen = rng.choice(intents)
            rng.choice((world.error, world.timeout))(chosen)
        case 7 if intents:
            world.receipt(rng.choice(intents), "ok", {"wrong": 1})
        case 8 if intents:
            world.frame(rng.choice(intents), "f", {"n": rng.randrange(9)}, seq=rng.choice((None, 1, 2, 5)))
        case 9:
            world.advance(rng.choice(("0s", "3s", "1h")))
        case 10:
            world.snapshot()
        case 11:
            return world.reopen(at=rng.choice((None, None, 0)))
    if rng.random() < 0.2:
        world.receipt(f"{rng.randrange(9)}", "ok", None)
    return world


def play(seed: int, acts: int = 60) -> rx.testing.World:
    rng = random.Random(seed)
    world = rx.testing.World(app(), seed=seed, cell_cache=rng.choice((1, 2, 4096)))
    for _ in range(acts):
        world = act(world, rng)
    return world


def seen(world: rx.testing.World) -> dict[str, Any]:
    """Everything about a world that must not depend on how it was come by."""
    return {
        "cells": {
            w.name: [
                (c.key, c.status, c.size, c.last_active_ns, world.state(w, c.key)) for c in world.cells(w)
            ]
            for w in (soft, hard, logged, hear)
        },
        "open": world.open(),
        "journal": [(r.workflow, r.key, r.seq, r.digest, r.state_digest) for r in world.journal()],
        "diagnostics": world.diagnostics(),
        "roots": world.reopen().snapshot().roots,
    }


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        made = play(number)
        last = [[r.workflow, r.digest] for r in made.journal()]
        print(number, digest([last, made.snapshot().roots]))
