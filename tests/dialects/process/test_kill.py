"""Kill at every wait: a definition that nests if, each, while, fork and child is driven from one wait
boundary to the next; at one of them, or at each of them, the engine goes away and another one takes
over. Result, business state and side effects equal those of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from treadle.engine import Engine
from treadle.testing.driver import START_NS
from treadle.tools.protocol import ToolCall

SUB = """
dialect: process
name: Sub
version: 1.0.0
tasks: {check: {roles: [clerk], payload: {n: {$: start.n}}}}
steps:
  - call: {transport: effect, payload: {sub: {$: start.n}}, into: r}
  - if: {$: start.n > 1}
    then: [{task: check}]
  - complete: {n: {$: start.n}, by: {$: payload.by}}
"""

MAIN = """
dialect: process
name: Main
version: 1.0.0
tasks: {approve: {roles: [clerk], payload: {round: {$: state.round}}}}
steps:
  - set: {state.log: '', state.round: 0}
  - repeat:
      each: item
      in: [1, 2]
      do:
        - if: {$: item == 2}
          then:
            - repeat:
                while: {$: state.round < 2}
                max: 3
                do:
                  - set: {state.round: {$: state.round + 1}}
                  - fork:
                      left:
                        - task: approve
                        - set: {state.left: {$: payload.by}}
                        - call: {transport: effect, payload: {left: {$: state.round}}}
                      right:
                        - wait: 1h
                        - child: {workflow: Sub, input: {n: {$: item}}, into: sub}
                  - set: {state.log: {$: "concat(state.log, item, '/', state.round, '/', result.sub.by, ';')"}}
          else:
            - await: {signal: go, into: go}
            - child: {workflow: Sub, input: {n: 1}, into: one}
        - call: {transport: effect, payload: {item: {$: item}, index: {$: item_index}}, into: e}
  - complete: {log: {$: state.log}, e: {$: result.e}, one: {$: result.one.n}, left: {$: state.left}, go: {$: result.go}}
