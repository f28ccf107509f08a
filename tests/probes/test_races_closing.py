"""Callers that meet an engine which closes, or one that opens: each is answered, and what it was told is so; or it is
told that the engine stopped. Nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, sync
from treadle.kernel.errors import EngineStopped, RunNotFound, StoreGone
from treadle.runtime import document
from treadle.store.protocol import Reads
from treadle.store.run_rows import RunRow
from treadle.testing import assert_replays

DEADLINE_S = 60.0
WAITS = "dialect: process\nname: waits\nversion: '1'\nsteps: [{await: {signal: go}}]\n"
ENDS = "dialect: process\nname: ends\nversion: '1'\nsteps: [{complete: 1}]\n"


def _flow(folder: Path, text: str = WAITS) -> Path:
    path = folder / "flow.yaml"
    path.write_text(text)
    return path


async def _signals(engine: Engine, caller: int, begun: asyncio.Event) -> list[str]:
    """Signals until the engine stops; those that were acknowledged."""
    told: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        while True:
            name = f"{caller}-{len(told)}"
            try:
                await engine.signal("r", name)
            except EngineStopped:
                return told
            told.append(name)
            begun.set()


async def _recorded(engine: Engine) -> set[str]:
    run = await engine.run("r")
    return {record["event"]["name"] for record in await run.journal() if record["kind"] == "signal"}


@pytest.mark.parametrize("closes", ["owner", "guest"])
async def test_whoever_calls_an_engine_that_closes_is_answered(tmp_path: Path, closes: str) -> None:
    store = f"sqlite:///{tmp_path / 't.db'}"
    engines = {"owner": Engine(store), "guest": Engine(store)}
    async with engines["owner"] as owner:
        await owner.start(owner.load(_flow(tmp_path))[0], None, id="r")
        await engines["guest"].__aenter__()
        begun = asyncio.Event()
        calls = [asyncio.create_task(_signals(engines[closes], caller, begun)) for caller in range(5)]
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
        if closes == "owner":
            await owner.__aexit__()
        else:
            await engines["guest"].__aexit__()
        told = {name for names in await asyncio.gather(*calls) for name in names}
        if closes == "owner":
            await engines["guest"].__aexit__()
    async with Engine(store) as engine:
        assert told <= await _recorded(engine)
        await assert_replays(engine)


async def test_whoever_calls_an_engine_in_memory_that_closes_is_answered(tmp_path: Path) -> None:
    async with Engine("memory:") as engine:
        await engine.start(engine.load(_flow(tmp_path))[0], None, id="r")
        begun = asyncio.Event()
        calls = [asyncio.create_task(_signals(engine, caller, begun)) for caller in range(5)]
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
    await asyncio.gather(*calls)


def test_threads_that_wait_for_an_engine_that_closes_are_told(tmp_path: Path) -> None:
    told: dict[str, type[BaseException]] = {}
    many = threading.Event()

    def waits(name: str, call: Callable[[], object]) -> threading.Thread:
        def until_it_stops() -> None:
            try:
                while True:
                    call()
                    many.set()
            except BaseException as error:
                told[name] = type(error)

        thread = threading.Thread(target=until_it_stops, daemon=True)
        thread.start()
        return thread

    with sync.Engine(f"sqlite:///{tmp_path / 't.db'}") as engine:
        run = engine.start(engine.load(_flow(tmp_path))[0], None, id="r")
        threads = [
            waits("result", run.result),
            waits("events", lambda: [*run.events()]),
            *(waits(f"signal {n}", lambda: engine.signal("r", "x")) for n in range(4)),
        ]
        assert many.wait(DEADLINE_S)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert told == dict.fromkeys(("result", "events", *(f"signal {n}" for n in range(4))), EngineStopped)


async def test_a_thread_that_waits_is_told_at_once_that_its_engine_is_over(tmp_path: Path) -> None:
    """`deploy` waits on the event loop's own thread, so nobody there could tell it."""
    engine = Engine(f"sqlite:///{tmp_path / 't.db'}")
    flows = [
        _flow(tmp_path, WAITS.replace("'1'", f"'{n}'")) and engine.load(tmp_path / "flow.yaml")[0]
        for n in (1, 2)
    ]
    async with engine:
        engine.deploy(flows[0])
        for path in tmp_path.glob("t.db*"):
            path.unlink()
        with pytest.raises(StoreGone):
            while True:
                engine.deploy(flows[1])
        with pytest.raises(StoreGone):
            engine.deploy(flows[0])


