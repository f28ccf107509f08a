"""Several members on one PostgreSQL: they share the shards, take over from the dead, and come back themselves."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from tests import nursery

from treadle import Engine
from treadle.kernel.model import shard_of
from treadle.store.members import LEASE_NS
from treadle.testing import assert_replays

LEASE_S = LEASE_NS / 1e9
# What a busy machine may need besides: less than a lease, so that who waits for one is found out.
BUSY_S = 3.0
SHARDS = 64
APPROVAL = """
dialect: process
name: approval
version: "1"
steps:
  - await: go
  - wait: 10ms
"""
FLOW = """
metadata: {name: hello, version: "1"}
workflow:
  - step: one
    tool: {kind: python, code: "def main():\\n    return 1"}
  - step: two
    tool: {kind: python, code: "def main():\\n    return 2"}
"""
MEMBER = """
import asyncio, signal, sys
from treadle import Engine

async def main():
    # Not an exception from anywhere: one inside of a callback would leave what that was to do undone.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
    async with Engine(sys.argv[1]) as engine:
        engine.deploy(sys.argv[2])
        print("ready", flush=True)
        held = None
        while True:
            if held != (held := engine.shards["held"]):
                print(held, flush=True)
            await asyncio.sleep(0.01)

try:
    asyncio.run(main())
except asyncio.CancelledError:
    pass
