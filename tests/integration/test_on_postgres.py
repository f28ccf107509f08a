"""The engine on PostgreSQL: the same runs, the same promises; another process takes over when the owner dies."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import nursery

from treadle import Engine
from treadle.store.members import LEASE_NS
from treadle.testing import assert_replays

PLAYBOOK = """
metadata: {name: etl, version: "1"}
workload: {rows: [1, 2, 3]}
workflow:
  - step: each
    loop: {in: "{{ workload.rows }}", iterator: row}
    tool: {kind: python, code: "def main(row):\\n    return {'double': row * 2}", args: {row: "{{ iter.row }}"}}
    next: {arcs: [{step: done, when: "{{ event.name == 'loop.done' }}"}]}
  - step: done
    tool: {kind: noop}
"""
PROCESS = """
dialect: process
name: approval
version: "1"
tasks: {review: {roles: [boss]}}
steps:
  - wait: 20ms
  - task: review
  - await: go
"""


@pytest.fixture
def url(pg_store: str) -> str:
    return pg_store


@pytest.fixture
def flows(tmp_path: Path) -> Path:
    (tmp_path / "etl.yaml").write_text(PLAYBOOK)
    (tmp_path / "approval.yaml").write_text(PROCESS)
    return tmp_path


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_playbook_and_a_process_run_to_their_ends_and_replay_equal(url: str, flows: Path) -> None:
    async with Engine(url) as engine:
        engine.deploy(str(flows))
        run = await engine.start("etl", id="a")
        await run.result(60)
        await engine.start("approval", id="p")
        await (await engine.run("p")).settled(timeout=60)
        (task,) = await engine.tasks()
        await engine.task_claim(task["id"], user="ann", roles=["boss"])
        await engine.task_complete(task["id"], {"ok": True}, user="ann", roles=["boss"])
        await engine.signal("p", "go")
        await (await engine.run("p")).result(60)
        assert {row["id"]: row["status"] for row in await engine.list()} == {
            "a": "completed",
            "p": "completed",
        }
        assert await assert_replays(engine) == 2


async def test_what_was_there_is_there_after_reopening(url: str, flows: Path) -> None:
    async with Engine(url) as engine:
        engine.deploy(str(flows))
        await engine.start("approval", id="p")
        await (await engine.run("p")).settled(timeout=60)
    async with Engine(url) as engine:
        (task,) = await engine.tasks()
        await engine.task_claim(task["id"], user="ann", roles=["boss"])
        await engine.task_complete(task["id"], None, user="ann", roles=["boss"])
        await engine.signal("p", "go")
        await (await engine.run("p")).result(60)
        await assert_replays(engine)


async def test_a_guest_beside_the_owner_gets_the_real_answers(url: str, flows: Path) -> None:
    async with Engine(url) as owner:
        owner.deploy(str(flows))
        async with Engine(url, help_others=False) as guest:
            assert (owner.owns, guest.owns) == (True, False)
            run = await guest.start("etl", id="a")
            again = await guest.start("etl", id="a")
            assert (run.existing, again.existing) == (False, True)
            await run.result(60)
            await guest.start("approval", id="p")
            answer = await guest.signal("p", "go", key="k")
            assert answer["run"] == "p"


async def test_the_next_process_takes_over_at_once_when_the_owner_leaves(url: str, flows: Path) -> None:
    owner = await Engine(url).__aenter__()
    owner.deploy(str(flows))
    async with Engine(url) as guest:
        await owner.__aexit__()
        await until(lambda: guest.shards["held"] == 64)
        await (await guest.start("etl", id="a")).result(60)


_OWNER = """
import asyncio, sys
from treadle import Engine

async def main():
    async with Engine(sys.argv[1]) as engine:
        engine.deploy(sys.argv[2])
        for n in range(20):
            await engine.start("approval", id=f"p{n}")
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_after_kill_9_another_process_takes_over_and_nothing_acknowledged_is_missing(
    url: str, flows: Path
) -> None:
    command = ["-c", _OWNER, url, str(flows)]
    process = nursery.Process(command, stdout=nursery.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
    killed = time.monotonic()

    async def after() -> float:
        async with Engine(url) as engine:
            await until(lambda: engine.owns)
            took = time.monotonic() - killed
            assert {row["id"] for row in await engine.list()} == {f"p{n}" for n in range(20)}
            for n in range(20):
                await (await engine.run(f"p{n}")).settled(timeout=60)
            assert len(await engine.tasks()) == 20
            await assert_replays(engine)
            return took

    took = asyncio.run(after())
    # A lease, a second, and what a busy machine needs to start an engine.
    assert took < LEASE_NS / 1e9 + 10
