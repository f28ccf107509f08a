"""Every error code can be looked up: docs/errors says its cause and its remedy.

A code that a class of errors carries has a page of its own. A code that is given where the error is raised
(`code="X"`), and the codes of `treadle check`, may share a page: a table with a row each.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "treadle"
PAGES = ROOT / "docs" / "errors"
CODE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
# What `treadle check` calls problems of playbooks.
PROBLEM = re.compile(r"[a-z]+(_[a-z]+)+")
ROW = re.compile(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", re.M)
# What a machine that only tests use may say, and the code of a run that ends with a `fail` step of its own.
NOT_OURS = {"FAILED"}
TESTING = SRC / "testing"


@cache
def nodes() -> tuple[tuple[Path, ast.ClassDef | ast.Call], ...]:
    """Every class and every call of the sources, with its file."""
    return tuple(
        (path, node)
        for path in sorted(SRC.rglob("*.py"))
        if not path.is_relative_to(TESTING)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef | ast.Call)
    )


def _constant(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def class_codes() -> Iterator[tuple[str, str]]:
    """`code = "X"` in the body of a class, with the name of the class."""
    for _, node in nodes():
        for line in node.body if isinstance(node, ast.ClassDef) else ():
            match line:
                case ast.Assign(targets=[ast.Name(id="code")], value=value):
                    found = _constant(value)
                case ast.AnnAssign(target=ast.Name(id="code"), value=value):
                    found = _constant(value)
                case _:
                    continue
            if found is not None and CODE.fullmatch(found):
                yield found, node.name


def given_codes() -> Iterator[tuple[str, str]]:
    """`code="X"` in a call, and the code of a problem (`problems.error("X", …)`), with the place."""
    for path, node in nodes():
        if not isinstance(node, ast.Call):
            continue
        place = f"{path.relative_to(ROOT)}:{node.lineno}"
        for keyword in node.keywords:
            if keyword.arg == "code" and (found := _constant(keyword.value)) and CODE.fullmatch(found):
                yield found, place
        match node:
            case ast.Call(func=ast.Attribute(attr="error" | "warning" | "unknown_key"), args=[first, _, *_]):
                if (found := _constant(first)) and (CODE.fullmatch(found) or PROBLEM.fullmatch(found)):
                    yield found, place


@cache
def pages() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PAGES.glob("*.md") if CODE.fullmatch(path.stem)))


def rows() -> dict[str, tuple[str, str]]:
    return {
        code: (cause, remedy)
        for path in PAGES.glob("*.md")
        if not CODE.fullmatch(path.stem)
        for code, cause, remedy in ROW.findall(path.read_text("utf-8"))
    }


def test_the_walk_sees_codes() -> None:
    assert ("STORE_FULL", "StoreFull") in set(class_codes())
    assert "STORE_OWNED" in {code for code, _ in given_codes()}


def test_every_error_class_has_a_page() -> None:
    missing = sorted({f"{code} ({name})" for code, name in class_codes() if code not in pages()})
    assert not missing, f"write docs/errors/CODE.md with Cause and Remedy: {missing}"


def test_every_other_code_has_a_page_or_a_row() -> None:
    documented = {*pages(), *rows(), *NOT_OURS}
    missing = sorted({f"{code} ({place})" for code, place in given_codes() if code not in documented})
    assert not missing, "add a row to a table in docs/errors:\n" + "\n".join(missing)


@pytest.mark.parametrize("code", pages())
def test_a_page_says_cause_and_remedy(code: str) -> None:
    text = (PAGES / f"{code}.md").read_text("utf-8")
    assert text.startswith(f"# {code}\n")
    for heading in ("Cause", "Remedy"):
        match = re.search(rf"^## {heading}\n\n(.+?)(?=\n## |\Z)", text, re.M | re.S)
        assert match, f"{code}.md has no {heading}"
        assert len(match.group(1).split()) >= 4, f"{code}.md: {heading} says too little"


def test_no_page_outlives_its_code() -> None:
    said = "\n".join(path.read_text("utf-8") for path in SRC.rglob("*.py"))
    stale = sorted(code for code in {*pages(), *rows()} if f'"{code}"' not in said)
    assert not stale, f"nothing has these codes any more: {stale}"
