"""Whatever happens, in whatever order: a world is what its journal says (seed §11.3, §11.4; issue: property)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactive_play import act, app, play, seen
from reactive_shop import ChargeReceipt, charge, ledger, mail, notes, order
from reactive_shop import app as shop
from tests import nursery

from treadle import Engine
from treadle import reactive as rx
from treadle.kernel.history import restore, snapshot_of

HERE = Path(__file__).parent


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_random_play_equals_its_replay_from_the_journal_and_from_every_snapshot(seed):
    world = play(seed, acts=40)
    world.run()
    world.assert_replays()
    expected = seen(world)
    for cut in (None, 0):
        assert seen(world.reopen(at=cut)) == expected


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_a_restart_at_any_point_changes_nothing(seed, at):
    def run(restart: bool) -> rx.testing.World:
        rng = random.Random(seed)
        world = rx.testing.World(app(), seed=1)
        for number in range(40):
            world = act(world, rng)
            if restart and number == at:
                world = world.reopen()
        world.run()
        return world

    assert seen(run(True)) == seen(run(False))


def test_a_state_that_no_record_explains_is_found_out():
    """The canary: a proof that cannot fail proves nothing."""
    world = play(5)
    world.snapshot()
    store = world._host.store
    snapshots = [(row, *store.snapshot(row.no)) for row in store.runs(workflow="p/soft@1")]
    row, seq, state = next((row, seq, restore(body)) for row, seq, body in snapshots if restore(body).state)
    state.state = {**state.state, "log": ["never"]}
    forged = snapshot_of(state)
    update = "UPDATE snapshots SET body = ?, digest = ? WHERE run = ? AND seq = ?"
    store._connection.execute(update, (forged, sha256(forged).digest(), row.no, seq))
    world = world.reopen()
    with pytest.raises(AssertionError, match="differs in"):
        world.assert_replays()


def test_bytes_are_equal_under_three_hash_seeds():
    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(HERE)}
        command = [sys.executable, str(HERE / "reactive_play.py"), "8"]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    one, two, three = run("0"), run("1"), run("4242")
    assert len(one.splitlines()) == 8
    assert one == two == three


def _publish_until_killed(store: str) -> int:
    """How many orders three processes had acknowledged before each of them was killed."""
    published = 0
    for attempt in range(3):
        process = nursery.Process(
            [HERE / "reactive_victim.py", store, str(attempt * 20), "20"], stdout=nursery.PIPE
        )
        assert process.stdout is not None
        for _ in range(6 + attempt * 5):
            assert process.stdout.readline()
            published += 1
        process.send_signal(signal.SIGKILL)
        process.wait()
        published += process.stdout.read().count("\n")
        process.stdout.close()
    return published


@pytest.mark.at_home("kills processes of its own on one file")
async def test_killed_at_any_moment_the_choreography_ends_the_same(tmp_path):
    """A process publishes orders and is killed; the next one finishes: nothing lost, nothing twice."""
    store = f"sqlite:///{tmp_path}/t.db"
    published = await asyncio.to_thread(_publish_until_killed, store)
    before = charge.run, mail.run
    try:

        @charge.executor
        async def do_charge(call):
            return ChargeReceipt("p")

        @mail.executor
        async def send(call):
            return None

        engine = Engine(store)
        engine.deploy(shop())
        async with engine:
            orders = await engine.cells(order)
            assert len(orders) >= published >= 33, "what was acknowledged is there"

            async def all_told():
                cells = await engine.cells(notes)
                return len(cells) == len(orders) and all(c["status"] == "completed" for c in cells)

            async with asyncio.timeout(20):
                with engine.watch("") as watch:
                    while not await all_told():
                        await watch.changed(poll_s=0.02)
            books = (await (await engine.cell(ledger)).show())["state"]
            assert books["total_cents"] == len(orders)
            assert sorted(books["orders"]) == sorted(c["key"] for c in orders)
            for row in await engine.list(limit=1000):
                assert (await engine.replay(row["id"]))["equal"]
    finally:
        charge.run, mail.run = before
