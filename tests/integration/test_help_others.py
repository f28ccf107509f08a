"""A process that was started for one run leaves the work of others alone, and nobody who is there starves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from treadle import Engine
from treadle.testing import assert_replays

PAYS = """
metadata: {name: pays}
workflow: [{step: pay, tool: {kind: shell, command: "echo paid >> paid.txt; sleep %s; echo done >> paid.txt", idempotent: true}}]
"""
OWN = """
metadata: {name: own}
workflow: [{step: one, tool: {kind: shell, command: "echo one >> own.txt; while [ -e hold ]; do sleep 0.05; done"}}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pays.yaml").write_text(PAYS % "0")
    (tmp_path / "own.yaml").write_text(OWN)
    return tmp_path


def command(folder: Path, *arguments: str) -> nursery.Process:
    return nursery.Process(
        ["-m", "treadle.cli", *arguments],
        cwd=folder,
        stdout=nursery.PIPE,
        stderr=nursery.PIPE,
        env={**os.environ, "TREADLE_STORE": "sqlite:///treadle.db"},
    )


def ended(process: nursery.Process, code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (out, err)
    return out, err


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def left_open(folder: Path) -> None:
    """A run whose payment was under way when its process was killed."""
    (folder / "pays.yaml").write_text(PAYS % "30")
    killed = command(folder, "run", "pays.yaml", "--id", "left")
    eventually(lambda: (folder / "paid.txt").exists())
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    (folder / "pays.yaml").write_text(PAYS % "0")
    (folder / "paid.txt").unlink()


def status(folder: Path, id: str) -> Any:
    return json.loads(ended(command(folder, "show", id, "--json"))[0])["status"]


def test_a_run_leaves_the_open_work_of_others_alone_unless_it_is_asked_to_help(folder: Path) -> None:
    left_open(folder)
    _, said = ended(command(folder, "run", "own.yaml", "--id", "mine"))
    assert "left" not in said
    assert (status(folder, "mine"), status(folder, "left")) == ("completed", "running")
    assert not (folder / "paid.txt").exists()
    ended(command(folder, "resume", "mine"))
    assert not (folder / "paid.txt").exists()


async def test_a_guest_that_helps_has_a_lonely_owner_do_everything(folder: Path) -> None:
    left_open(folder)
    (folder / "hold").touch()
    owner = command(folder, "run", "own.yaml", "--id", "mine")
    eventually((folder / "own.txt").exists)
    async with Engine(f"sqlite:///{folder / 'treadle.db'}") as guest:
        assert not guest.owns
        run = await guest.run("left")
        # What was left open sleeps for 30 s; that it has begun again is enough.
        await asyncio.to_thread(eventually, (folder / "paid.txt").exists)
        started = await guest.start(guest.load(str(folder / "pays.yaml"))[0], id="of-guest")
        assert (await started.settled(timeout=30))["status"] == "completed"
        await guest.cancel(run.id)
        (folder / "hold").unlink()
        await asyncio.to_thread(ended, owner)


async def test_what_a_guest_was_started_for_is_done_by_a_lonely_owner_and_nothing_else(folder: Path) -> None:
    left_open(folder)
    (folder / "hold").touch()
    owner = command(folder, "run", "own.yaml", "--id", "mine")
    eventually((folder / "own.txt").exists)
    out, _ = await asyncio.to_thread(ended, command(folder, "run", "pays.yaml", "--id", "of-guest", "--json"))
    assert json.loads(out)["status"] == "completed"
    assert (folder / "paid.txt").read_text().split() == ["paid", "done"]
    # A guest may be started for the run that was left, too.
    resumed = command(folder, "resume", "left")
    await asyncio.to_thread(eventually, lambda: (folder / "paid.txt").read_text().count("paid") == 2)
    resumed.send_signal(signal.SIGKILL)
    resumed.communicate()
    (folder / "hold").unlink()
    await asyncio.to_thread(owner.send_signal, signal.SIGINT)
    await asyncio.to_thread(owner.communicate)
    async with Engine(f"sqlite:///{folder / 'treadle.db'}") as engine:
        await engine.cancel("left")
        await assert_replays(engine)
