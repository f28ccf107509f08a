"""Promises of docs/guarantees.md that had no test of their own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests import nursery

from treadle import Engine
from treadle.kernel.errors import RunNotFound, VersionMismatch
from treadle.testing import assert_replays

DEADLINE_S = 60.0
FLOW = "dialect: process\nname: P\nversion: '{0}'\nsteps:\n  - await: {{signal: go}}\n  - complete: version {0}\n"
# Deploys version 2 and says so, then does nothing until it is killed.
OTHER = """
import asyncio, sys
from treadle import Engine

async def main():
    async with Engine(sys.argv[1]) as engine:
        engine.deploy(sys.argv[2])
        print("owner" if engine.owns else "guest", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("who", ["owner", "guest"])
async def test_a_run_keeps_its_definition_whoever_deploys_another_and_is_killed(
    tmp_path: Path, who: str
) -> None:
    store = f"sqlite:///{tmp_path / 't.db'}"
    for version in ("1", "2"):
        (tmp_path / f"{version}.yaml").write_text(FLOW.format(version))
    async with Engine(store) as engine:
        engine.deploy(tmp_path / "1.yaml")
        await engine.start("P", None, id="old")
        if who == "guest":
            _deploy_and_die(store, tmp_path / "2.yaml", who)
    if who == "owner":
        _deploy_and_die(store, tmp_path / "2.yaml", who)
    async with Engine(store) as engine:
        new = await engine.start("P", None, id="new")
        for id in ("old", "new"):
            await engine.signal(id, "go")
        assert await (await engine.run("old")).result(timeout=DEADLINE_S) == "version 1"
        assert await new.result(timeout=DEADLINE_S) == "version 2"
        await assert_replays(engine)


def _deploy_and_die(store: str, file: Path, who: str) -> None:
    other = nursery.Process(["-c", OTHER, store, file], stdout=nursery.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == who
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate(timeout=DEADLINE_S)


async def test_the_same_key_is_the_same_signal_through_the_owner_a_guest_and_the_next_owner(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 't.db'}"
    flow = tmp_path / "twice.yaml"
    flow.write_text(
        "dialect: process\nname: T\nsteps:\n  - await: {signal: go, into: a}\n  - await: {signal: go, into: b}\n"
        "  - complete: [{$: result.a}, {$: result.b}]\n"
    )
    async with Engine(store) as owner, Engine(store) as guest:
        await owner.start(flow, None, id="r")
        await owner.signal("r", "go", 1, key="K")
        assert (await guest.signal("r", "go", 2, key="K"))["duplicate"]
    async with Engine(store) as engine:
        assert (await engine.signal("r", "go", 3, key="K"))["duplicate"]
        await engine.signal("r", "go", 4, key="L")
        assert await (await engine.run("r")).result(timeout=DEADLINE_S) == [1, 4]
        await assert_replays(engine)


@pytest.mark.parametrize("who", ["owner", "guest"])
async def test_a_signal_that_was_refused_is_judged_anew_under_its_key(tmp_path: Path, who: str) -> None:
    """It was no signal: there was no run yet, or it had not come that far."""
    store = f"sqlite:///{tmp_path / 't.db'}"
    flow = tmp_path / "1.yaml"
    flow.write_text(FLOW.format("1"))
    async with Engine(store) as owner, Engine(store) as guest:
        engine = owner if who == "owner" else guest
        with pytest.raises(RunNotFound):
            await engine.signal("r", "go", key="K")
        assert (await owner.doctor(deep=True))["ok"], "nothing is kept for a run that never was"
        await owner.start(flow, None, id="r")
        with pytest.raises(VersionMismatch):
            await engine.signal("r", "go", key="K", expected_version=7)
        assert (await engine.signal("r", "go", key="K", expected_version=1))["status"] == "completed"
        assert (await engine.signal("r", "go", key="K"))["duplicate"]
        await assert_replays(owner)
