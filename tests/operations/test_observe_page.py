"""docs/operations/observe.md is followed from an empty folder: its blocks are run in order, against one server."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "observe.md"
FILES = re.compile(r"```\w+ file=(\S+)\n(.*?)```", re.S)
BLOCK = re.compile(r"^```sh run\n(.*?)^```$", re.M | re.S)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    for name, body in FILES.findall(text):
        (tmp_path / name).write_text(body, "utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) >= 4
    script = "set -eu\n" + "\n".join(blocks)
    for port in ("8420", "4318"):
        other = str(free_port())
        script = script.replace(port, other)
        for path in tmp_path.iterdir():
            path.write_text(path.read_text("utf-8").replace(port, other), "utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TREADLE_", "OTEL_"))},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    log = tmp_path / "serve.log"
    for pid in (tmp_path / "serve.pid", tmp_path / "collector.pid"):
        if done.returncode != 0 and pid.exists():
            subprocess.run(["kill", "-9", pid.read_text().strip()], check=False)
    said = log.read_text() if log.exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + said
    lines = [json.loads(line) for line in said.splitlines()]
    assert {line["route"] for line in lines if "route" in line} >= {"/metrics", "/runs"}
    told = set(re.findall(r"`(treadle_\w+)", text))
    there = set(re.findall(r"^# TYPE (\S+) ", (tmp_path / "metrics.txt").read_text(), re.M))
    assert told == there, "the page names every metric, and no other"
