"""Other durable engines that need no server, measured with the same work on the same disk.

Each has a virtual environment of its own, kept under the system's temporary folder, so that Treadle
neither depends on them nor shares their versions. Each runs as its documentation says, with its own
defaults; a script prints what it commits with. What cannot be installed here is reported, not guessed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

PEERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dbos": ("dbos_sqlite.py", ("dbos",)),
    "langgraph": ("langgraph_sqlite.py", ("langgraph", "langgraph-checkpoint-sqlite")),
}
PATIENCE_S = 900


def measure_peer(name: str, folder: Path, *, quick: bool) -> dict[str, Any]:
    script, packages = PEERS[name]
    home = Path(tempfile.gettempdir()) / f"treadle-bench-{name}"
    python = home / "bin" / "python"
    try:
        if not (home / ".ready").exists():
            venv.create(home, with_pip=True, clear=True)
            _run([str(python), "-m", "pip", "install", "-q", *packages])
            (home / ".ready").touch()
        steps, runs = (10, 20) if quick else (200, 100)
        here = Path(__file__).resolve().parent / script
        out = _run([str(python), str(here), str(folder), str(runs), str(steps)])
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()
        return {"error": last[-1] if last else f"exit {error.returncode}"}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": str(error)}
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    return figures


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    if done.stderr and "--verbose" in sys.argv:
        print(done.stderr, file=sys.stderr)
    return done.stdout
