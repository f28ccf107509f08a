"""Two engines on one file: one owns it, the other is its guest, and takes over when the owner dies.

Whatever a guest asks for reaches the owner; under load from two processes nobody is ever told that
the database is locked.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from treadle.engine import Engine
from treadle.kernel.errors import OwnershipLost, TreadleError
from treadle.store.open import open_sqlite, read_sqlite
from treadle.store.reads import SqlReads
from treadle.store.rows import Batch
from treadle.testing import toy
from treadle.work.job import Done, Job

DEADLINE_S = 30.0
ROOT = Path(__file__).resolve().parents[2]


def make_engine(path: Path, *, deploys: bool = True) -> Engine:
    engine = Engine(f"sqlite:///{path}")
    toy.install(engine)
    if deploys:
        engine.deploy(toy.TOY)
    return engine


async def until(what: Callable[[], Any]) -> Any:
    """Waits for a condition; the deadline is generous, because it only matters when all is lost."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if found := await what():
                return found
            await asyncio.sleep(0.01)


async def status_of(engine: Engine, id: str) -> str | None:
    rows = await engine.list(search=id)
    return next((row["status"] for row in rows if row["id"] == id), None)


# --- a guest ----------------------------------------------------------------------------------------------


async def test_starts_signals_and_tasks_of_a_guest_reach_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with make_engine(path) as owner, make_engine(path) as guest:
        assert owner.owns
        assert not guest.owns
        run = await guest.start("toy", {"do": ["work", "signal:go", "task"]}, id="from-guest")
        await until(lambda: _waits(guest, run.id, "signal"))
        await guest.signal(run.id, "go", "hello", key="once")
        await guest.signal(run.id, "go", "again", key="once")
        (task,) = await until(lambda: guest.tasks(run=run.id))
        await guest.task_claim(task["id"], user="ann", roles=["admin"])
        await guest.task_complete(task["id"], "signed", user="ann", roles=["admin"])
        assert await run.result(timeout=DEADLINE_S) == ["worked", "hello", "signed"]
        assert (await guest.replay(run.id))["equal"]
        assert (await owner.replay(run.id))["equal"]
        signals = [r for r in await run.journal() if r["kind"] == "signal"]
        assert len(signals) == 1, "the same key twice is one signal"


async def _waits(engine: Engine, id: str, kind: str) -> bool:
    shown = await (await engine.run(id)).show()
    return any(entry["kind"] == kind for entry in shown["waiting_for"])


async def test_many_messages_of_a_guest_all_arrive_once(tmp_path: Path) -> None:
    """Messages are told apart by more than the address of an object."""
    path = tmp_path / "t.db"
    async with make_engine(path) as owner, make_engine(path) as guest:
        run = await owner.start("toy", {"do": [["signal:go", 200]]}, id="counter")
        for first in range(0, 200, 50):
            await asyncio.gather(*(guest.signal(run.id, "go", n) for n in range(first, first + 50)))
        result = await run.result(timeout=DEADLINE_S)
        assert sorted(result) == list(range(200))


