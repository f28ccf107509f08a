"""Standard output carries the answer and nothing else, whatever tools and their children print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

# A plug-in as pip would install it, with a tool that talks in every way there is.
PLUGIN = """
import logging, os, subprocess, sys, threading
from treadle.agent import Skill

print("printed at import")
held = sys.stdout
loud = Skill("loud", name="Loud", description="talks", category="general")

@loud.tool("talk", description="talks")
def talk(input, ctx):
    print("printed by a tool")
    held.write("printed through an old handle")
    os.write(1, b"written to the descriptor\\n")
    subprocess.run([sys.executable, "-c", "print('printed by a child')"], check=True)
    # A thread that outlives the command, as a tool that ran out of time leaves one.
    threading.Thread(target=lambda: (threading.main_thread().join(), print("printed late")), daemon=False).start()
    return "said"
"""
SAID = ("at import", "by a tool", "an old handle", "to the descriptor", "by a child", "late")
FLOW = {
    "id": "wf",
    "name": "W",
    "entry": "a",
    "nodes": {"a": {"name": "A", "instruction": "talk", "skills": ["loud"]}},
    "edges": [],
}
SCRIPT = {"run": {"a": [{"tool_calls": [{"tool": "talk", "input": {}}], "data": {"ok": 1}}]}}


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "loud-1.dist-info").mkdir(parents=True)
    (site / "loud-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: loud\nVersion: 1\n")
    (site / "loud-1.dist-info" / "entry_points.txt").write_text("[treadle.skills]\nloud = loud_skill:loud\n")
    (site / "loud_skill.py").write_text(PLUGIN)
    (tmp_path / "flow.json").write_text(json.dumps(FLOW))
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder / "site"), "TREADLE_STORE": "sqlite:///t.db"}


def treadle(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "treadle.cli", *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("flag", ["--json", "--stream"])
def test_what_tools_print_is_not_in_the_answer(loud: Path, flag: str) -> None:
    done = treadle(loud, "run", "flow.json", "--model", "scripted:script.json", flag)
    assert done.returncode == 0, done
    if flag == "--json":
        assert json.loads(done.stdout)["state"]["results"]["a"]["toolCalls"][0]["output"] == "said"
    else:
        events = [json.loads(line)["type"] for line in done.stdout.splitlines()]
        assert "tool:result" in events
        assert events[-1] == "workflow:end"
    # It is not lost either: people see it.
    assert all(said in done.stderr for said in SAID), done.stderr


def test_help_and_version_are_answers(loud: Path) -> None:
    assert "--stream" in treadle(loud, "run", "--help").stdout
    assert treadle(loud, "--version").stdout.startswith("treadle ")


def test_a_reader_that_goes_away_is_no_error(loud: Path) -> None:
    treadle(loud, "run", "flow.json", "--model", "scripted:script.json", "--id", "r1")
    command = [sys.executable, "-m", "treadle.cli", "events", "r1", "--json"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        command, cwd=loud, env=environment(loud), stdout=writing, stderr=subprocess.PIPE, timeout=60
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_what_tools_print_is_not_in_the_protocol(loud: Path) -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "treadle.cli", "mcp", "--deploy", "flow.json"],
        cwd=str(loud),
        env=environment(loud),
    )
    stray: list[Any] = []

    async def watch(message: Any) -> None:
        stray.append(message)

    async with Client(command, message_handler=watch) as client:
        started = {"workflow": "wf", "id": "r1", "model": f"scripted:{loud}/script.json"}
        assert not (await client.call_tool("start_workflow", started)).is_error
        shown = (await client.call_tool("watch_run", {"run": "r1"})).structured_content
        assert shown is not None
        assert shown["state"]["results"]["a"]["data"] == {"ok": 1}
    assert [message for message in stray if isinstance(message, Exception)] == []