"""


class Outside:
    """The world around the engine: it survives. Calls stop at a gate until the test lets them go."""

    def __init__(self) -> None:
        self.effects: dict[str, Any] = {}
        self.gate = asyncio.Semaphore(0)
        self.now = START_NS

    def now_ns(self) -> int:
        return self.now

    @asynccontextmanager
    async def engine(self, store: str) -> AsyncIterator[Engine]:
        engine = Engine(store, clock=self)

        @engine.transport("effect")
        async def effect(payload: Any, call: ToolCall) -> Any:
            await self.gate.acquire()
            self.effects[call.idempotency_key] = payload
            return payload

        async with engine:
            yield engine


async def boundary(engine: Engine, seen: str) -> tuple[str, list[tuple[dict[str, Any], str]]]:
    """Waits until the runs are at another place than `seen`; what each of them waits for."""
    before = ""
    async with asyncio.timeout(20):
        with engine.watch("") as watch:
            while True:
                rows = await engine.list(limit=100)
                shown = [await (await engine.run(row["id"])).show() for row in rows]
                mark = str(sorted((d["id"], d["version_no"]) for d in shown))
                if mark != before:
                    # The runs are read one after the other: only what is seen twice was there at once.
                    before = mark
                    continue
                waits = [
                    (wait, d["id"]) for d in shown for wait in d["waiting_for"] if wait["kind"] != "child"
                ]
                if mark != seen and (waits or all(d["status"] == "completed" for d in shown)):
                    return mark, sorted(waits, key=lambda pair: (pair[0]["kind"], pair[1]))
                await watch.changed(poll_s=0.02)


async def answer(outside: Outside, engine: Engine, wait: dict[str, Any], run: str) -> None:
    match wait["kind"]:
        case "call":
            outside.gate.release()
        case "task":
            row = await engine.task(wait["id"])
            await engine.task_complete(
                wait["id"], {"by": f"ann-{row['payload']}"}, user="ann", roles=["admin"]
            )
        case "signal":
            await engine.signal(run, wait["name"], {"n": 1})
        case "timer":
            # Only the time moves: `advance` of the test clock would wait for the calls at the gate.
            outside.now += 3600 * 10**9
            await engine.look(lambda view: None)
        case kind:
            raise AssertionError(kind)


def left_behind(store: str) -> str:
    """A copy of a store in use, write-ahead log and all, as a killed process would leave it."""
    source = Path(store.removeprefix("sqlite:///"))
    target = source.with_name(f"x{source.name}")
    for ending in ("", "-wal", "-key"):
        shutil.copyfile(f"{source}{ending}", f"{target}{ending}")
    assert Path(f"{target}-wal").stat().st_size > 0, "the log was not there: nothing was lost with the engine"
    return f"sqlite:///{target}"


async def drive(store: str, *, kill_at: Any = ()) -> tuple[Any, Any, Any, int]:
    """Drives one run to its end; at the boundaries in `kill_at` the engine is lost. Its successor gets
    the files as they lay there at that instant: what SIGKILL leaves, with nothing closed or tidied."""
    outside, count, seen, started = Outside(), 0, "", False
    while True:
        async with outside.engine(store) as engine:
            if not started:
                for text in (SUB, MAIN):
                    path = Path(store.removeprefix("sqlite:///")).with_suffix(f".{len(text)}.yaml")
                    path.write_text(text)
                    engine.deploy(str(path))
                await engine.start("Main", {}, id="r")
                started = True
            while True:
                seen, waits = await boundary(engine, seen)
                if not waits:
                    run = await engine.run("r")
                    shown = await run.show()
                    for row in await engine.list(limit=100):
                        assert (await engine.replay(row["id"]))["equal"]
                    effects = sorted(
                        json.dumps(effect, sort_keys=True) for effect in outside.effects.values()
                    )
                    return shown["result"], (shown["state"], shown["results"]), effects, count
                count += 1
                if count in kill_at:
                    seen = ""
                    kill_at = [k for k in kill_at if k != count]
                    count -= 1
                    store = left_behind(store)
                    break
                await answer(outside, engine, *waits[0])


@pytest.mark.at_home("kills processes of its own on one file")
async def test_killed_at_every_wait(tmp_path: Path) -> None:
    result, state, effects, boundaries = await drive(f"sqlite:///{tmp_path}/calm.db")
    assert result == {
        "log": "2/1/ann-{'n': 2};2/2/ann-{'n': 2};",
        "e": {"item": 2, "index": 1},
        "one": 1,
        "left": "ann-{'round': 2}",
        "go": {"n": 1},
    }
    assert boundaries >= 14
    assert len(effects) == 7
    for boundary_number in range(1, boundaries + 1):
        killed = await drive(f"sqlite:///{tmp_path}/killed{boundary_number}.db", kill_at=[boundary_number])
        assert killed == (result, state, effects, boundaries), f"killed at boundary {boundary_number}"
    again = await drive(f"sqlite:///{tmp_path}/all.db", kill_at=list(range(1, boundaries + 1)))
    assert again == (result, state, effects, boundaries)


@pytest.mark.parametrize("instant", range(4))
async def test_sigkill_in_the_middle(tmp_path: Path, instant: int) -> None:
    """A real process, killed with SIGKILL after so many records; another one finishes the work."""
    store, effects = f"sqlite:///{tmp_path}/k.db", tmp_path / "effects.txt"
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "EFFECTS": str(effects), "STORE": store, "KILL_AFTER": str(2 + 3 * instant)}
    first = await asyncio.to_thread(nursery.run, [program], env=environment)
    assert first.returncode == -signal.SIGKILL, first.stderr
    environment["KILL_AFTER"] = "0"
    second = await asyncio.to_thread(nursery.run, [program], env=environment)
    assert json.loads(second.stdout) == {"total": 10, "subs": [3, 4]}
    keys = [line.split(" ")[0] for line in effects.read_text().splitlines()]
    assert len(set(keys)) == 6, "each effect under its own key, however often it was tried"


PROGRAM = """
import asyncio, json, os, signal
from treadle.engine import Engine
from treadle.process import process, result, start, state

@process("Leaf", version="1.0.0")
def leaf(p):
    p.call("effect", payload=start.n, into="r")
    p.complete(result.r)

@process("Root", version="1.0.0")
def root(p):
    p.set(state.total, 0)
    with p.each("i", in_=[1, 2, 3, 4]):
        p.call("effect", payload=p.i, into="r")
        p.wait("1ms")
        p.set(state.total, state.total + result.r)
    p.fork(a=lambda p: p.child("Leaf", input={"n": 3}, into="a"), b=lambda p: p.child("Leaf", input={"n": 4}, into="b"))
    p.complete({"total": state.total, "subs": [result.a, result.b]})

async def main():
    engine = Engine(os.environ["STORE"])
    kill_after = int(os.environ["KILL_AFTER"])

    @engine.transport("effect")
    def effect(payload, call):
        with open(os.environ["EFFECTS"], "a") as file:
            file.write(f"{call.idempotency_key} {payload}\\n")
        return payload

    if kill_after:
        count = 0
        def die(event):
            nonlocal count
            count += event["type"] in ("call.done", "timer.fired", "call.started")
            if count >= kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
        engine.observe(die)
    engine.deploy(leaf)
    engine.deploy(root)
    async with engine:
        run = await engine.start("Root", {}, id="r")
        found = await run.result(timeout=50)
        assert (await engine.replay("r"))["equal"]
        print(json.dumps(found))

asyncio.run(main())
"""
