"""Every Python and every dependency that `pyproject.toml` promises.

    python3 .ci/pythons.py all [pytest's arguments]   the suite on every Python that is installed
    python3 .ci/pythons.py second                     the core suites on one more Python
    python3 .ci/pythons.py deps                       replays with the oldest and the newest dependencies

Pythons are looked for on PATH and in pyenv. Each gets an environment of its own in `.venvs`. What was not
found is said, because a promise that nobody checked is none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENVS = ROOT / ".venvs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# What decides or writes: replay must not depend on which of their versions is installed.
DECIDING = ("jinja2", "jsonschema", "libipld", "msgspec", "pyyaml", "google-re2")
CORE = (
    "tests/unit/kernel",
    "tests/unit/test_json_schema.py",
    "tests/golden",
    "tests/conformance/test_stores.py",
    "tests/conformance/test_sqlite_files.py",
    "tests/dialects/playbook/test_routing.py",
    "tests/dialects/playbook/test_loops.py",
    "tests/dialects/playbook/test_absent_arguments.py",
    "tests/dialects/process/test_machine.py",
    "tests/dialects/agent/test_edges.py",
    "tests/dialects/agent/test_nodes.py",
    "tests/dialects/reactive/test_receipts.py",
    "tests/dialects/reactive/test_world.py",
)


def promised() -> list[str]:
    named = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"]
    )
    return [found[1] for found in named if found]


def installed(version: str) -> Path | None:
    """A Python of a version such as 3.12; the newest of those in pyenv, where PATH has none that starts."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = sorted(pyenv.glob(f"{version}.*/bin/python"), key=lambda path: int(path.parts[-3].split(".")[2]))
    on_path = shutil.which(f"python{version}")
    for candidate in (*reversed(kept), *([Path(on_path)] if on_path else [])):
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.stdout.strip() == version:
            return candidate
    return None


def environment(name: str, python: Path, *arguments: str) -> Path:
    """The Python of an environment that holds this project and what it needs."""
    folder = VENVS / name
    inside = folder / "bin" / "python"
    wanted = " ".join([str(python), *arguments])
    mark, sources = folder / ".ready", (ROOT / "pyproject.toml", ROOT / "constraints.txt")
    fresh = mark.exists() and mark.read_text("utf-8") == wanted
    if fresh and all(mark.stat().st_mtime > source.stat().st_mtime for source in sources):
        return inside
    print(f"making {folder.relative_to(ROOT)} with {python}", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    subprocess.run([inside, "-m", "pip", "install", "-q", *arguments], check=True, cwd=ROOT)
    mark.write_text(wanted, "utf-8")
    return inside


def for_tests(version: str, python: Path) -> Path:
    return environment(version, python, "-c", "constraints.txt", "-e", ".[dev]")


def loudly(text: str) -> None:
    print(f"\n{'!' * 100}\n!! {text}\n{'!' * 100}\n", flush=True)


def pytest(python: Path, *arguments: str) -> int:
    command = [python, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def every(arguments: list[str]) -> int:
    """All environments first: a store that one Python makes is replayed by the others."""
    pythons = {version: installed(version) for version in promised()}
    ready = {version: for_tests(version, found) for version, found in pythons.items() if found}
    ended = {}
    for version, python in ready.items():
        print(f"== Python {version}", flush=True)
        ended[version] = pytest(python, *arguments)
    for version in pythons:
        print(
            f"Python {version}: {'NOT FOUND' if version not in ended else 'failed' if ended[version] else 'passed'}"
        )
    if missing := [version for version in pythons if version not in ended]:
        loudly(f"not tested, because not installed: Python {', '.join(missing)}")
    return int(any(ended.values()) or not ended)


def second() -> int:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = {version: python for version in promised() if version != here and (python := installed(version))}
    if not found:
        loudly(f"only Python {here} is installed here: the core suites ran on no second version")
        return 0
    version, python = list(found.items())[-1]
    print(f"== the core suites on Python {version}", flush=True)
    return pytest(for_tests(version, python), *CORE)


def dependencies() -> int:
    """The golden stores, and one that is made now, replayed with the oldest and the newest allowed."""
    bounds = dict(
        re.match(r"([\w.-]+?)(?:\[.*\])?>=([\w.]+)", line).groups() for line in PROJECT["dependencies"]
    )  # type: ignore[union-attr]
    python = Path(sys.executable)
    lowest = [f"{name}=={bounds[name]}" for name in DECIDING]
    places = {
        "lowest": environment("lowest", python, *lowest, "-e", "."),
        "highest": environment(
            "highest", python, "--upgrade", "--upgrade-strategy", "eager", *DECIDING, "-e", "."
        ),
    }
    script = ROOT / "tests" / "golden" / "everywhere.py"
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / "now.db"
        subprocess.run([places["highest"], script, "make", made], check=True)
        stores = [*sorted((ROOT / "tests" / "golden").glob("*.db")), made]
        for place, inside in places.items():
            told = subprocess.run(
                [inside, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
            ).stdout
            versions = [line for line in told.splitlines() if line.lower().split("==")[0] in DECIDING]
            print(f"== {place}: {', '.join(versions)}", flush=True)
            for store in stores:
                copy = Path(name) / f"{place}-{store.name}"
                shutil.copyfile(store, copy)
                answer = subprocess.run(
                    [inside, script, "replay", copy], capture_output=True, text=True, check=False
                )
                good = answer.returncode == 0 and '"differs": {}' in answer.stdout
                print(
                    f"{store.name}: {(answer.stdout if good else answer.stdout + answer.stderr).strip()}",
                    flush=True,
                )
                failed |= not good
    return int(failed)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["all", *arguments]:
            sys.exit(every(arguments))
        case ["second"]:
            sys.exit(second())
        case ["deps"]:
            sys.exit(dependencies())
        case _:
            sys.exit(__doc__)
