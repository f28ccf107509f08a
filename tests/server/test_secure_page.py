"""docs/operations/secure.md is followed from an empty folder: its blocks are run in order."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "secure.md"
BLOCK = re.compile(r"^```sh run\n(.*?)^```$", re.M | re.S)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text("utf-8"))
    assert len(blocks) >= 8
    script = "set -eu\n" + "\n".join(blocks).replace("8420", str(free_port()))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TREADLE_STORE": "sqlite:///treadle.db",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    pid = tmp_path / "serve.pid"
    if done.returncode != 0 and pid.exists():
        subprocess.run(["kill", "-9", pid.read_text().strip()], check=False)
    log = (tmp_path / "serve.log").read_text() if (tmp_path / "serve.log").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + log
    assert '"user": "ann"' in done.stdout or '"user":"ann"' in done.stdout
    assert "UNKNOWN_WORKFLOW" in done.stdout, "the signed request passed the door"
    assert (tmp_path / "admin.token").read_text().strip() not in done.stdout + done.stderr + log
    assert "a-shared-secret" not in done.stdout + done.stderr + log
