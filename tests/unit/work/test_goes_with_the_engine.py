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


DIES = """
import asyncio, os, signal, sys
from treadle.tools.protocol import ToolCall
from treadle.tools.registry import ToolRegistry
from treadle.tools.watchdog import Watchdog
Watchdog.add = lambda self, group: (print(group, flush=True), os.kill(os.getpid(), signal.SIGKILL))
asyncio.run(ToolRegistry().get("shell").run({"cmd": sys.argv[1]}, ToolCall()))
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
def test_a_command_whose_engine_is_killed_while_it_starts_it_never_begins(tmp_path):
    """Else it would be done twice: nobody knows of it, and the next owner starts it again."""
    begun = tmp_path / "begun"
    engine = subprocess.run(
        [sys.executable, "-c", DIES, f"touch {begun}; sleep 600"], capture_output=True, text=True, check=False
    )
    assert engine.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while lives(int(engine.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not begun.exists()


MCP = """
import asyncio, sys
from treadle.performers.agent.api import McpServer
from treadle.performers.agent.mcp import Sessions
async def main():
    command = f"sleep 600 & echo $! > {sys.argv[2]}; exec {sys.executable} {sys.argv[1]}"
    server = McpServer(name="calc", command="/bin/sh", args=("-c", command))
    await Sessions().open("v1", {"calc": server}, [])
    print("ready", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
DUCKDB = """
import asyncio, sys
from treadle.performers.agent.skills.duckdb import _query
sql = "SELECT sum(a.range * b.range % 7) FROM range(100000000) a, range(100000000) b"
asyncio.run(_query(sql, sys.argv[1], None, seconds=600))
"""


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in listed for child in each.read_text().split()]


def runs(pid: int, module: str) -> bool:
    return lives(pid) and module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
def test_a_killed_engine_takes_its_mcp_servers_along(tmp_path):
    told = tmp_path / "pid"
    server = Path(__file__).parents[2] / "dialects" / "agent" / "mcp_plain.py"
    command = [sys.executable, "-c", MCP, str(server), str(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"ready\n"
        pid = int(told.read_text())
        assert lives(pid)
        os.kill(engine.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
def test_a_killed_engine_takes_its_queries_along(tmp_path):
    engine = subprocess.Popen([sys.executable, "-c", DUCKDB, str(tmp_path)])
    deadline = time.monotonic() + 60
    # The watchdog is a child too, and is there as soon as it watches.
    while len(children(engine.pid)) < 2:
        assert engine.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (pid,) = [child for child in children(engine.pid) if runs(child, "duckdb_child")]
    os.kill(engine.pid, signal.SIGKILL)
    engine.wait()
    while lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
