"""`make demo` ends by itself, in success, and leaves out no example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE_S = 600

# Why an example is not part of the demo.
EXCUSED = {
    "reactive/counter.py": "a manifest beside its code; tests/dialects/reactive runs it",
    "process/services.py": "the functions that the processes call",
    "playbook/paginated_api.yaml": "needs PostgreSQL and an HTTP API; tests/dialects/playbook runs it with both",
}


def test_the_demo_runs_and_a_killed_run_is_completed() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "SIGKILL after part" in done.stdout
    assert "equal nightly-1" in done.stdout
    assert "the store is sound" in done.stdout


def test_every_example_is_in_the_demo_or_excused() -> None:
    demo = (EXAMPLES / "demo.py").read_text("utf-8")
    definitions = [
        path.relative_to(EXAMPLES).as_posix()
        for pattern in ("**/*.py", "**/*.yaml")
        for path in EXAMPLES.glob(pattern)
        if path.name != "demo.py" and "__pycache__" not in path.parts
    ]
    shown = {name for name in definitions if f"examples/{name}" in demo}
    missing = sorted(set(definitions) - shown - EXCUSED.keys())
    assert not missing, f"add these to the tour in examples/demo.py, or excuse them: {missing}"
    assert EXCUSED.keys() <= set(definitions) - shown, "an excuse that is not needed any more"
