"""SIGKILL of owners and guests: three processes on one store, all four dialects, and anyone may ask.

A nursery, which has imported everything, keeps three engines alive: one owns the store, the others are its
guests and take over. All of them do the next actions of one plan (starts, signals, completions, patches,
retries, cancels, events, and some that must be refused), and write down what they asked and what they were
told. At seeded instants one of them is killed, the owner as often as not. Then one engine lives on until all
is quiet, and what everybody was told is compared with what the journals say.

`make kills` does it two hundred times; the suite does it twenty times.
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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from treadle import Engine
from treadle import reactive as rx
from treadle.host.acting import Origin, acting
from treadle.kernel.errors import EngineStopped, TreadleError
from treadle.kernel.model import TERMINAL
from treadle.store.open import open_sqlite
from treadle.store.owner import OwnerLock
from treadle.testing.sim.checks import Journals, RunLife

KILLS = int(os.environ.get("TREADLE_KILLS", "20"))
SEED = int(os.environ.get("TREADLE_KILLS_SEED", "20261115"))
MEMBERS = 3
RUNS = max(30, KILLS)
KILL_AFTER_S_MAX = 0.08
DEADLINE_S = 120.0
NEVER = 10**6  # a version that no run has

FLOWS = {
    "ask.yaml": """
dialect: process
name: Ask
tasks: {approve: {roles: [clerk]}}
steps: [{task: approve}, {await: {signal: go, into: told}}, {complete: {answer: {$: payload.answer}}}]
""",
    "stall.yaml": """
dialect: process
name: Stall
steps: [{call: {transport: broken, into: r}}, {complete: {$: result.r}}]
""",
    "gate.yaml": """
