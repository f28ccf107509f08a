"""Many failed runs are retried by one command, which is killed in between and given again.

The suite takes a few hundred. `make bulk` takes 10,000 (TREADLE_BULK) and says how long it took.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests import nursery

from treadle import Engine
from treadle.cli.bulk import AT_ONCE
from treadle.store.open import read_store
from treadle.testing import assert_replays

COUNT = int(os.environ.get("TREADLE_BULK", "400"))
# Of so many runs the journals are decided again at the end.
REPLAYED = 300
PATIENCE_S = 60.0 + COUNT / 50
# So many are done before the command is killed; those that it begins after them do not come to their end. It begins
# fewer than there are (`cli.bulk.AT_ONCE`), so some are left for the next.
FIRST = 20
CODE = """
import asyncio
from pathlib import Path

from treadle import flow


@flow.step(name="many.enter", retry={"attempts": 1})
async def enter(number: int) -> int:
    here = Path(__file__)
    if not here.with_name("open").exists():
        raise RuntimeError("it is shut")
    if number >= FIRST and here.with_name("held").exists():
        await asyncio.Event().wait()
    return 1


@flow.workflow(name="many", version="1")
async def many(ctx: flow.Context, number: int) -> int:
    return await enter(number)
"""


async def failed_runs(url: str, folder: Path) -> None:
    (folder / "many.py").write_text(CODE.replace("FIRST", str(FIRST)))
    async with Engine(url) as engine:
        engine.deploy(str(folder / "many.py:many"))
        room = asyncio.Semaphore(200)

        async def one(number: int) -> None:
            async with room:
                run = await engine.start("many", number, id=f"m{number:05}")
                await run.settled(timeout=PATIENCE_S)

        # Oldest first is the order in which they are retried.
        await asyncio.gather(*(one(number) for number in range(COUNT)))


async def anew(folder: Path, runs: int) -> float:
    """The engine's speed: as many runs of the same kind, none of which has to be looked up, started and awaited."""
    async with Engine(f"sqlite:///{folder}/anew.db") as engine:
        engine.deploy(str(folder / "many.py:many"))
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                assert await (await engine.start("many", number)).result() == 1

        began = time.monotonic()
        await asyncio.gather(*(one(number) for number in range(runs)))
        return runs / (time.monotonic() - began)


def count(url: str, status: str) -> int:
    with closing(read_store(url)) as reads:
        return reads.run_count().get(status, 0)


def until(asked: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not asked():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_many_failed_runs_are_retried_killed_and_gone_on_with(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/many.db"
    asyncio.run(failed_runs(url, tmp_path))
    assert count(url, "failed") == COUNT
    (tmp_path / "open").touch()
    (tmp_path / "held").touch()
    begin = ["-m", "treadle.cli"]
    command = [*begin, "retry", "--status", "failed", "--workflow", "many", "--since", "1d"]
    more = ["--store", url]
    with nursery.Process(
        [*command, *more], cwd=tmp_path, stdout=nursery.DEVNULL, stderr=nursery.DEVNULL
    ) as first:
        until(lambda: count(url, "completed") == FIRST)
        first.kill()
    (tmp_path / "held").unlink()
    rest = count(url, "failed")
    assert 0 < rest < COUNT - FIRST, "it was cut in between"
    began = time.monotonic()
    again = nursery.run([*command, *more], cwd=tmp_path, timeout=PATIENCE_S)
    took = time.monotonic() - began
    assert again.returncode == 0, again.stderr
    assert f"{rest} runs: {rest} completed" in again.stderr
    print(
        f"{rest} runs were retried in {took:.1f} s: {rest / took:.0f} a second, start of the command included; "
        f"{rest} new ones at once: {asyncio.run(anew(tmp_path, rest)):.0f} a second"
    )
    resumed = nursery.run([*begin, "resume", *more], cwd=tmp_path, timeout=PATIENCE_S)
    assert resumed.returncode == 0, resumed.stderr
    assert count(url, "completed") == COUNT

    async def replayed() -> None:
        async with Engine(url, readonly=True) as engine:
            engine.load(str(tmp_path / "many.py:many"))
            for number in range(min(COUNT, REPLAYED)):
                assert await assert_replays(await engine.run(f"m{number:05}")) == 1

    asyncio.run(replayed())
