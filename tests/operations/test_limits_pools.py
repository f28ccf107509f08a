"""How much work of a pool is in hand at once, over all workers, whoever takes it and whoever dies."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from tests import nursery

from treadle import Engine
from treadle.bus.local import LocalBus
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import OpenIntent, shard_of
from treadle.runtime.pools import LEAVES, TOLD_NS, Leave, remaining, settle, shares
from treadle.runtime.ports import Work
from treadle.server.app import create_app
from treadle.store.members import LEASE_NS
from treadle.testing import VirtualClock, assert_replays

FLOW = """
metadata: {name: train, version: "1"}
workflow:
  - step: only
    spec: {pool: gpu}
    tool: {kind: busy}
"""


class Busy:
    """Work that ends when it may, and knows how much of it there was at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.may_end = asyncio.Event()

    async def call(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.may_end.wait()
        finally:
            self.now -= 1


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def opened(folder: Path, busy: Busy) -> Engine:
    (folder / "train.yaml").write_text(FLOW)
    engine = Engine(f"sqlite:///{folder}/p.db")
    engine.tool("busy")(busy.call)
    engine.deploy(str(folder))
    return engine


async def test_no_more_work_of_a_pool_is_in_hand_than_its_limit_and_a_restart_knows_it(
    tmp_path: Path,
) -> None:
    first, second = Busy(), Busy()
    async with opened(tmp_path, first) as engine:
        assert (await engine.limit_set("pool:gpu", concurrency=2))["origin"] == "operator"
        for n in range(6):
            await engine.start("train", id=f"t{n}")
        await until(lambda: first.now == 2)
        row = await engine.limit("pool:gpu")
        assert (row["running"], row["queued"]) == (2, 4)
    async with opened(tmp_path, second) as engine:
        await until(lambda: second.now == 2)
        assert (await engine.limit("pool:gpu"))["running"] == 2
        await engine.limit_set("pool:gpu", concurrency=3)
        await until(lambda: second.now == 3)
        second.may_end.set()
        for n in range(6):
            await (await engine.run(f"t{n}")).result(timeout=60)
        assert (first.most, second.most) == (2, 3)
        await engine.limit_remove("pool:gpu")
        assert await engine.limits() == []
        await assert_replays(engine)


async def test_limits_of_pools_over_http_take_concurrency_only() -> None:
    async with Engine("memory:") as engine:
        transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
            said = await http.put("/limits/pool:gpu", json={"concurrency": 4})
            assert (said.status_code, said.json()["limits"]) == (200, {"concurrency": 4})
            assert (await http.put("/limits/pool:gpu", json={"rate": "1/s"})).status_code == 422
            assert (await http.put("/limits/pool:A%20B", json={"concurrency": 4})).status_code == 422
            assert [row["workflow"] for row in (await http.get("/limits")).json()["items"]] == ["pool:gpu"]
        with pytest.raises(TreadleError, match="concurrency, and nothing else"):
            await engine.limit_set("pool:gpu", concurrency=1, queue=3)


def work(name: str, pool: str = "gpu") -> Work:
    intent = OpenIntent(id=name, kind="step", params={}, pool=pool)
    return Work(run=name, workflow="w", dialect="playbook", definition="sha256:0", intent=intent, options={})


def test_who_takes_claims_or_comes_back_counts_and_who_is_silent_does_not() -> None:
    clock = VirtualClock()
    bus = LocalBus(clock)
    bus.limit_pools({"gpu": 2})
    woken: list[int] = []
    bus.listen(lambda: woken.append(1))
    bus.offer([work(f"{n}" * 32) for n in range(5)])
    assert len(bus.take("one", ["gpu"], 1)) == 1
    (second,), declined = bus.claim("two", ["1" * 32, "2" * 32])
    assert declined == []
    assert bus.take("one", ["gpu"], 9) == []
    woken.clear()
    bus.done(second.work.intent.id)
    assert woken, "who waits for the pool is told"
    assert len(bus.take("three", ["gpu"], 9)) == 1
    assert bus.in_pool("gpu") == (2, 2)
    clock._now_ns += 60 * 10**9
    assert bus.expire() == 2
    assert len(bus.take("four", ["gpu"], 9)) == 2
    bus.limit_pools({})
    assert len(bus.take("five", ["gpu"], 9)) == 2


def test_nothing_of_a_limited_pool_is_handed_out_past_the_lease_of_its_member() -> None:
    is_there = False
    bus = LocalBus(VirtualClock())
    bus.limit_pools({"gpu": 2})
    bus.caps.only_while(lambda: is_there)
    bus.offer([work("1" * 32), work("2" * 32, pool="default")])
    assert [one.work.intent.pool for one in bus.take("w", ["gpu", "default"], 9)] == ["default"]
    is_there = True
    assert len(bus.take("w", ["gpu", "default"], 9)) == 1


def test_leave_counts_while_its_member_is_there_and_longer_where_workers_elsewhere_go_on() -> None:
    def leaves() -> dict[str, Leave]:
        return {"a": Leave(1, 1), "b": Leave(1, 3), "c": Leave(1, 3, elsewhere=True)}

    assert remaining(leaves(), {"a", "b", "c"}, 5).keys() == {"a", "b", "c"}
    left = remaining(leaves(), {"a"}, 5)
    assert {name: (leave.held, leave.wants) for name, leave in left.items()} == {"a": (1, 1), "c": (1, 0)}
    assert remaining(left, {"a"}, 5 + TOLD_NS - 1).keys() == {"a", "c"}
    assert remaining(left, {"a"}, 5 + TOLD_NS).keys() == {"a"}


def test_members_together_never_have_leave_for_more_than_the_limit_and_each_gets_its_turn() -> None:
    """Members that say at random what they keep and want; each keeps no more than it had leave for, and no less than
    what it has in hand."""
    chance = random.Random(7)
    for cap in (1, 2, 3, 7):
        names, leaves, now = ["a", "b", "c"], dict[str, Leave](), 0
        busy, due, ends = Counter[str](), dict.fromkeys(names, 0), Counter[str]()
        for _ in range(3_000):
            now += chance.randrange(400_000_000)
            name = chance.choice(names)
            held = leaves[name].held if name in leaves else 0
            # Something ends, and what is within both leave and due begins.
            done = chance.randint(0, busy[name])
            busy[name] -= done
            ends[name] += done
            keeps = max(busy[name], min(held, due[name]))
            due[name] = settle(leaves, name, cap, keeps=keeps, wants=99, now_ns=now)
            busy[name] = max(busy[name], min(leaves[name].held, due[name]))
            assert sum(leave.held for leave in leaves.values()) <= cap
            assert busy.total() <= cap
        assert min(ends.values()) * 3 > max(ends.values()), "nobody is left out"


def test_who_wants_little_gets_it_and_the_rest_is_for_the_others() -> None:
    leaves = {"a": Leave(wants=1), "b": Leave(wants=9), "c": Leave(wants=9, had_ns=5)}
    assert shares(8, leaves, 0)[0] == {"a": 1, "b": 4, "c": 3}
    assert shares(8, {"a": Leave(wants=0)}, 0)[0] == {"a": 0}
    assert shares(0, leaves, 0)[0] == {"a": 0, "b": 0, "c": 0}


class TimedBusy(Busy):
    """Work that takes a moment."""

    async def call(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)
        self.now -= 1


async def test_three_members_together_keep_the_limit_of_a_pool_and_none_of_them_starves(
    tmp_path: Path, pg_store: str
) -> None:
    (tmp_path / "train.yaml").write_text(FLOW)
    busy = TimedBusy()
    engines = [Engine(pg_store) for _ in range(3)]
    for engine in engines:
        engine.tool("busy")(busy.call)
    async with engines[0]:
        await engines[0].limit_set("pool:gpu", concurrency=1)
        engines[0].deploy(str(tmp_path / "train.yaml"))
    async with engines[0], engines[1], engines[2]:
        await until(lambda: all(engine.shards_held() for engine in engines))
        runs = [await engines[n % 3].start("train", id=f"t{n}") for n in range(9)]
        for run in runs:
            await run.result(timeout=60)
        assert busy.most == 1
        await assert_replays(engines[0])


async def _until_said(engine: Engine, said: list[tuple[int, int]]) -> None:
    """Until members have leave for so much and want so much; nobody has leave for more meanwhile."""
    deadline, most = time.monotonic() + 60, sum(held for held, _ in said)
    found: Any = None
    while found != said:
        assert time.monotonic() < deadline, found
        leaves: Any = await engine.read(lambda reads: reads.document(LEAVES, "gpu"))
        found = sorted(
            (leave["held"], leave["wants"]) for leave in (leaves or {"members": {}})["members"].values()
        )
        assert sum(held for held, _ in found) <= most, found
        await asyncio.sleep(0.01)


async def test_a_limit_that_is_new_counts_what_every_member_has_in_hand(
    tmp_path: Path, pg_store: str
) -> None:
    """Nobody is given leave before each has said what it has: what one has in hand is no room for another."""
    (tmp_path / "train.yaml").write_text(FLOW)
    engines, busy = [Engine(pg_store) for _ in range(2)], [Busy(), Busy()]
    for engine, work_of in zip(engines, busy, strict=True):
        engine.tool("busy")(work_of.call)
    async with engines[0], engines[1]:
        engines[0].deploy(str(tmp_path / "train.yaml"))
        await until(lambda: all(engine.shards["held"] == 32 for engine in engines))
        ids = [f"t{n}" for n in range(60)]
        here, there = ([id for id in ids if engine.decides(id)] for engine in engines)
        for id in there[:4]:
            await engines[1].start("train", id=id)
        await until(lambda: busy[1].now == 4)
        await engines[0].limit_set("pool:gpu", concurrency=2)
        await _until_said(engines[0], [(0, 0), (4, 4)])
        # Between two looks of the other, which has spoken of this one and not of the next.
        await engines[0].limit_remove("pool:gpu")
        await engines[0].limit_set("pool:gpu", concurrency=2)
        for id in here[:4]:
            await engines[0].start("train", id=id)
        await _until_said(engines[0], [(0, 2), (4, 4)])
        assert busy[0].now == 0
        busy[1].may_end.set()
        await until(lambda: busy[0].now == 2)
        busy[0].may_end.set()
        for id in (*here[:4], *there[:4]):
            await (await engines[0].run(id)).result(timeout=60)
        assert (busy[0].most, busy[1].most) == (2, 4)
        await assert_replays(engines[0])


# What an outside witness is told: who begins which run's work and who ends it, in a file that all append to.
MEMBER = """
import asyncio, os, sys, time
from pathlib import Path
from treadle import Engine

store, flow, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
witness = os.open(folder / "witness", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

async def main():
    engine = Engine(store)

    def say(what, run):
        os.write(witness, f"{what} {run} {os.getpid()} {time.monotonic_ns()}\\n".encode())

    @engine.tool("busy")
    async def busy(run):
        say("+", run)
        while not (folder / "may-end").exists():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        say("-", run)

    async with engine:
        engine.deploy(flow)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
KILLED = """
metadata: {name: train, version: "1"}
workflow:
  - step: only
    spec: {pool: gpu}
    tool: {kind: busy, run: "{{ execution_id }}"}
"""
LEASE_S = LEASE_NS / 1e9
# What a busy machine may need besides.
BUSY_S = 3.0


class Witness:
    """What work there was, and when; whoever was killed has nothing in hand since then."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "witness"
        self.killed: list[tuple[int, str, str, int]] = []

    def said(self) -> list[tuple[int, str, str, int]]:
        lines = [line.split() for line in self._file.read_text().splitlines()] if self._file.exists() else []
        return sorted((int(at), what, run, int(pid)) for what, run, pid, at in lines)

    def in_hand(self, limit: int) -> Counter[int]:
        """How much each has in hand now; and at no instant it was more."""
        found: Counter[int] = Counter()
        for _, what, _, pid in sorted([*self.said(), *self.killed]):
            if what == "killed":
                del found[pid]
            else:
                found[pid] += 1 if what == "+" else -1
            assert found.total() <= limit, self.said()
        return found


def _decided_by(store: str, pid: int) -> str:
    """The id of a run that this process decides."""
    with psycopg.connect(store) as connection:
        owners = dict(connection.execute("SELECT shard, owner FROM shards").fetchall())
    ids = (f"first{n}" for n in range(10_000))
    return next(id for id in ids if owners[shard_of(id, len(owners))].split(":")[1] == str(pid))


async def test_leave_of_members_that_were_killed_goes_to_others_when_their_lease_is_over(
    tmp_path: Path, pg_store: str
) -> None:
    """Both whoever gives leave and another: the limit holds meanwhile, and all is done and settled once."""
    (tmp_path / "train.yaml").write_text(KILLED)
    witness, members = Witness(tmp_path), list[nursery.Process]()
    try:
        for _ in range(3):
            # Whoever comes first has the first shard, and keeps it.
            command = ["-c", MEMBER, pg_store, str(tmp_path / "train.yaml"), str(tmp_path)]
            members.append(nursery.Process(command, stdout=nursery.PIPE))
            assert (said := members[-1].stdout) is not None
            assert said.readline() == "ready\n"
        async with Engine(pg_store, help_others=False) as client:
            await until(lambda: sorted(row["shards"] for row in client.members()) == [0, 21, 21, 22])
            await client.limit_set("pool:gpu", concurrency=3)
            await _until_said(client, [(0, 0)] * 4)
            firsts = [_decided_by(pg_store, member.pid) for member in members]
            runs = [await client.start("train", id=id) for id in firsts]
            await until(lambda: witness.in_hand(3) == {member.pid: 1 for member in members})
            runs += [await client.start("train", id=f"t{n}") for n in range(9)]
            killed = time.monotonic()
            for member in members[:2]:
                member.kill()
                member.wait(60)
                witness.killed.append((time.monotonic_ns(), "killed", "", member.pid))
            await until(lambda: witness.in_hand(3)[members[2].pid] == 3)
            assert time.monotonic() - killed < LEASE_S + 1 + BUSY_S
            (tmp_path / "may-end").touch()
            for run in runs:
                await run.result(timeout=60)
                journal = await run.journal()
                assert [record["kind"] for record in journal].count("receipt") == 1, journal
            ended = Counter(run for _, what, run, _ in witness.said() if what == "-")
            assert ended == dict.fromkeys([run.id for run in runs], 1)
            assert not witness.in_hand(3).total()
            await assert_replays(client)
    finally:
        for member in members:
            member.kill()
            member.communicate(timeout=60)