def _has_grown(told: list[str], to: int) -> bool:
    return len(told) >= to


async def test_engines_that_open_and_close_in_turn_lose_nothing(tmp_path: Path) -> None:
    """One is always there; who owns the store changes under those who call."""
    store, flow = f"sqlite:///{tmp_path / 't.db'}", _flow(tmp_path)
    told: list[str] = []
    more = asyncio.Condition()

    async def lives(number: int, ready: asyncio.Event, end: asyncio.Event) -> None:
        async with Engine(store) as engine:
            ready.set()
            (definition,) = engine.load(flow)
            while not end.is_set():
                run = await engine.start(definition, None, id=f"{number}-{len(told)}")
                told.append(run.id)
                assert (await engine.signal(run.id, "go"))["status"] == "completed"
                async with more:
                    more.notify_all()

    ends = [asyncio.Event() for _ in range(6)]
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
        for number, end in enumerate(ends):
            ready = asyncio.Event()
            group.create_task(lives(number, ready, end))
            await ready.wait()
            async with more:
                await more.wait_for(partial(_has_grown, told, len(told) + 4))
            if number:
                ends[number - 1].set()
        ends[-1].set()
    async with Engine(store) as engine:
        found = {row["id"]: row["status"] async for row in engine.rows()}
        assert found == dict.fromkeys(told, "completed")
        await assert_replays(engine)


DOORS: dict[str, Callable[[Engine, str], Awaitable[object]]] = {
    "fork": lambda e, n: e.fork(n, new_id=f"{n}-f"),
    "start": lambda e, n: e.start("ends", None, id=n),
    "signal": lambda e, n: e.signal(n, "go"),
    "result": lambda e, n: _result(e, n),
    "replay": lambda e, n: e.replay(n),
    "delete": lambda e, n: e.delete(n),
}


async def _result(engine: Engine, name: str) -> object:
    return await (await engine.run(name)).result(timeout=DEADLINE_S)


async def test_a_collection_takes_whole_runs_whoever_uses_them_meanwhile(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 't.db'}"
    owner, guest = Engine(store), Engine(store)
    owner.deploy(_flow(tmp_path, ENDS))
    async with owner, guest:
        for _ in range(3):
            names = [f"{door}-{n}" for door in DOORS for n in range(4)]
            for name in names:
                await owner.start("ends", None, id=name)
            asked = [
                DOORS[name.partition("-")[0]](guest if name.endswith(("1", "3")) else owner, name)
                for name in names
            ]
            far = owner.clock.now_ns() + 10**18
            *told, collected = await asyncio.gather(*asked, owner.gc(now_ns=far), return_exceptions=True)
            assert isinstance(collected, dict)
            assert [
                one for one in told if isinstance(one, BaseException) and not isinstance(one, RunNotFound)
            ] == []
            for row in await owner.list(limit=1_000):
                assert await _result(owner, row["id"]) == 1
            await assert_replays(owner)
            await owner.gc(now_ns=far)
            assert await owner.list() == []
        assert (await owner.doctor(deep=True))["ok"]


class _ReadBefore:
    """What is read of a run, where its row was read before it was removed."""

    def __init__(self, reads: Reads, row: RunRow, outline: Any) -> None:
        self._reads, self._rows, self._outline = reads, [row], outline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reads, name)

    def run(self, id: str) -> RunRow | None:
        return self._rows.pop() if self._rows else self._reads.run(id)

    def outlined(self, id: str) -> Any:
        self._rows.clear()
        return self._outline


async def test_who_looks_at_a_run_that_is_removed_meanwhile_is_told_that_there_is_none(
    tmp_path: Path,
) -> None:
    async with Engine("memory:") as engine:
        run = await engine.start(engine.load(_flow(tmp_path, ENDS))[0], None, id="r")
        await run.result(timeout=DEADLINE_S)
        row, outline = await engine.read(lambda reads: (document.row_of(reads, "r"), reads.outlined("r")))
        await engine.delete("r")

        def before(reads: Reads) -> Any:
            return _ReadBefore(reads, row, outline)

        with pytest.raises(RunNotFound):
            await engine.read(lambda reads: document.show(before(reads), engine.library.registry(reads), "r"))
        with pytest.raises(RunNotFound):
            await engine.read(lambda reads: document.outcome(before(reads), "r"))
