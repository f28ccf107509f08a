"""SIGKILL at random instants, more than two hundred times, over one database.

A nursery process, which has imported everything, forks one engine after another; each does a few
more actions of the plan, works on whatever is open, and is killed at a seeded instant. Tools write
to a witness log and sync it before they return. Then one engine lives on until all is quiet, and what
the journals say is compared with what the clients were told and with what the witness saw. Once more, in short, with
all short ways of the house closed, and with all of them forced (`tests/fast_paths.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fast_paths import WAYS

from treadle.engine import Engine
from treadle.kernel.errors import Unsupported
from treadle.kernel.model import TERMINAL
from treadle.lang.definition import Definition, Dialect
from treadle.lang.graph import Graph
from treadle.runtime.document import replayed
from treadle.runtime.registry import Registry, machines_of
from treadle.store.open import open_sqlite
from treadle.testing.sim.checks import Journals
from treadle.testing.sim.drill_machine import DrillMachine
from treadle.testing.sim.oracle import check_result
from treadle.work.job import Done, Job

KILLS = 220
# With the short ways closed, and with them forced.
KILLS_OF_WAYS = 70
ROOT = Path(__file__).resolve().parents[2]
RUNS = 240
ACTIONS_PER_LIFE = 8
KILL_AFTER_S_MAX = 0.06
DRILL = Definition("drill", "drill", "1.0.0", {"drill": True})


class DrillDialect(Dialect):
    """The simulator's dialect, on a real engine."""

    name = "drill"

    def __init__(self) -> None:
        self.machine = DrillMachine()

    def recognises(self, value: Any) -> bool:
        return False

    def compile(self, document: Any, *, strict: bool = False) -> Any:
        raise Unsupported("a drill has no text")

    def check_input(self, definition: Any, input: Any, options: dict[str, Any]) -> Any:
        return input

    def graph(self, definition: Any, view: dict[str, Any] | None = None) -> Graph:
        return Graph("drill")


class Log:
    """Lines that outlive the process that wrote them; a synced one also outlives the machine."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._sync = sync

    def write(self, *fields: Any) -> None:
        os.write(self._fd, (json.dumps(fields) + "\n").encode())
        if self._sync:
            os.fsync(self._fd)

    @staticmethod
    def read(path: Path) -> list[list[Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def program(number: int) -> dict[str, Any]:
    """Steps, timers, signals, children, retries: each run a little different."""
    child = {"lanes": [[{"do": "work", "value": number}, {"do": "timer", "ms": number % 30}]]}
    return {
        "lanes": [
            [{"do": "work", "value": number}, {"do": "signal", "name": "a"}, {"do": "work", "value": "end"}],
            [{"do": "timer", "ms": number % 50}, {"do": "child", "program": child}],
            [
                {"do": "flaky", "value": "f", "fails": 1, "ms": number % 20},
                {"do": "many", "count": 1 + number % 5},
                {"do": "signal", "name": "b"},
            ],
        ]
    }


def plan() -> list[tuple[str, str, str]]:
    """(kind, run, signal name), in the order in which clients want it."""
    found = []
    for number in range(RUNS):
        found.append(("start", f"run-{number}", ""))
        found += [("signal", f"run-{number}", name) for name in ("a", "b")]
    return found


# --- what runs in the killed processes ---------------------------------------------------------------


def make_engine(folder: Path) -> Engine:
    engine = Engine(f"sqlite:///{folder / 'treadle.db'}")
    witness = Log(folder / "witness.log", sync=True)
    engine.dialects["drill"] = DrillDialect()

    async def perform(job: Job) -> Done:
        params = job.intent.params
        witness.write(job.idempotency_key, job.run, job.intent.id)
        if params["name"] == "flaky" and params["try"] < params["fails"]:
            return Done(status="error", error={"class": "transport", "code": "FLAKY", "message": "again"})
        return Done(value=params["value"])

    engine.worker.register("work", perform)
    engine.deploy(DRILL)
    return engine


async def act(engine: Engine, kind: str, run: str, name: str) -> None:
    if kind == "start":
        await engine.start("drill", program(int(run.split("-")[1])), id=run)
    else:
        await engine.signal(run, name, {"token": f"{run}/{name}"}, key=name)


async def live(folder: Path, actions: int, ready: int) -> None:
    """Does some of the plan's next actions, then works until it is killed."""
    acked = Log(folder / "acked.log", sync=False)
    known = {tuple(line) for line in Log.read(folder / "acked.log")}
    async with make_engine(folder) as engine:
        os.write(ready, b"!")
        for action in [action for action in plan() if action not in known][:actions]:
            await act(engine, *action)
            acked.write(*action)
            os.write(ready, b"!")
        os.write(ready, b"!" * actions)  # there may have been fewer than are waited for
        await asyncio.Event().wait()


