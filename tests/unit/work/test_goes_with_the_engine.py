"""What the engine starts does not outlive it, not even an engine that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, sys
from treadle.tools.protocol import ToolCall
from treadle.tools.registry import ToolRegistry
async def main():
    await ToolRegistry().get(sys.argv[1]).run({"cmd": sys.argv[2], "code": sys.argv[2]}, ToolCall())
asyncio.run(main())
"""
WAYS = {
    "shell": ("shell", "echo $$ > {0}; sleep 600"),
    "shell with children": ("shell", "(sleep 600 & echo $! > {0}; wait)"),
    "python": (
        "python",
        "import os, time; open('{0}', 'w').write(str(os.getpid()) + chr(10)); time.sleep(600)",
    ),
    "python with children": (
        "python",
        "import subprocess; p = subprocess.Popen(['sleep', '600']); open('{0}', 'w').write(str(p.pid) + chr(10)); p.wait()",
    ),
}


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
@pytest.mark.parametrize("way", WAYS)
def test_a_killed_engine_takes_its_commands_along(tmp_path, way):
    kind, command = WAYS[way]
    told = tmp_path / "pid"
    engine = subprocess.Popen([sys.executable, "-c", PROGRAM, kind, command.format(told)])
    deadline = time.monotonic() + 120
    while not told.exists() or not told.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int(told.read_text())
    assert lives(pid)
    os.kill(engine.pid, signal.SIGKILL)
    engine.wait()
    while lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