metadata: {name: gate}
workflow:
  - step: first
    tool: {kind: noop, result: 1}
    next: {arcs: [{step: gate}]}
  - step: gate
    spec: {policy: {admit: {rules: [{when: "{{ ctx.open }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}}
    tool: {kind: noop, result: "{{ first }}"}
""",
    "drop.yaml": """
metadata: {name: drop}
workflow: [{step: wait, tool: {kind: await, signal: go}}]
""",
    "talk.json": json.dumps(
        {
            "id": "talk",
            "name": "talk",
            "entry": "a",
            "nodes": {
                "a": {"name": "A", "instruction": "Do a."},
                "b": {"name": "B", "instruction": "Do b."},
            },
            "edges": [{"from": "a", "to": "b"}],
        }
    ),
    "script.json": json.dumps({"run": {"a": [{"data": {"n": 1}}], "b": [{"data": {"m": 2}}]}}),
}
# What is asked of a run, in this order; what a run of each kind ends as.
STEPS = {
    "Ask": ("start", "signal wrong", "patch", "complete wrong", "complete", "signal"),
    "Stall": ("start", "retry"),
    "gate": ("start", "patch"),
    "drop": ("start", "cancel"),
    "talk": ("start",),
    "two": ("publish", "publish wrong", "approve wrong"),
}
ENDS = {name: "cancelled" if name == "drop" else "completed" for name in STEPS}
# What is refused, with what code; to a run that has ended meanwhile it may also come too late.
REFUSED = {
    "signal wrong": "VERSION_MISMATCH",
    "complete wrong": "VERSION_MISMATCH",
    "publish wrong": "STEP_FAILED",
    "approve wrong": "PROPOSAL_REFUSED",
}


@rx.schema("com.kills/Said@1")
@dataclass(frozen=True, slots=True)
class Said:
    id: str
    text: str


@rx.schema("com.kills/Heard@1")
@dataclass(frozen=True, slots=True)
class Heard:
    id: str
    texts: tuple[str, ...]


def application() -> rx.App:
    def heard(state: Heard | None, event: Any, ctx: rx.Context) -> rx.Output[Heard]:
        if event.text == "wrong":
            raise ValueError("not this")
        return rx.Output(Heard(event.id, (*(state.texts if state else ()), event.text)))

    one = rx.workflow("com.kills/one@1", state=Heard, events=[Said], key="id", effects=[])(heard)
    other = rx.workflow("com.kills/other@1", state=Heard, events=[Said], key="id", effects=[])(heard)
    return rx.App("kills", [one, other])


class Log:
    """Lines that outlive the process that wrote them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *fields: Any) -> None:
        os.write(self._fd, (json.dumps(fields) + "\n").encode())

    def read(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


def plan() -> dict[str, str]:
    """The runs, and of what workflow each is."""
    names = list(STEPS)
    return {f"run-{number}": names[number % len(names)] for number in range(RUNS)}


def due(log: Log) -> list[tuple[str, str]]:
    """What can be asked next: of each run the first step that nobody was answered yet."""
    answered = {(run, step) for what, run, step, *_ in log.read() if what not in ("asked", "again")}
    found = []
    for run, workflow in plan().items():
        left = [step for step in STEPS[workflow] if (run, step) not in answered]
        found += [(run, left[0])] if left else []
    return found


# --- what runs in the killed processes ---------------------------------------------------------------


def make_engine(folder: Path) -> Engine:
    engine = Engine(f"sqlite:///{folder / 't.db'}")

    @engine.transport("broken")
    def broken() -> None:
        raise ValueError("never")

    engine.load(application())
    return engine


async def deploy(folder: Path) -> None:
    for name, text in FLOWS.items():
        (folder / name).write_text(text)
    engine = make_engine(folder)
    for name in FLOWS:
        if name != "script.json":
            engine.deploy(str(folder / name))
    engine.deploy(application())
    async with engine:
        await engine.publish(Said("first", "right"))  # the application comes to life


async def act(engine: Engine, folder: Path, run: str, step: str, who: str) -> Any:
    workflow = plan()[run]
    match step:
        case "start":
            model = f"scripted:{folder / 'script.json'}" if workflow == "talk" else None
            # Some bring a payload that is kept in a file.
            given = {"large": run * 20_000} if workflow == "drop" else None
            return await engine.start(workflow, given, id=run, model=model)
        case "signal":
            return await engine.signal(run, "go", {"token": run}, key="once")
        case "signal wrong":
            return await engine.signal(run, "go", {"token": "wrong"}, expected_version=NEVER)
        case "patch":
            return await engine.patch(run, {"open": True, "by": who})
        case "retry":
            return await engine.retry(run, skip={"by": who})
        case "cancel":
            return await engine.cancel(run, who)
        case "publish":
            return await engine.publish(Said(run, "right"), submission_id=run)
        case "publish wrong":
            return await engine.publish(Said(run, "wrong"))
        case "approve wrong":
            return await engine.approve(99, app="kills")
    (task,) = await engine.tasks(run=run, status=("open", "claimed", "completed"))
    version = NEVER if step == "complete wrong" else None
    data = {"answer": "wrong" if version else "yes"}
    return await engine.task_complete(task["id"], data, user=who, roles=["admin"], expected_version=version)


async def ask(engine: Engine, folder: Path, log: Log, run: str, step: str, who: str) -> None:
    """Asks, and writes down what was asked and what was told."""
    request = os.urandom(8).hex()
    log.write("asked", run, step, who, request)
    try:
        with acting(Origin(who, request=request)):
            answer = await act(engine, folder, run, step, who)
    except TreadleError as error:
        if isinstance(error, EngineStopped):
            return
        # It cannot be retried before it has stalled: that is asked again. What was done by somebody who was
        # killed before he was told comes too late.
        other = "stale" if error.code == "RUN_ENDED" else "again"
        log.write("refused" if step in REFUSED else other, run, step, who, error.code)
        return
    stale = isinstance(answer, dict) and bool(answer.get("stale") or answer.get("duplicate"))
    log.write("stale" if stale else "ok", run, step, who, request)


async def live(folder: Path, who: str) -> None:
    log, chance = Log(folder / "acts.log"), random.Random(who)
    async with make_engine(folder) as engine:
        while True:
            todo = due(log)[: 4 * MEMBERS]
            some = chance.sample(todo, min(len(todo), 4))
            await asyncio.gather(*(ask(engine, folder, log, run, step, who) for run, step in some))
            await asyncio.sleep(0.01)


def born(folder: Path, who: str) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(live(folder, who))
        except BaseException as error:
            Log(folder / "died.log").write(who, repr(error))
        os._exit(3)
    return pid


def nursery(folder: Path, seed: int, kills: int) -> None:
    """Keeps three alive and kills one after another: at any instant, or (so that a slow machine tests as
    much as a fast one) soon after somebody was told something."""
    chance, log = random.Random(seed), Log(folder / "acts.log")
    lock = OwnerLock(folder / "t.db")
    numbers = iter(range(kills + MEMBERS))
    alive = [born(folder, f"life-{next(numbers)}") for _ in range(MEMBERS)]
    owners = 0
    for number in range(kills):
        if number % 3:
            wait_for_answer(log)
        time.sleep(chance.uniform(0, KILL_AFTER_S_MAX))
        owner = lock.holder()
        pid = owner if owner in alive and chance.random() < 0.5 else chance.choice(alive)
        assert pid is not None
        owners += pid == owner
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"a life ended by itself: {(folder / 'died.log').read_text()}")
        alive[alive.index(pid)] = born(folder, f"life-{next(numbers)}")
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    print(json.dumps({"owners": owners, "guests": kills - owners}))


def wait_for_answer(log: Log) -> None:
    def answers() -> int:
        return sum(line[0] != "asked" for line in log.read())

    before, until = answers(), time.monotonic() + DEADLINE_S
    while answers() == before and due(log):
        assert time.monotonic() < until, "nobody is told anything any more"
        time.sleep(0.005)


async def until_quiet(folder: Path, log: Log) -> None:
    """The last life: nobody kills it, and it does all that is left."""
    async with asyncio.timeout(DEADLINE_S), make_engine(folder) as engine:
        while todo := due(log):
            for run, step in todo:
                await ask(engine, folder, log, run, step, "last")
        for run, workflow in plan().items():
            if workflow != "two":
                shown = await (await engine.run(run)).settled()
                assert shown["status"] == ENDS[workflow], f"{run} is {shown['status']}: {shown['error']}"
        for row in await engine.list(limit=10_000):
            assert (await engine.replay(row["id"]))["equal"], row["id"]
        found = await engine.doctor(deep=True)
        assert found["ok"], found


# --- the test ---------------------------------------------------------------------------------------------


def test_what_anybody_was_told_is_so_whoever_was_killed(tmp_path: Path) -> None:
    asyncio.run(deploy(tmp_path))
    log = Log(tmp_path / "acts.log")
    command = [sys.executable, __file__, str(tmp_path), str(SEED), str(KILLS)]
    nursed = subprocess.run(command, capture_output=True, text=True)
    assert nursed.returncode == 0, nursed.stderr
    killed, told = json.loads(nursed.stdout), Counter(line[0] for line in log.read())
    asyncio.run(until_quiet(tmp_path, log))

    assert killed["owners"] >= KILLS // 5, killed
    assert killed["guests"] >= KILLS // 5, killed
    assert told["ok"] + told["refused"] >= KILLS // 2, f"in the killed lives only {told}"
    connection = sqlite3.connect(tmp_path / "t.db")
    journals = Journals(SimpleNamespace(live=connection))  # type: ignore[arg-type]
    journals.clock_max_ns = time.time_ns()
    journals.advance()  # chained and gapless, opened once, settled once, no message answered and still there
    check_told(journals, log)
    check_audit(connection, journals, log)
    connection.close()
    check_left(tmp_path)
    print(f"\n{KILLS} kills {killed}; told in the killed lives: {dict(told)}")


def check_told(journals: Journals, log: Log) -> None:
    lives = {life.id: life for life in journals.lives.values()}
    lines = log.read()
    asked = Counter((run, step, who) for what, run, step, who, *_ in lines if what == "asked")
    for what, run, step, who, *code in lines:
        where = f"{run}: {step} of {who} was told {what} {code}"
        if step in REFUSED:
            assert what in ("asked", "refused", "stale"), where
            assert what != "refused" or code == [REFUSED[step]], where
        elif what == "ok":
            found = len(list(records(lives, run, step, who)))
            once = 1 if step in ("start", "signal", "publish", "complete") else asked[run, step, who]
            assert 1 <= found <= once, f"{where}; it is there {found} times"
    for life in journals.lives.values():
        endless = life.id.startswith(("kills", "com.kills/"))
        assert endless or life.status in TERMINAL, f"{life.id} is {life.status}"
        for record in life.records:
            assert "wrong" not in json.dumps(record["event"], default=str), f"{life.id}: refused, and there"


def records(lives: dict[str, RunLife], run: str, step: str, who: str) -> Iterator[dict[str, Any]]:
    """The records that are about an action. Who did it is in them, where doing it again would be another."""
    if step == "publish":
        for name in ("one", "other"):
            life = lives.get(f"com.kills/{name}@1/{run}")
            assert life is not None, f"{run}: {name} did not hear of it"
            assert len(life.records) == 1, f"{life.id}: {len(life.records)} records"
        yield {}
        return
    assert run in lives, f"{run} was acknowledged, and is not there"
    for record in lives[run].records:
        event = record["event"]
        match step:
            case "start" if record["kind"] == "started":
                yield record
            case "signal" if record["kind"] == "signal" and event.get("data") == {"token": run}:
                yield record
            case "complete" if event.get("by") == who and event.get("value") == {"answer": "yes"}:
                yield record
            case "patch" if record["kind"] == "patch" and event["data"]["by"] == who:
                yield record
            case "retry" if record["kind"] == "retry" and event["how"] == {"skip": {"by": who}}:
                yield record
            case "cancel" if record["kind"] == "cancel" and event["reason"] == who:
                yield record


def check_audit(connection: sqlite3.Connection, journals: Journals, log: Log) -> None:
    """Who did what is told with what was done: once, and of what is there."""
    rows = connection.execute(
        "SELECT request, status, action, target FROM audit WHERE request != ''"
    ).fetchall()
    # What one asks for may be several changes: an event is published to several cells.
    twice = [row for row, count in Counter(rows).items() if count > 1]
    assert not twice, f"{twice} are in the audit twice"
    lines = {request: status for request, status, *_ in rows}
    lives = {life.id: life for life in journals.lives.values()}
    assert "ok" in lines.values()
    asked = log.read()
    published = {run for _, run, step, _, *more in asked if step == "publish" and lines.get(more[0]) == "ok"}
    for what, run, step, who, *more in asked:
        if what == "ok":
            # Who publishes the same event again is told what came of it the first time.
            done = lines.get(more[0]) == "ok" or (step == "publish" and run in published)
            assert done, f"{run}: {step} of {who} is not in the audit"
        elif what == "asked" and lines.get(more[0]) == "ok":
            assert list(records(lives, run, step, who)), (
                f"{run}: {step} of {who} is in the audit, and was not done"
            )


def check_left(folder: Path) -> None:
    store = open_sqlite(folder / "t.db")
    assert store.inbox(1) == []
    assert store.timer_next() is None
    assert store.tasks(status=("open", "claimed")) == []
    assert store.check() == []
    store.close()


if __name__ == "__main__":
    nursery(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
