"""Shared code knows no dialect by name: what it asks of one is declared in `lang.definition.Dialect`."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from treadle.definitions.dialects import Dialects
from treadle.dialects import INSTALLED
from treadle.lang.definition import Dialect

SRC = Path(__file__).resolve().parents[2] / "src" / "treadle"
# Where a dialect is at home, and what authors import of it.
HOMES = ("apps", "dialects", "performers", "testing", *(f"{name}.py" for name in INSTALLED))
# Files without any of these need no closer look.
QUOTED = re.compile(rf"""["']({"|".join(INSTALLED)})["']""")
# Still told apart by name; the list only shrinks.
BY_NAME = {
    "cli/output.py": 1,
    "cli/view.py": 2,
    "runtime/payloads.py": 2,  # hints of references: words of the stored format, so they stay
    "views/comparing.py": 1,
    "views/trace.py": 1,
}


def names_in(path: Path) -> int:
    """How often a file has the name of a dialect as a text of its own. `__all__` lists names of Python."""
    text = path.read_text("utf-8")
    if not QUOTED.search(text):
        return 0
    tree = ast.parse(text)
    skipped = {
        id(node)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "__all__" for target in statement.targets)
        for node in ast.walk(statement)
    }
    return sum(
        isinstance(node, ast.Constant) and node.value in INSTALLED and id(node) not in skipped
        for node in ast.walk(tree)
    )


def test_shared_code_knows_no_dialect_by_name() -> None:
    found = {
        path.relative_to(SRC).as_posix(): count
        for path in sorted(SRC.rglob("*.py"))
        if path.relative_to(SRC).parts[0] not in HOMES and (count := names_in(path))
    }
    assert found == BY_NAME


@pytest.mark.parametrize("name", INSTALLED)
def test_every_installed_dialect_declares_what_it_is(name: str) -> None:
    dialect = Dialects()[name]
    assert isinstance(dialect, Dialect)
    assert dialect.name == name == dialect.machine.dialect
    assert callable(import_module(f"treadle.performers.{name}").performers)
    declared = {member for member in vars(Dialect) if not member.startswith("_")} | {"name", "machine"}
    own = {member for member in vars(type(dialect)) if not member.startswith("_")}
    # What a dialect has besides is its own business: nobody outside may ask for it.
    outside = {member for path in SRC.rglob("*.py") for member in asked_of(path, own - declared)}
    assert not outside, f"declare these in Dialect: {outside}"


def asked_of(path: Path, members: set[str]) -> set[str]:
    """Which of these members a file asks of an engine's dialects: `dialects[…].member`."""
    text = path.read_text("utf-8")
    if path.relative_to(SRC).parts[0] == "dialects" or "dialects[" not in text:
        return set()
    return {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and node.attr in members
        and isinstance(node.value, ast.Subscript)
        and isinstance(node.value.value, ast.Attribute)
        and node.value.value.attr in ("dialects", "_dialects")
    }


def test_the_architecture_page_names_every_room() -> None:
    page = (SRC.parents[1] / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    rooms = [f"{p.name}/" if p.is_dir() else p.name for p in SRC.iterdir() if _is_room(p)]
    missing = sorted(room for room in rooms if f"`{room}`" not in page)
    assert not missing, f"say in docs/ARCHITECTURE.md what these are for: {missing}"


def _is_room(path: Path) -> bool:
    if path.is_dir():
        return (path / "__init__.py").is_file()
    return path.suffix == ".py" and path.name != "__init__.py"


# Large rooms, by the heading under which the page says what each of their modules is about. Dialects have files of the
# same names: each is to stand in the part of its own dialect.
MAPPED = {
    "kernel": "The rooms of the kernel",
    "runtime": "The rooms of the runtime",
    "host": "The rooms of the host",
    "store": "The rooms of stores",
    "bus": "The rooms of the bus",
    "work": "The rooms of workers",
    "apps": "The rooms of applications as operations",
    "server": "The rooms of the server",
    "testing": "The rooms of testing",
    "testing/sim": "The rooms of the simulator",
    "function": "The rooms of durable functions",
    "playbook": "The rooms of playbooks",
    "agent": "The rooms of agents",
    "process": "The rooms of processes",
    "reactive": "The rooms of reactive applications",
}


@pytest.mark.parametrize("room", MAPPED)
def test_the_page_names_every_module_of_a_large_room_and_no_other(room: str) -> None:
    """A newcomer finds the place of a rule by the page alone."""
    page = (SRC.parents[1] / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    part = page.split(f"## {MAPPED[room]}\n", 1)[1].split("\n## ", 1)[0]
    folders = [f"dialects/{room}", f"performers/{room}"] if room in INSTALLED else [room]
    modules = [path for folder in folders for path in sorted((SRC / folder).glob("*.py"))]
    missing = [path.name for path in modules if path.stem != "__init__" and f"`{path.name}`" not in part]
    assert not missing, f"say in docs/ARCHITECTURE.md what these of {room} are for: {missing}"
    gone = set(re.findall(r"`(\w+\.py)`", part)) - {path.name for path in modules}
    assert not gone, f"docs/ARCHITECTURE.md speaks of modules that {room} has not: {gone}"


def test_the_page_names_files_that_are_there() -> None:
    """`runtime/gate.py: Gate` and the like, from the sources or from the top."""
    page = (SRC.parents[1] / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    named = set(re.findall(r"`([\w.]+(?:/[\w.]+)+\.py)\b", page))
    # What is short for a file of the room that is spoken of.
    tops = [SRC, SRC.parents[1], SRC / "performers/agent", SRC / "testing"]
    gone = sorted(name for name in named if not any((top / name).is_file() for top in tops))
    assert len(named) > 100
    assert not gone, f"docs/ARCHITECTURE.md names files that are not there: {gone}"
