"""The owner's lock: it dies with its owner, also when children of the owner live on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from treadle import sync
from treadle.engine import Engine
from treadle.store.owner import OwnerLock
from treadle.testing import toy

DEADLINE_S = 30.0

OWNER = """
import asyncio, os, sys, time
from treadle import Engine
async def main():
    async with Engine(sys.argv[1]) as engine:
        child = os.fork()
        if child == 0:
            time.sleep(300)
            os._exit(0)
        print(child, flush=True)
        await asyncio.sleep(300)
asyncio.run(main())
"""


def test_a_child_that_outlives_the_owner_keeps_nobody_from_the_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, url], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        until = time.monotonic() + DEADLINE_S
        with sync.Engine(url) as engine:
            while not engine.owns and time.monotonic() < until:
                time.sleep(0.01)  # the child may not have come to close its copy yet
            assert engine.owns
            os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()


async def test_a_guest_that_gets_no_answer_says_whom_it_waits_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.db"
    async with Engine(f"sqlite:///{path}"):
        pass
    held = OwnerLock(path)  # of a process that hangs: this one, for the test
    assert held.acquire()
    guest = Engine(f"sqlite:///{path}")
    guest._bridge.asks.patience_s = 0.05
    toy.install(guest)
    async with guest:
        assert not guest.owns
        with caplog.at_level(logging.WARNING, "treadle"):
            began = time.monotonic()
            asking = [
                asyncio.create_task(guest.start(guest.load(toy.TOY)[0], {"do": "complete"}))
                for _ in range(40)
            ]
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    if f"process {os.getpid()} owns this store" in caplog.text:
                        break
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0)
        rounds = (time.monotonic() - began) / guest._bridge.asks.patience_s
        assert caplog.text.count("owns this store") <= rounds + 1, "said once for all who wait"
        held.release()
        await asyncio.gather(*asking)


def test_a_lock_whose_owner_is_gone_is_explained(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path / "t.db")
    assert lock.acquire()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "t.db-owner").write_text(str(gone.pid))
    assert "is gone, but a process that it left behind" in lock.waits_for()
    assert "fuser" in lock.waits_for()
    lock.release()