async def test_the_same_start_from_both_sides_is_one_run(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with make_engine(path) as owner, make_engine(path) as guest:
        both = [engine.start("toy", {"do": ["work"]}, id="same") for engine in (owner, guest)]
        runs = await asyncio.gather(*both)
        assert [await run.result(timeout=DEADLINE_S) for run in runs] == [["worked"]] * 2
        assert len(await owner.list()) == 1


# --- watching as a guest -----------------------------------------------------------------------------------


async def test_observers_of_a_guest_see_every_event_once(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with make_engine(path) as owner:
        await owner.start("toy", {"do": ["signal:go"]}, id="old")
        seen: list[tuple[str, int]] = []
        guest = make_engine(path)
        guest.observe(lambda event: seen.append((event["run"], event["seq"])), after={"old": 1})
        async with guest:
            assert not guest.owns
            run = await guest.start("toy", {"do": ["work", "work"]}, id="new")
            await run.result(timeout=DEADLINE_S)
            await owner.signal("old", "go")
            await (await guest.run("old")).result(timeout=DEADLINE_S)
        for id, after in (("new", 0), ("old", 1)):
            told = [seq for run_id, seq in seen if run_id == id]
            assert told == [event["seq"] for event in await owner.events_after(id, after)], id
            assert told, id


async def test_observers_miss_nothing_and_hear_nothing_twice_when_their_process_takes_over(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.db"
    owner = make_engine(path)
    await owner.__aenter__()
    seen: list[int] = []
    guest = make_engine(path)
    async with guest:
        guest.observe(lambda event: seen.append(event["seq"]))
        run = await guest.start("toy", {"do": ["work", "signal:go", "work"]}, id="moved")
        await until(lambda: _waits(guest, run.id, "signal"))
        await owner.__aexit__(None, None, None)
        await guest.signal(run.id, "go")
        await run.result(timeout=DEADLINE_S)
        last = (await guest.events_after(run.id, 0))[-1]["seq"]
    assert seen == list(range(1, last + 1))


# --- taking over --------------------------------------------------------------------------------------------


async def test_a_guest_takes_over_when_the_owner_leaves(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    owner = make_engine(path)
    await owner.__aenter__()
    run = await owner.start("toy", {"do": ["signal:go", "work"]}, id="moved")
    async with make_engine(path) as guest:
        assert not guest.owns
        await owner.__aexit__(None, None, None)
        await guest.signal(run.id, "go", 1)
        assert await (await guest.run("moved")).result(timeout=DEADLINE_S) == [1, "worked"]
        assert guest.owns


async def test_a_guest_takes_over_at_once_when_the_owner_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    child = begin("own", path)
    try:
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == "open\n"
        async with make_engine(path) as guest:
            assert not guest.owns
            assert await status_of(guest, "held") == "running", "its work is in the owner's hands"
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            assert await (await guest.run("held")).result(timeout=DEADLINE_S) == ["worked"]
            assert guest.owns
            assert (await guest.replay("held"))["equal"]
    finally:
        child.kill()
        child.communicate()


async def test_who_takes_over_answers_what_it_had_handed_over_once_it_has_read_it(tmp_path: Path) -> None:
    """The owner stands still, so it reads nothing; then it is killed. Its guest, now the owner, says of
    each call what came of it, and not that it was handed over."""
    path = tmp_path / "t.db"
    async with make_engine(path) as engine:
        run = await engine.start("toy", {"do": ["work"]}, id="taken")
        await run.result(timeout=DEADLINE_S)
    child = begin("own", path)
    try:
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == "open\n"
        os.kill(child.pid, signal.SIGSTOP)
        async with make_engine(path, deploys=False) as guest:
            asked = {
                "taken": guest.start("toy", {"do": ["work", "work"]}, id="taken"),
                "fresh": guest.start("toy", {"do": ["work"]}, id="fresh"),
                "nobody": guest.signal("nobody", "go"),
                "no task": guest.task_claim("no such task", user="ann", roles=["admin"]),
            }
            tasks = {name: asyncio.ensure_future(call) for name, call in asked.items()}
            reads = read_sqlite(path)
            await until(lambda: _holds(reads, len(asked)))
            reads.close()
            assert not any(task.done() for task in tasks.values())
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
            async with asyncio.timeout(DEADLINE_S):
                said = dict(
                    zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True)
                )
            assert _codes(said) == {
                "taken": "RUN_EXISTS",
                "fresh": "TypedRun",
                "nobody": "RUN_NOT_FOUND",
                "no task": "TASK_NOT_FOUND",
            }
            shown = await said["fresh"].show()
            assert shown["id"] == "fresh"
    finally:
        child.kill()
        child.communicate()


def _codes(said: dict[str, Any]) -> dict[str, str]:
    return {name: getattr(found, "code", type(found).__name__) for name, found in said.items()}


async def _holds(reads: SqlReads, count: int) -> bool:
    return len(reads.inbox(100)) >= count


async def test_an_unread_message_is_answered_when_its_sender_stops(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    child = begin("own", path)
    try:
        assert child.stdout is not None
        assert await asyncio.to_thread(child.stdout.readline) == "open\n"
        os.kill(child.pid, signal.SIGSTOP)
        async with make_engine(path, deploys=False) as guest:
            asked = asyncio.ensure_future(guest.signal("held", "go"))
            reads = read_sqlite(path)
            await until(lambda: _holds(reads, 1))
            reads.close()
        with pytest.raises(TreadleError, match="before this was decided"):
            async with asyncio.timeout(DEADLINE_S):
                await asked
    finally:
        child.kill()
        child.communicate()


def begin(*words: object) -> nursery.Process:
    """This module as a process of its own."""
    return nursery.Process(
        ["-m", __name__, *map(str, words)], cwd=ROOT, stdout=nursery.PIPE, stderr=nursery.PIPE
    )


async def _own(path: Path) -> None:
    """An owner with work in its hands that it will never finish."""
    engine = make_engine(path)
    begun = asyncio.Event()

    async def perform(job: Job) -> Done:
        begun.set()
        await asyncio.Event().wait()
        return Done()

    engine.worker.register("work", perform)
    async with engine:
        await engine.start("toy", {"do": ["work"]}, id="held")
        await begun.wait()
        print("open", flush=True)
        await asyncio.Event().wait()


async def test_an_owner_that_lost_the_store_stops_and_says_so(tmp_path: Path) -> None:
    """The lock is good manners; the epoch is what holds. Somebody ignores the lock here."""
    path = tmp_path / "t.db"
    async with make_engine(path) as engine:
        await engine.start("toy", {"do": ["signal:go"]}, id="mine")
        thief = open_sqlite(path)
        thief.own()
        with pytest.raises(OwnershipLost):
            async with asyncio.timeout(DEADLINE_S):
                await engine.signal("mine", "go")
        with pytest.raises(TreadleError):
            async with asyncio.timeout(DEADLINE_S):
                await engine.start("toy", {"do": ["work"]}, id="late")
        assert [row.id for row in thief.runs()] == ["mine"]
        row = thief.run("mine")
        assert row is not None
        assert row.status == "waiting", "nothing of the deposed owner was written"
        thief.commit(Batch())
        thief.close()


# --- load -----------------------------------------------------------------------------------------------------


def test_two_processes_under_load_never_see_a_locked_database(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    open_sqlite(path).close()
    children = [begin("load", path, name) for name in ("a", "b")]
    said = [child.communicate(timeout=120) for child in children]
    for child, (out, err) in zip(children, said, strict=True):
        assert child.returncode == 0, err
        assert "locked" not in err.lower()
        assert json.loads(out)["completed"] == 100
    store = open_sqlite(path)
    assert store.run_count() == {"completed": 200}
    assert store.inbox(1) == []
    store.close()


async def _load(path: Path, name: str) -> None:
    async with make_engine(path) as engine:
        starts = (
            engine.start("toy", {"do": [["work", 3], "signal:go"]}, id=f"{name}-{number}")
            for number in range(100)
        )
        runs = await asyncio.gather(*starts)
        await asyncio.gather(*(engine.signal(run.id, "go", name) for run in runs))
        results = [await run.result(timeout=60) for run in runs]
        assert all(result == ["worked"] * 3 + [name] for result in results)
        # Whoever owns the store stays until the other one is done too.
        other = "b" if name == "a" else "a"
        await until(lambda: _all_done(engine, other))
    print(json.dumps({"completed": len(results)}))


async def _all_done(engine: Engine, name: str) -> bool:
    rows = await engine.list(search=f"{name}-", limit=1000)
    return len([row for row in rows if row["status"] == "completed"]) == 100


if __name__ == "__main__":
    if sys.argv[1] == "own":
        asyncio.run(_own(Path(sys.argv[2])))
    else:
        asyncio.run(_load(Path(sys.argv[2]), sys.argv[3]))
