"""Probes by somebody who did not write the code: hostile values, odd times and odd names through every door.
Whatever is handed in, a call is refused with a code or a run ends or waits; nothing of the machine (an address, an
internal error) is in what it says; its journal decides the same again; and the engine goes on."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.kernel.errors import TreadleError
from treadle.testing import assert_replays

DEADLINE_S = 60.0
OUTSIDE = {"timer", "signal", "task"}
TOOL = "metadata: {name: probe, version: '1'}\nworkflow:\n  - step: a\n    tool: {kind: probe, timeout: 20}\n"
CALL = """
dialect: process
name: Probe
steps:
  - call: {transport: probe, into: got, on_failure: [{complete: {failed: {$: error.code}}}]}
  - complete: {got: {$: result.got}}
"""


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Liar(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def _raises(error: BaseException) -> Callable[[], Any]:
    def probe() -> Any:
        raise error

    return probe


def _itself() -> list[Any]:
    one: list[Any] = []
    one.append(one)
    return one


def _deep() -> Any:
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "not a number": lambda: math.nan,
    "half a character": lambda: "caf\udce9",
    "half a character in a key": lambda: {"caf\udce9": 1},
    "two keys, one text": lambda: {1: 2, "1": 3},
    "a key that is a tuple": lambda: {(1, 2): 3},
    "a number of 5,000 digits": lambda: 10**5000,
    "an object": object,
    "a lock": threading.Lock,
    "a list within itself": _itself,
    "nested 5,000 deep": _deep,
    "a mapping that lies": lambda: Liar(a=1),
    "a range without end": lambda: range(10**12),
    "what looks like a link": lambda: b"\x01\x55\x12\x20" + bytes(32),
    "what looks like a reference": lambda: {
        "kind": "result_ref",
        "store": "blob",
        "checksum": "sha256:" + "0" * 64,
        "size": 1,
    },
    "an exception without text": _raises(NoText()),
    "an exception of half a character": _raises(ValueError("caf\udce9")),
    "an exception of 20 MB": _raises(ValueError("x" * 20_000_000)),
    "sys.exit": _raises(SystemExit("caf\udce9")),
    "a cancellation of its own": _raises(asyncio.CancelledError("mine")),
    "StopIteration": _raises(StopIteration(3)),
    "several exceptions": _raises(ExceptionGroup("g", [ValueError("a"), KeyError("b")])),
}


async def ended(engine: Engine, id: str) -> dict[str, Any]:
    """The document of a run once it has ended, or can only be moved on from outside."""
    run = await engine.run(id)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            shown: dict[str, Any] = await run.show()
            awaited = {wait["kind"] for wait in shown["waiting_for"]}
            if shown["status"] not in ("running", "waiting") or (awaited and awaited <= OUTSIDE):
                return shown
            await asyncio.sleep(0.01)


def nothing_internal(said: object) -> None:
    text = json.dumps(said, default=str)
    for mark in (" at 0x", "INTERNAL", "PERFORMER_FAILED", "bug in Treadle"):
        assert mark not in text


@pytest.mark.parametrize("door", ["def", "async def", "transport"])
async def test_whatever_a_tool_gives_is_an_outcome(tmp_path: Path, door: str) -> None:
    engine = Engine(f"sqlite:///{tmp_path / 't.db'}")
    given: list[Callable[[], Any]] = []

    def probe(*_: Any, **__: Any) -> Any:
        return given[-1]()

    async def awaited(*_: Any, **__: Any) -> Any:
        return given[-1]()

    if door == "transport":
        engine.transport("probe")(probe)
    else:
        engine.tool("probe")(probe if door == "def" else awaited)
    flow = tmp_path / "flow.yaml"
    flow.write_text(CALL if door == "transport" else TOOL)
    async with engine:
        for number, (what, give) in enumerate(VALUES.items()):
            given.append(give)
            await engine.start(flow, None, id=f"v{number}")
            shown = await ended(engine, f"v{number}")
            assert shown["status"] in ("completed", "failed"), what
            nothing_internal(shown)

        await assert_replays(engine)
        assert (await engine.doctor(deep=True))["ok"]


ENDS = ("9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2262-04-12T00:00:00Z", "10000-01-01T00:00:00Z")
LONG = ("999999999d", "99999999999999999999d", "106752d", "P999999Y", "0s")
SECONDS = ("1e300", "9223372037", "99999999999999999999", "-5", ".inf")
TIMES = {
    **{f"wait until {at}": f"steps:\n  - wait: {{until: '{at}'}}\n" for at in ENDS},
    **{f"wait {long}": f"steps:\n  - wait: {long}\n" for long in LONG},
    **{f"await for {long}": f"steps:\n  - await: {{signal: go, timeout: {long}}}\n" for long in LONG},
    **{f"sleep {n} s": f"tool: {{kind: wait, seconds: {n}}}" for n in SECONDS},
    **{f"limit of {n} s": f"spec: {{policy: {{lifecycle: {{timeout_s: {n}}}}}}}" for n in SECONDS},
}


@pytest.mark.parametrize("what", TIMES)
async def test_a_time_at_the_end_of_the_clock_is_refused_or_waited_for(tmp_path: Path, what: str) -> None:
    flow, text = tmp_path / "flow.yaml", TIMES[what]
    if text.startswith("steps"):
        flow.write_text(f"dialect: process\nname: P\n{text}")
    else:
        noop = "" if text.startswith("tool") else "\n    tool: {kind: noop}"
        flow.write_text(f"metadata: {{name: p, version: '1'}}\nworkflow:\n  - step: a\n    {text}{noop}\n")
    async with Engine("memory:") as engine:
        try:
            run = await engine.start(flow, None)
        except TreadleError as error:
            nothing_internal(error.to_value())
            return
        shown = await ended(engine, run.id)
        nothing_internal(shown)
        await assert_replays(engine)
        await engine.cancel(run.id)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../c.yaml", "./c.yaml", "c.yaml", "c.py", "", "x" * 5000, ".", "c@1@2"]
)
async def test_a_childs_name_that_comes_from_data_is_never_a_file(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "executed"
    (tmp_path / "c.py").write_text(f"open({str(mark)!r}, 'w')")
    (tmp_path / "c.yaml").write_text(TOOL.replace("kind: probe", f"kind: shell, cmd: 'touch {mark}'"))
    flow = tmp_path / "flow.yaml"
    flow.write_text(
        TOOL.replace("kind: probe, timeout: 20", "kind: workflow, workflow: '{{ workload.name }}'")
    )
    async with Engine("memory:") as engine:
        run = await engine.start(flow, {"name": name})
        shown = await ended(engine, run.id)
        assert shown["status"] == "failed"
        nothing_internal(shown)
        assert not mark.exists()
        await assert_replays(engine)
