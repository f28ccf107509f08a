"""A guest gets the owner's own answers: the result, `stale`, the refusal. Each is a row, written by the commit
that decided, so what was acknowledged outlives the owner, and nothing is concluded from a row that is missing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from treadle import Engine
from treadle import reactive as rx
from treadle.kernel.errors import RunExists, RunNotFound, TreadleError, VersionMismatch
from treadle.kernel.limits import DIAGNOSTICS_PER_RUN_MAX, VALUE_DEPTH_MAX
from treadle.kernel.model import Started
from treadle.lang.definition import Definition
from treadle.runtime.commands import Deliver, message_to_bytes
from treadle.runtime.ports import NewRun
from treadle.store.open import open_sqlite, read_sqlite
from treadle.testing import VirtualClock, toy

DEADLINE_S = 30.0
ASK = """
dialect: process
name: Ask
tasks:
  approve: {roles: [clerk]}
steps:
  - task: approve
  - await: {signal: go, into: told}
  - complete: {answer: {$: payload.answer}, told: {$: result.told}}
"""
BIG = """
dialect: process
name: Big
steps:
  - await: {signal: go}
  - complete: {$: length(start.text)}
"""
OWNER = """
import asyncio, sys
from treadle import Engine
async def main():
    async with Engine(sys.argv[1]):
        print("up", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


# --- an application whose cells may refuse ---------------------------------------------------------------


@rx.schema("com.two/Said@1")
@dataclass(frozen=True, slots=True)
class Said:
    id: str
    text: str


@rx.schema("com.two/Heard@1")
@dataclass(frozen=True, slots=True)
class Heard:
    id: str
    text: str


def application(version: int = 1) -> rx.App:
    @rx.workflow("com.two/left@1", state=Heard, events=[Said], key="id", effects=[])
    def left(state: Heard | None, event: Any, ctx: rx.Context) -> rx.Output[Heard]:
        if event.text == "left says no":
            raise ValueError(event.text)
        return rx.Output(Heard(event.id, event.text * version))

    @rx.workflow("com.two/right@1", state=Heard, events=[Said], key="id", effects=[])
    def right(state: Heard | None, event: Any, ctx: rx.Context) -> rx.Output[Heard]:
        if event.text.endswith("says no"):
            raise ValueError(f"right: {event.text}")
        return rx.Output(Heard(event.id, event.text))

    return rx.App("two", [left, right])


async def until(what: Callable[[], bool]) -> None:
    """Waits for a condition; the deadline is generous, because it only matters when all is lost."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if what():
                return
            await asyncio.sleep(0.01)


# --- the same call, the same answer ------------------------------------------------------------------------


def prepared(path: Path, clock: VirtualClock) -> Engine:
    engine = clock.engine(f"sqlite:///{path / 't.db'}")
    toy.install(engine)
    (path / "ask.yaml").write_text(ASK)
    return engine


@asynccontextmanager
async def asker(path: Path, *, guest: bool) -> AsyncIterator[Engine]:
    """An engine that owns a new store, or is the guest of one that does."""
    path.mkdir()
    clock = VirtualClock()
    one = prepared(path, clock)
    one.deploy(toy.TOY)
    one.deploy(str(path / "ask.yaml"))
    one.deploy(application())
    one.load(application(2))
    async with one:
        if not guest:
            yield one
            return
        other = prepared(path, clock)
        other.load(application())
        other.load(application(2))
        async with other:
            assert not other.owns
            yield other


async def said(call: Awaitable[Any]) -> Any:
    """An answer as a value: also of which kind a refusal is."""
    try:
        found = await call
    except TreadleError as error:
        return type(error).__name__, error.to_value()
    return (found.id, found.existing) if hasattr(found, "existing") else found


async def answers(engine: Engine) -> dict[str, Any]:
    """One of everything that can be asked of an engine, and what it says."""
    found: dict[str, Any] = {}

    async def ask(what: str, call: Awaitable[Any]) -> None:
        found[what] = await said(call)

    await ask("start", engine.start("toy", {"do": ["signal:go", "signal:go"]}, id="r"))
    await ask("start again", engine.start("toy", {"do": ["signal:go", "signal:go"]}, id="r"))
    await ask("start another", engine.start("toy", {"do": ["work"]}, id="r"))
    await ask("signal with a wrong version", engine.signal("r", "go", 1, expected_version=9))
    await ask("signal with the right version", engine.signal("r", "go", 1, expected_version=1, key="k"))
    await ask("signal with the same key", engine.signal("r", "go", 1, key="k"))
    await ask("patch of a toy", engine.patch("r", {"a": 1}))
    await ask("retry of what goes on", engine.retry("r"))
    await ask("signal", engine.signal("r", "go", 2))
    await ask("late signal", engine.signal("r", "go", 3))
    await ask("late cancel", engine.cancel("r"))
    await ask("signal to nobody", engine.signal("nobody", "go"))
    await ask("start to cancel", engine.start("toy", {"do": ["signal:go"]}, id="c"))
    await ask("cancel", engine.cancel("c", "enough"))
    await ask("patch of what has ended", engine.patch("c", {"a": 1}))
    await odd_values(engine, ask)
    await tasks_of(engine, ask)
    await definitions_of(engine, ask)
    await applications_of(engine, ask)
    return found


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


async def odd_values(engine: Engine, ask: Callable[[str, Awaitable[Any]], Awaitable[None]]) -> None:
    """What one codec takes and another would not is judged where it is handed in, so by all alike."""
    most = VALUE_DEPTH_MAX - 2
    await ask(
        "start, nested as deep as may be",
        engine.start("toy", {"do": ["signal:go"], "x": nested(most)}, id="d"),
    )
    await ask("start, nested too deep", engine.start("toy", {"do": [], "x": nested(most + 10)}, id="e"))
    await ask("signal, nested too deep", engine.signal("d", "go", nested(VALUE_DEPTH_MAX + 1)))
    await ask("patch, nested too deep", engine.patch("d", {"x": nested(VALUE_DEPTH_MAX)}))
    await ask("start, half a character", engine.start("toy", {"do": []}, id="caf\udce9"))
    await ask("signal, nested as deep as may be", engine.signal("d", "go", nested(VALUE_DEPTH_MAX)))


Ask = Callable[[str, Awaitable[Any]], Awaitable[None]]


async def tasks_of(engine: Engine, ask: Ask) -> None:
    await ask("start Ask", engine.start("Ask", None, id="t"))
    await ask("patch", engine.patch("t", {"a": 1}))
    (task,) = await engine.tasks()
    id, ann, bob = task["id"], {"user": "ann", "roles": ["clerk"]}, {"user": "bob", "roles": ["clerk"]}
    await ask("claim without the role", engine.task_claim(id, user="eve"))
    await ask("claim", engine.task_claim(id, **ann))
    await ask("claim of another's", engine.task_claim(id, **bob))
    await ask("comment", engine.task_comment(id, text="hm", **ann))
    await ask("release", engine.task_release(id, **ann))
    await ask("claim again", engine.task_claim(id, **ann))
    await ask("assign", engine.task_assign(id, to="bob", **ann))
    await ask("complete another's", engine.task_complete(id, {"answer": "yes"}, **ann))
    await ask(
        "complete, wrong version", engine.task_complete(id, {"answer": "x"}, expected_version=99, **bob)
    )
    await ask("complete", engine.task_complete(id, {"answer": "yes"}, **bob))
    await ask("complete late", engine.task_complete(id, {"answer": "no"}, **bob))
    await ask("claim late", engine.task_claim(id, **ann))
    await ask("no such task", engine.task_claim("no such task", **ann))


async def definitions_of(engine: Engine, ask: Ask) -> None:
    async def deploy(definition: Definition) -> list[str]:
        return [one.digest for one in await asyncio.to_thread(engine.deploy, definition)]

    await ask("deploy", deploy(Definition("toy", "other", "1", {"toy": 2})))
    await ask("deploy other content", deploy(Definition("toy", "other", "1", {"toy": 3})))


async def applications_of(engine: Engine, ask: Ask) -> None:
    await ask("publish", engine.publish(Said("a", "hello")))
    await ask("publish once", engine.publish(Said("b", "hello"), submission_id="s"))
    await ask("publish again", engine.publish(Said("b", "hello"), submission_id="s"))
    await ask("publish, one refuses", engine.publish(Said("c", "right says no")))
    await ask("publish, both refuse", engine.publish(Said("c", "left says no")))
    await ask("publish what is none", engine.publish("com.two/Said@1", {"id": 1}))
    await ask("propose", engine.propose(application(2)))
    await ask("apply what is not approved", engine.apply(1))
    await ask("approve what is not there", engine.approve(99))
    await ask("reject what is not there", engine.reject(99))
    await ask("approve", engine.approve(1))
    await ask("apply", engine.apply(1))
    await ask("reject what is applied", engine.reject(1))


async def test_the_same_call_gives_the_same_answer_in_the_owner_and_in_a_guest(tmp_path: Path) -> None:
    told: dict[bool, dict[str, Any]] = {}
    for guest in (False, True):
        async with asker(tmp_path / str(guest), guest=guest) as engine:
            told[guest] = await answers(engine)
            for row in await engine.list(limit=100):
                assert (await engine.replay(row["id"]))["equal"], row["id"]
    for what, answer in told[False].items():
        assert told[True][what] == answer, what
    refused = {what: answer[1]["code"] for what, answer in told[True].items() if is_refusal(answer)}
    assert refused["signal with a wrong version"] == "VERSION_MISMATCH"
    assert refused["approve what is not there"] == "PROPOSAL_REFUSED"
    for what in ("start, nested too deep", "signal, nested too deep", "patch, nested too deep"):
        assert refused[what] == "VALUE_REFUSED"
    assert refused["start, half a character"] == "VALUE_REFUSED"
    assert told[True]["start, nested as deep as may be"] == ("d", False)
    assert not is_refusal(told[True]["signal, nested as deep as may be"])
    assert told[True]["start again"] == ("r", True)
    assert all(told[True][what]["stale"] for what in ("late signal", "late cancel", "complete late"))


def is_refusal(answer: Any) -> bool:
    return isinstance(answer, tuple) and isinstance(answer[1], dict)


async def test_a_guest_can_catch_a_refusal_by_its_kind(tmp_path: Path) -> None:
    async with asker(tmp_path / "s", guest=True) as guest:
        with pytest.raises(RunNotFound):
            await guest.signal("nobody", "go")
        await guest.start("toy", {"do": ["signal:go"]}, id="r")
        with pytest.raises(VersionMismatch) as found:
            await guest.signal("r", "go", expected_version=9)
        assert found.value.details == {"expected": 9, "found": 1}


async def test_each_of_more_refusals_than_the_diagnostics_keep_is_told(tmp_path: Path) -> None:
    async with asker(tmp_path / "s", guest=True) as guest:
        many = DIAGNOSTICS_PER_RUN_MAX + 200
        codes: Counter[str] = Counter()
        for call in await asyncio.gather(
            *(said(guest.signal("no-such-run", "x", n)) for n in range(many)),
            *(said(guest.task_comment(f"no-such-{n}", text="x", user="ann")) for n in range(many)),
        ):
            codes[call[1]["code"]] += 1
        assert codes == {"RUN_NOT_FOUND": many, "TASK_NOT_FOUND": many}


async def test_an_answer_that_was_read_leaves_no_row(tmp_path: Path) -> None:
    async with asker(tmp_path / "s", guest=True) as guest:
        await guest.start("toy", {"do": ["signal:go"]}, id="r")
        await asyncio.gather(*(said(guest.signal("nobody", "go")) for _ in range(20)))
        reads = read_sqlite(tmp_path / "s" / "t.db")
        await until(lambda: not dict(reads.counts())["replies"])
        reads.close()


async def test_an_answer_comes_soon_after_the_decision(tmp_path: Path) -> None:
    """Two polls: the owner's for the message, the guest's for the answer. The best of some counts: this
    machine may be busy, and a way that took longer would always take longer."""
    async with asker(tmp_path / "s", guest=True) as guest:
        took = []
        for _ in range(20):
            began = time.monotonic()
            await said(guest.signal("nobody", "go"))
            took.append(time.monotonic() - began)
        assert min(took) < 0.1, took


# --- the owner dies ------------------------------------------------------------------------------------------


def begin(url: str) -> nursery.Process:
    return nursery.Process(["-c", OWNER, url], stdout=nursery.PIPE)


@asynccontextmanager
async def another_owner(url: str) -> AsyncIterator[nursery.Process]:
    process = begin(url)
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "up\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_completions_that_were_acknowledged_outlive_the_owner(tmp_path: Path) -> None:
    """Many are under way when it is killed; what was told before that is there."""
    url = f"sqlite:///{tmp_path / 't.db'}"
    (tmp_path / "ask.yaml").write_text(ASK)
    engine = Engine(url)
    engine.deploy(str(tmp_path / "ask.yaml"))
    async with engine:
        for number in range(60):
            await engine.start("Ask", None, id=f"r{number}")
        for task in await engine.tasks(limit=1000):
            await engine.task_claim(task["id"], user="ann", roles=["clerk"])
    acked: list[str] = []
    async with another_owner(url) as owner, Engine(url, work=False) as guest:
        assert not guest.owns
        first = asyncio.Event()

        async def complete(id: str) -> None:
            await guest.task_complete(id, {"answer": "yes"}, user="ann")
            acked.append(id)
            first.set()

        jobs = [asyncio.ensure_future(complete(task["id"])) for task in await guest.tasks(limit=1000)]
        async with asyncio.timeout(DEADLINE_S):
            await first.wait()
        os.kill(owner.pid, signal.SIGKILL)
        told = list(acked)
        for job in jobs:
            job.cancel()
    reads = read_sqlite(tmp_path / "t.db")
    lost = [id for id in told if (row := reads.task(id)) is None or row.status != "completed"]
    reads.close()
    assert told
    assert lost == []
    async with Engine(url) as engine:
        for number in range(60):
            assert (await engine.replay(f"r{number}"))["equal"]


@pytest.mark.parametrize("kib", [10, 100])
async def test_the_same_id_and_input_is_the_same_run_whatever_its_size_and_whoever_asks(
    tmp_path: Path, kib: int
) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    (tmp_path / "big.yaml").write_text(BIG)
    given = {"text": "x" * kib * 1024}
    deploying = Engine(url)
    deploying.deploy(str(tmp_path / "big.yaml"))
    async with deploying:
        pass
    async with another_owner(url) as owner, Engine(url) as engine:
        assert not engine.owns
        found = [await engine.start("Big", given, id="one"), await engine.start("Big", given, id="one")]
        os.kill(owner.pid, signal.SIGKILL)
        await until(lambda: engine.owns)
        found.append(await engine.start("Big", given, id="one"))
        assert [run.existing for run in found] == [False, True, True]
        with pytest.raises(RunExists):
            await engine.start("Big", {"text": "y"}, id="one")
        await engine.signal("one", "go")
        assert await found[0].result(timeout=DEADLINE_S) == kib * 1024
        assert (await engine.replay("one"))["equal"]


async def test_a_start_of_0_1_0_that_came_inline_is_still_the_same_run(tmp_path: Path) -> None:
    """A guest of 0.1.0 sent a large input as it was; its run holds it so."""
    url = f"sqlite:///{tmp_path / 't.db'}"
    (tmp_path / "big.yaml").write_text(BIG)
    given = {"text": "x" * 100 * 1024}
    engine = Engine(url)
    (definition,) = engine.deploy(str(tmp_path / "big.yaml"))
    async with engine:
        row = await engine.definition("Big")
    started = Started(definition=definition.digest, input=given, seed=b"s" * 16)
    create = NewRun(row.dialect, row.name, row.version, row.digest)
    store = open_sqlite(tmp_path / "t.db")
    store.post([("guest:1", message_to_bytes(Deliver("one", started, create=create)))])
    store.close()
    async with Engine(url) as engine:
        reads = read_sqlite(tmp_path / "t.db")
        await until(lambda: reads.run("one") is not None)
        reads.close()
        assert (await engine.start("Big", given, id="one")).existing
        assert (await engine.replay("one"))["equal"]


# --- the command line beside an owner --------------------------------------------------------------------------


async def test_the_command_line_beside_an_owner_is_told_what_was_refused_and_what_came_too_late(
    tmp_path: Path,
) -> None:
    (tmp_path / "ask.yaml").write_text(ASK)
    url = f"sqlite:///{tmp_path / 't.db'}"

    async def cli(*words: str, code: int) -> dict[str, Any]:
        command = ["-m", "treadle.cli", *words, "--store", url, "--json"]
        done = await asyncio.to_thread(nursery.run, command, cwd=tmp_path)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    engine = Engine(url)
    engine.deploy(str(tmp_path / "ask.yaml"))
    async with engine:
        await engine.start("Ask", None, id="r1")
        (task,) = await engine.tasks()
        await engine.task_claim(task["id"], user="ann", roles=["clerk"])
        complete = ("task", "complete", task["id"], "--user", "ann", "--data")
        refused = await cli(*complete, '{"answer": "0"}', "--expected-version", "99", code=1)
        assert refused["error"]["code"] == "VERSION_MISMATCH"
        assert "stale" not in await cli(*complete, '{"answer": "1"}', code=3)
        assert (await cli(*complete, '{"answer": "2"}', code=0))["stale"]
        refused = await cli("signal", "r1", "go", "--expected-version", "99", code=1)
        assert refused["error"]["code"] == "VERSION_MISMATCH"
        done = await cli("signal", "r1", "go", "--data", '{"a": 2}', code=0)
        assert done["result"] == {"answer": "1", "told": {"a": 2}}
        assert (await cli("signal", "r1", "go", code=0))["stale"]
        assert (await engine.replay("r1"))["equal"]
