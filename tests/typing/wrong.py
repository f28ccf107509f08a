"""Mistakes that a type checker must find, each marked with what it should say. Checked, never executed."""

from __future__ import annotations

from treadle import Engine, Run, RunFailed
from treadle.sync import Engine as SyncEngine
from treadle.sync import Run as SyncRun


async def right(engine: Engine) -> str:
    engine.deploy("flows/")
    run: Run = await engine.start("etl", {"day": "2026-11-15"}, id="etl-1")
    async for event in run.events():
        print(event["type"])
    try:
        await run.result(timeout=60)
    except RunFailed as failed:
        return failed.code
    return run.id


async def wrong(engine: Engine) -> None:
    engine.start("etl").result()  # expect: attr-defined
    await engine.start("etl", idd="etl-1")  # expect: call-overload
    await engine.signal("etl-1", 42)  # expect: arg-type
    await engine.list(statsu="failed")  # expect: call-arg
    await engine.tasks(role=5)  # expect: arg-type
    run = await engine.start("etl")
    await run.result(timeout="1m")  # expect: arg-type
    number: int = run.id  # expect: assignment
    print(number)


def right_and_synchronous(engine: SyncEngine) -> str:
    run: SyncRun = engine.start("etl", {"day": "2026-11-15"}, id="etl-1")
    for event in run.events(after=3):
        print(event["type"])
    run.result(timeout=60)
    return run.id


def wrong_and_synchronous(engine: SyncEngine) -> None:
    engine.start("etl", idd="etl-1")  # expect: call-overload
    engine.signal("etl-1", 42)  # expect: arg-type
    run = engine.start("etl")
    run.result(timeout="1m")  # expect: arg-type
    number: int = run.id  # expect: assignment
    print(number)