"""


@pytest.fixture
def flows(tmp_path: Path) -> Path:
    (tmp_path / "approval.yaml").write_text(APPROVAL)
    (tmp_path / "hello.yaml").write_text(FLOW)
    return tmp_path


@pytest.fixture
def member(pg_store: str, flows: Path) -> Iterator[Callable[[], nursery.Process]]:
    """Starts a member in a process of its own, and waits until it is there."""
    started: list[nursery.Process] = []

    def start() -> nursery.Process:
        command = ["-c", MEMBER, pg_store, str(flows)]
        process = nursery.Process(command, stdout=nursery.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=30)


def holders(url: str) -> dict[str | None, int]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT owner, count(*) FROM shards GROUP BY owner").fetchall()
    return dict(found)


async def until(so: Callable[[], bool], seconds: float = 60) -> float:
    begun = time.monotonic()
    async with asyncio.timeout(seconds):
        while not so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return time.monotonic() - begun


def elsewhere(engine: Engine, prefix: str = "r") -> str:
    """The id of a run that this engine does not decide."""
    return next(id for id in (f"{prefix}{n}" for n in range(10_000)) if not engine.decides(id))


async def test_members_share_the_shards_evenly_as_they_come_and_go(pg_store: str) -> None:
    async with Engine(pg_store) as one:
        assert one.shards == {"held": SHARDS, "of": SHARDS}
        async with Engine(pg_store) as two:
            await until(lambda: one.shards["held"] == two.shards["held"] == 32)
            async with Engine(pg_store) as three:
                members = (one, two, three)
                await until(lambda: sorted(m.shards["held"] for m in members) == [21, 21, 22])
                await until(lambda: sorted(row["shards"] for row in three.members()) == [21, 21, 22])
            await until(lambda: one.shards["held"] == two.shards["held"] == 32)
        await until(lambda: one.shards["held"] == SHARDS)


async def test_a_run_of_another_members_shard_is_started_signalled_and_awaited_anywhere(
    pg_store: str, flows: Path
) -> None:
    async with Engine(pg_store) as one, Engine(pg_store) as two:
        one.deploy(str(flows))
        await until(lambda: one.shards["held"] == two.shards["held"] == 32)
        for engine in (one, two):
            run = elsewhere(engine, "far")
            assert not (await engine.start("hello", id=run)).existing
            assert (await engine.start("hello", id=run)).existing
            await (await engine.run(run)).result(60)
            waits = elsewhere(engine, "waits")
            await engine.start("approval", id=waits)
            answer = await engine.signal(waits, "go", key="k")
            assert (answer["run"], answer.get("duplicate")) == (waits, None)
            assert (await engine.signal(waits, "go", key="k"))["duplicate"]
            await (await engine.run(waits)).result(60)
            fork = elsewhere(engine, "fork")
            await (await engine.fork(run, at=1, new_id=fork)).result(60)
        assert await assert_replays(one) == 6
        assert (await two.gc(now_ns=2**62))["runs"] == 6, "each collects what is its own"
        assert await one.list() == []


async def test_a_name_means_what_any_member_deployed_last(pg_store: str, tmp_path: Path) -> None:
    def version(number: int) -> str:
        file = tmp_path / f"v{number}.yaml"
        file.write_text(
            f"dialect: process\nname: v\nversion: {number}.0.0\nsteps: [{{complete: {number}}}]\n"
        )
        return str(file)

    async with Engine(pg_store) as one:
        one.deploy(version(1))
        assert await (await one.start("v")).result(60) == 1  # all shards are its own: it may remember
        async with Engine(pg_store) as two:
            await until(lambda: one.shards["held"] == two.shards["held"] == 32)
            for number, deploys in enumerate((two, one, two), start=2):
                deploys.deploy(version(number))
                for engine in (one, two):
                    assert await (await engine.start("v")).result(60) == number
        await until(lambda: one.shards["held"] == SHARDS)
        assert await (await one.start("v")).result(60) == 4
        await assert_replays(one)


COUNT = (
    "metadata: {name: count, version: '1'}\nworkflow:\n"
    + "".join(
        f"  - step: s{n}\n    tool: {{kind: count}}\n    next: {{arcs: [{{step: s{n + 1}}}]}}\n"
        for n in range(4)
    )
    + "  - step: s4\n    tool: {kind: count}\n"
)


def counting(url: str, done: list[str]) -> Engine:
    engine = Engine(url)

    @engine.tool("count")
    async def count() -> int:
        done.append("once more")
        await asyncio.sleep(0.02)
        return 1

    return engine


async def test_shards_move_while_runs_go_on_and_no_work_is_done_twice(pg_store: str, flows: Path) -> None:
    done: list[str] = []
    engine = partial(counting, pg_store, done)
    (flows / "count.yaml").write_text(COUNT)
    async with engine() as one:
        one.deploy(str(flows / "count.yaml"))
        runs = [await one.start("count", id=f"c{n}") for n in range(40)]
        async with engine() as two:
            runs += [await two.start("count", id=f"d{n}") for n in range(40)]
            await until(lambda: one.shards["held"] == two.shards["held"] == 32)
            for run in runs:
                await run.result(60)
        assert len(done) == 5 * len(runs)
        assert await assert_replays(one) == len(runs)


async def test_what_a_member_finishes_before_it_leaves_is_not_done_again(pg_store: str, flows: Path) -> None:
    """As a server does that drains."""
    done: list[str] = []
    (flows / "count.yaml").write_text(COUNT)
    async with counting(pg_store, done) as one:
        one.deploy(str(flows / "count.yaml"))
        async with counting(pg_store, done) as two:
            await until(lambda: one.shards["held"] == two.shards["held"] == 32)
            runs = [await one.start("count", id=f"c{n}") for n in range(40)]
            assert await two.worker.finish(60)
        for run in runs:
            await run.result(60)
        assert len(done) == 5 * len(runs)


async def test_after_kill_9_the_others_have_its_shards_within_a_lease_and_a_second(
    pg_store: str, member: Callable[[], nursery.Process]
) -> None:
    async with Engine(pg_store) as engine:
        process = member()
        await until(lambda: engine.shards["held"] == 32)
        run = elsewhere(engine)
        await engine.start("approval", id=run)
        process.send_signal(signal.SIGKILL)
        took = await until(lambda: engine.shards["held"] == SHARDS)
        assert took < LEASE_S + 1 + BUSY_S
        await engine.signal(run, "go")
        await (await engine.run(run)).result(60)
        await assert_replays(engine)


async def test_after_sigterm_the_others_have_its_shards_within_a_second(
    pg_store: str, member: Callable[[], nursery.Process]
) -> None:
    async with Engine(pg_store) as engine:
        process = member()
        await until(lambda: engine.shards["held"] == 32)
        run = elsewhere(engine)
        await engine.start("approval", id=run)
        process.send_signal(signal.SIGTERM)
        await until(lambda: process.poll() is not None)
        assert await until(lambda: engine.shards["held"] == SHARDS) < 1 + BUSY_S
        await engine.signal(run, "go")
        await (await engine.run(run)).result(60)


async def test_a_member_that_slept_past_its_lease_becomes_a_guest_and_gets_its_share_again(
    pg_store: str, member: Callable[[], nursery.Process]
) -> None:
    async with Engine(pg_store) as engine:
        process = member()
        await until(lambda: engine.shards["held"] == 32)
        process.send_signal(signal.SIGSTOP)
        assert await until(lambda: engine.shards["held"] == SHARDS) < LEASE_S + 1 + BUSY_S
        process.send_signal(signal.SIGCONT)
        await until(lambda: engine.shards["held"] == 32)
        assert process.poll() is None
        run = elsewhere(engine)
        await engine.start("hello", id=run)
        await (await engine.run(run)).result(60)
        await assert_replays(engine)


async def test_a_member_whose_connections_are_cut_goes_on(pg_store: str, flows: Path) -> None:
    async with Engine(pg_store) as engine:
        engine.deploy(str(flows))
        await engine.start("approval", id="a")
        for _ in range(3):
            with psycopg.connect(pg_store, autocommit=True) as rival:
                rival.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND application_name LIKE 'treadle%'"
                )
            run = await engine.start("hello", id=f"h{_}")
            await run.result(60)
        await engine.signal("a", "go")
        await (await engine.run("a")).result(60)
        await assert_replays(engine)


async def test_one_that_works_for_itself_alone_leaves_the_shards_to_those_who_help(
    pg_store: str, flows: Path
) -> None:
    async with Engine(pg_store, help_others=False) as alone:
        assert alone.shards["held"] == SHARDS, "where nobody helps the first takes all"
        async with Engine(pg_store, help_others=False) as other:
            assert other.shards["held"] == 0
            async with Engine(pg_store) as server:
                server.deploy(str(flows))
                await until(lambda: server.shards["held"] == SHARDS)
                await (await alone.start("hello", id="a")).result(60)
                await (await other.start("hello", id="b")).result(60)
            await until(lambda: alone.shards["held"] == SHARDS)


async def test_a_store_knows_where_every_run_timer_and_message_belongs(pg_store: str, flows: Path) -> None:
    async with Engine(pg_store) as engine:
        engine.deploy(str(flows))
        for n in range(20):
            await engine.start("approval", id=f"r{n}")
    with psycopg.connect(pg_store) as connection:
        rows = connection.execute("SELECT id, shard, treadle_shard(id, 64) FROM runs").fetchall()
        names = ["", "x", "a.0123456789ab", "a.0123456789ab.fedcba987654", ".0123456789ab", "ü.0123456789ab"]
        by_sql = [connection.execute("SELECT treadle_shard(%s, 64)", (n,)).fetchone() for n in names if n]
    assert all(shard == there == shard_of(id, SHARDS) for id, shard, there in rows)
    assert by_sql == [(shard_of(name, SHARDS),) for name in names if name]
