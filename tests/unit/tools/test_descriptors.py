"""When descriptors run out: told as what it is, nothing lost, and work goes on when there are some again."""

from __future__ import annotations

import asyncio
import os
import resource

import pytest

from treadle.tools.protocol import ToolCall
from treadle.tools.registry import ToolRegistry

from .conftest import wait_until

TASKS = {
    "shell": {"cmd": "echo hi"},
    "python": {"code": "result = 'hi'", "isolated": True},
}


def count() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", TASKS)
async def test_no_descriptor_is_lost_when_there_are_none_left(kind):
    registry = ToolRegistry()
    tool = registry.get(kind)
    assert (await tool.run(TASKS[kind], ToolCall())).error is None
    before, limits = count(), resource.getrlimit(resource.RLIMIT_NOFILE)
    codes = set()
    for spare in range(12):
        # The highest number in use counts, not how many there are.
        top = max(int(name) for name in os.listdir("/proc/self/fd"))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(top - before + 2)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1 + spare, limits[1]))
        try:
            outcome = await tool.run(TASKS[kind], ToolCall())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for fd in held:
                os.close(fd)
        if outcome.error is not None:
            codes.add(outcome.error["code"])
            assert outcome.error["retryable"]
        await asyncio.to_thread(wait_until, lambda: count() == before)
    assert codes == {"NO_DESCRIPTORS"}
    assert (await tool.run(TASKS[kind], ToolCall())).error is None
    await registry.close()
