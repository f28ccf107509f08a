"""House rules, because prose decays: sizes, names, openings, words that must not stay."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "treadle"
HERE = Path(__file__).resolve().parent

FUNCTION_LINES_MAX = 80
MODULE_LINES_MAX = 500
# Exceptions may only shrink: a number here is the most a thing may have, and leaves when it fits.
GRANDFATHERED: dict[str, int] = {}

NAMES_THAT_SAY_NOTHING = {
    "utils.py",
    "util.py",
    "helpers.py",
    "helper.py",
    "common.py",
    "manager.py",
    "misc.py",
}
# Written in halves, so that this file may be searched too.
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "raise Not" + "Implemented"]))
REGISTRIES = re.compile(
    "|".join(
        first + second
        for first, second in [
            ("pypi", r"\.org"),
            ("python", r"hosted\.org"),
            ("registry", r"\.npmjs"),
            ("registry", r"\.yarnpkg"),
            ("/opt/", "pypi"),
            ("arti", "factory"),
            ("--index", "-url"),
            ("--extra-index", "-url"),
        ]
    )
)


@cache
def tracked() -> tuple[Path, ...]:
    """The files of the repository, as git sees them: what would be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return tuple(path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file())


@cache
def text_of(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return None


def sources(*folders: str) -> list[Path]:
    inside = tuple(ROOT / folder for folder in folders)
    return [p for p in tracked() if p.suffix == ".py" and any(p.is_relative_to(f) for f in inside)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted name and length of every function of a file."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                assert child.end_lineno is not None
                yield f"{prefix}{child.name}", child.end_lineno - child.lineno + 1
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(ast.parse(text_of(path) or ""), f"{name_of(path)}:")


@cache
def lengths() -> dict[str, tuple[int, int]]:
    """Everything that has a length: (what it has, what it may have)."""
    found: dict[str, tuple[int, int]] = {}
    for path in sources("src", "benchmarks", "examples"):
        found[name_of(path)] = (len((text_of(path) or "").splitlines()), MODULE_LINES_MAX)
        found |= {name: (lines, FUNCTION_LINES_MAX) for name, lines in functions(path)}
    return found


def test_modules_and_functions_fit() -> None:
    found = lengths()
    long = {name: lines for name, (lines, most) in found.items() if lines > GRANDFATHERED.get(name, most)}
    assert not long, f"split these where their meaning splits: {long}"


def test_exceptions_only_shrink() -> None:
    found = lengths()
    for name, allowed in GRANDFATHERED.items():
        assert name in found, f"{name} is gone: drop it from GRANDFATHERED"
        lines, most = found[name]
        assert lines > most, f"{name} fits now: drop it from GRANDFATHERED"
        assert lines <= allowed, f"{name} has {lines} lines and may have {allowed}"


def test_no_module_has_a_name_that_says_nothing() -> None:
    found = [name_of(path) for path in tracked() if path.name in NAMES_THAT_SAY_NOTHING]
    assert not found, f"name these after what they are about: {found}"


def test_every_module_says_why_it_exists() -> None:
    silent = [
        name_of(path)
        for path in sources("src", "benchmarks", "examples")
        if (text := text_of(path) or "").strip()
        and not text.startswith('"""')
        and not ast.get_docstring(ast.parse(text))
    ]
    assert not silent, f"open these with a docstring: {silent}"


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in sources("src", "tests", "benchmarks", "examples")
        for number, line in enumerate((text_of(path) or "").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found, "\n".join(found)


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is a matter of the machine, not of the project."""
    found = [
        f"{name_of(path)}: {match.group()}"
        for path in tracked()
        if (text := text_of(path)) is not None and (match := REGISTRIES.search(text))
    ]
    assert not found, "\n".join(found)


def test_make_check_runs_what_this_file_does_not_see() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").split("\ncheck:")[1].split("\n\n")[0]
    for tool in ("ruff format --check", "ruff check", "mypy", "lint-imports"):
        assert tool in recipe, f"`make check` no longer runs {tool}"


CHANGES = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_changelog_has_its_shape() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    assert lines[0] == "# Changelog"
    releases = [line for line in lines if line.startswith("## ")]
    assert releases[0] == "## [Unreleased]"
    dated = [re.fullmatch(r"## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})", line) for line in releases[1:]]
    assert dated
    assert all(dated), f"write `## [1.2.3] - 2026-11-15`: {releases}"
    versions = [tuple(map(int, match.group(1).split("."))) for match in dated if match]
    assert versions == sorted(versions, reverse=True), "newest first"
    kinds = {line.removeprefix("### ") for line in lines if line.startswith("### ")}
    assert kinds <= CHANGES, f"kinds of change are {sorted(CHANGES)}"


def test_one_version_everywhere() -> None:
    import tomllib

    import treadle

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == treadle.__version__
    assert f"## [{treadle.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_nothing_waits_in_a_way_that_loses_a_cancellation() -> None:
    """`asyncio.wait_for` does, before Python 3.12: `asyncio.timeout` is for us (see bus/waiting.py)."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in tracked()
        if path.is_relative_to(SRC) and path.suffix == ".py" and "wait_for" in (text := text_of(path) or "")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and node.attr == "wait_for"
        and isinstance(node.value, ast.Name)
        and node.value.id == "asyncio"
    ]
    assert found == []
