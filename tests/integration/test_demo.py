"""`make demo` ends by itself, in success, and leaves out no example."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests import nursery

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE_S = 600

# Why an example is not part of the demo.
EXCUSED = {
    "reactive/counter.py": "a manifest beside its code; tests/dialects/reactive runs it",
    "process/services.py": "the functions that the processes call",
    "playbook/paginated_api.yaml": "needs PostgreSQL and an HTTP API; tests/dialects/playbook runs it with both",
}


def test_the_demo_runs_and_a_killed_run_is_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, as `make demo` runs it; but for the time that sixty processes take to import the same modules."""
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", demo)
    spec.loader.exec_module(demo)
    performed: list[str] = []

    def perform(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
        performed.append(line)
        program, *words = shlex.split(line)
        begins = {"treadle": ["-m", "treadle.cli"], "python": []}[program]
        return nursery.run([*begins, *words], cwd=folder, env=demo.environment(), timeout=PATIENCE_S)

    monkeypatch.setattr(demo, "perform", perform)
    demo.main()
    told = capsys.readouterr().out
    assert "SIGKILL after part" in told
    assert "equal nightly-1" in told
    assert "the store is sound" in told
    commands = [command.line.split()[:2] for stop in demo.TOUR for command in stop.commands]
    assert len(performed) >= len(commands), "every command of the tour was given"


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
