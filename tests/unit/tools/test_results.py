"""What functions return: converted off the event loop, and bounded."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from treadle import Engine
from treadle.kernel.errors import RunFailed
from treadle.testing import assert_replays
from treadle.tools.protocol import Outcome, ToolCall
from treadle.tools.registry import ToolRegistry
from treadle.tools.results import is_small

HUGE_BYTES = 65 * 1024 * 1024
PLAYBOOK = 'metadata: {name: huge, version: "1"}\nworkflow: [{step: a, tool: {kind: reg}}]\n'
PROCESS = (
    "dialect: process\nname: huge\nsteps: [{call: {transport: reg, on_failure: [{complete: {$: error}}]}}]\n"
)


class Array:
    """A value that, like an array of numpy, says what it holds when it is converted."""

    def __init__(self) -> None:
        self.converted_by = 0

    def tolist(self) -> list[int]:
        self.converted_by = threading.get_ident()
        return list(range(10_000))


async def test_what_a_coroutine_returns_is_converted_off_the_loop():
    registry, array = ToolRegistry(plugins=False), Array()

    @registry.tool("reg")
    async def reg() -> Any:
        return array

    outcome = await registry.get("reg").run({}, ToolCall())
    assert outcome.result == list(range(10_000))
    assert array.converted_by not in (0, threading.get_ident())


@pytest.mark.parametrize("way", ["def", "async def", "outcome"])
async def test_a_result_above_the_limit_is_refused(way):
    registry = ToolRegistry(plugins=False, result_bytes_max=100_000)

    def reg(chars: int) -> Any:
        return "x" * chars if way != "outcome" else Outcome(result="x" * chars)

    async def waits(chars: int) -> Any:
        return reg(chars)

    registry.tool("reg")(waits if way == "async def" else reg)
    tool = registry.get("reg")
    assert (await tool.run({"chars": 90_000}, ToolCall())).result == "x" * 90_000
    outcome = await tool.run({"chars": 100_000}, ToolCall())
    assert outcome.error is not None
    assert outcome.error["code"] == "RESULT_TOO_LARGE"
    assert outcome.error["message"].startswith("the result takes 100,005 bytes, more than 100,000;")


@pytest.fixture(params=["def", "async def"])
def huge(request) -> Any:
    def plain(payload: Any = None) -> str:
        return "x" * HUGE_BYTES

    async def awaited(payload: Any = None) -> str:
        return "x" * HUGE_BYTES

    return plain if request.param == "def" else awaited


async def test_a_playbook_fails_with_the_clear_error(tmp_path, huge):
    (tmp_path / "huge.yaml").write_text(PLAYBOOK)
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.tool("reg")(huge)
        engine.deploy(str(tmp_path / "huge.yaml"))
        run = await engine.start("huge")
        with pytest.raises(RunFailed, match="write it to a file, a table or an artifact"):
            await run.result(60)
        assert "RESULT_TOO_LARGE" in str((await run.show())["error"])
        await assert_replays(run)


@pytest.mark.parametrize("registers", ["tool", "transport"])
async def test_a_process_gets_the_clear_error(tmp_path, huge, registers):
    (tmp_path / "huge.yaml").write_text(PROCESS)
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        (engine.tool if registers == "tool" else engine.transport)("reg")(huge)
        engine.deploy(str(tmp_path / "huge.yaml"))
        run = await engine.start("huge")
        assert (await run.result(60))["code"] == "RESULT_TOO_LARGE"
        await assert_replays(run)


def test_a_glance_tells_what_is_small():
    assert is_small({"a": [1, 2.5, None, True, "text", b"bytes"]})
    assert not is_small(list(range(10_000)))
    assert not is_small([["x" * 1000]] * 100)
    assert not is_small(Array())