def nursery(folder: Path, seed: int, kills: int) -> None:
    """Forks one life after another, and ends each at a random instant: of its birth, of its work, or (so that a
    slow machine tests as much as a fast one) after it has been told of some actions."""
    chance = random.Random(seed)
    for number in range(kills):
        heard, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(heard)
            asyncio.run(live(folder, ACTIONS_PER_LIFE, ready))
            os._exit(3)
        os.close(ready)
        told = (0, 1, 1 + chance.randint(1, 4))[number % 3]  # that it has opened, and of actions
        while told:
            told -= len(os.read(heard, told)) or told
        time.sleep(chance.uniform(0, KILL_AFTER_S_MAX))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(heard)
        if not os.WIFSIGNALED(status):
            sys.exit(f"a life ended by itself: {status}")


async def until_quiet(folder: Path) -> None:
    """The last life: nobody kills it, and it does all that is left."""
    known = {tuple(line) for line in Log.read(folder / "acked.log")}
    async with make_engine(folder) as engine:
        for action in plan():
            if action not in known:
                await act(engine, *action)
        async with asyncio.timeout(120):
            for number in range(RUNS):
                await (await engine.run(f"run-{number}")).result()


# --- the test ---------------------------------------------------------------------------------------------


def test_nothing_acknowledged_is_lost_and_nothing_is_settled_twice(tmp_path: Path) -> None:
    killed_and_looked_at(tmp_path, KILLS, "usual")


@pytest.mark.parametrize("ways", WAYS)
def test_no_promise_depends_on_a_short_way(tmp_path: Path, ways: str) -> None:
    with WAYS[ways]():
        killed_and_looked_at(tmp_path, KILLS_OF_WAYS, ways)


def killed_and_looked_at(tmp_path: Path, kills: int, ways: str) -> None:
    program = [sys.executable, "-m", "tests.integration.test_sigkill"]
    nursed = subprocess.run(
        [*program, str(tmp_path), "20261115", str(kills), ways], capture_output=True, cwd=ROOT
    )
    assert nursed.returncode == 0, nursed.stderr.decode()
    before = acknowledged_so_far(tmp_path, kills)
    asyncio.run(until_quiet(tmp_path))

    connection = sqlite3.connect(tmp_path / "treadle.db")
    journals = Journals(SimpleNamespace(live=connection))  # type: ignore[arg-type]
    journals.clock_max_ns = time.time_ns()
    journals.advance()  # chained and gapless, opened once, settled once, no timer early
    assert before <= len(Log.read(tmp_path / "acked.log"))
    check_acknowledged(journals, tmp_path)
    check_ends(journals)
    check_witness(journals, tmp_path)
    connection.close()
    check_replay(tmp_path)


def acknowledged_so_far(folder: Path, kills: int) -> int:
    """Enough happened in the killed lives for this to be a test."""
    acked = Log.read(folder / "acked.log")
    assert len(acked) >= 0.45 * kills, f"only {len(acked)} actions were acknowledged in {kills} lives"
    assert Log.read(folder / "witness.log"), "no tool ran in a killed life"
    return len(acked)


def check_acknowledged(journals: Journals, folder: Path) -> None:
    by_id = {life.id: life for life in journals.lives.values()}
    for kind, run, name in Log.read(folder / "acked.log"):
        assert run in by_id, f"{run} was acknowledged and is gone"
        if kind == "signal":
            tokens = [r["event"].get("data") for r in by_id[run].records if r["kind"] == "signal"]
            assert tokens.count({"token": f"{run}/{name}"}) == 1, f"{run}: signal {name}: {tokens}"


def check_ends(journals: Journals) -> None:
    assert len(journals.lives) == 2 * RUNS, "every run has one child"
    for life in journals.lives.values():
        assert life.status == "completed", f"{life.id} is {life.status}: {life.records[-1].get('error')}"
        assert life.status in TERMINAL
        if "." not in life.id:
            check_result(program(int(life.id.split("-")[1])), life.records[-1]["result"], life.id)


def check_witness(journals: Journals, folder: Path) -> None:
    """What tools did and what journals say: nothing settled that was not done, nothing done that was
    not durable, and every attempt at an intent under one key."""
    witness = Log.read(folder / "witness.log")
    done: dict[str, set[str]] = {}
    for key, run, intent in witness:
        assert intent in journals.opened, f"{run}: a tool ran for {intent}, which no journal knows"
        done.setdefault(intent, set()).add(key)
    assert all(len(keys) == 1 for keys in done.values())
    for intent, (run, opened) in journals.opened.items():
        if opened["kind"] == "work" and intent in journals.settled:
            assert intent in done, f"{run}: {intent} is settled and no tool ran"
    repeated = len(witness) - len(done)
    assert repeated > 0, "no work was interrupted: the kills came at the wrong instants"


def check_replay(folder: Path) -> None:
    store = open_sqlite(folder / "treadle.db")
    registry = Registry(machines_of({"drill": DrillMachine()}), store)
    for row in store.runs(limit=10_000):
        assert replayed(store, registry, row.id) == {"id": row.id, "equal": True}
    assert store.inbox(1) == []
    assert store.check() == []
    store.close()


if __name__ == "__main__":
    with WAYS.get(sys.argv[4], nullcontext)():
        nursery(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
