"""A store that one Python made is decided alike by every other that `pyproject.toml` promises.

`make test-all` makes their environments (`.venvs`); those that are not there are skipped, and named.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = HERE / "everywhere.py"
PROMISED = [
    version for version in ("3.11", "3.12", "3.13") if version != ".".join(map(str, sys.version_info[:2]))
]


def asked(python: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [python, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of this Python."""
    store = tmp_path_factory.mktemp("made") / "made.db"
    asked(sys.executable, "make", str(store))
    return store


def replayed(python: str, store: Path, folder: Path) -> dict[str, Any]:
    copy = folder / store.name
    shutil.copyfile(store, copy)
    found: dict[str, Any] = json.loads(asked(python, "replay", str(copy)))
    return found


def test_what_is_replayed_has_every_dialect_and_failures(made: Path, tmp_path: Path) -> None:
    found = replayed(sys.executable, made, tmp_path)
    assert found["dialects"] == ["agent", "function", "playbook", "process", "reactive"]
    assert found["failed"] >= 7, "their errors quote Python, which words them otherwise in each version"
    assert (found["equal"], found["differs"]) == (13, {})


@pytest.mark.parametrize("version", PROMISED)
def test_another_python_decides_as_this_one_did(version: str, made: Path, tmp_path: Path) -> None:
    python = ROOT / ".venvs" / version / "bin" / "python"
    if not python.exists():
        pytest.skip(f"NOT CHECKED on Python {version}: there is no {python}; `make test-all` makes it")
    found = replayed(str(python), made, tmp_path)
    assert found["python"].startswith(version)
    assert (found["equal"], found["differs"]) == (13, {})
    for golden in sorted(HERE.glob("*.db")):
        again = replayed(str(python), golden, tmp_path)
        assert again["equal"] > 0
        assert again["differs"] == {}
