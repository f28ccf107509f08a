"""The rooms of the host: no object is handed the bridge, and an engine's subjects stand on one declared base each by itself."""

from __future__ import annotations

import ast
import inspect
from abc import ABC
from collections import Counter
from pathlib import Path
from textwrap import dedent

import pytest

from treadle.engine import Engine
from treadle.host.reach import Reaches

SRC = Path(__file__).resolve().parents[2] / "src" / "treadle"
SUBJECTS = Engine.__bases__


def tree_of(kind: type) -> ast.ClassDef:
    (found,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(found, ast.ClassDef)
    return found


def of_self(kind: type) -> list[ast.Attribute]:
    """Every `self.name` of a class."""
    return [
        node
        for node in ast.walk(tree_of(kind))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    ]


def declared(kind: type) -> set[str]:
    """What a class has of its own: methods, fields, what its constructor sets."""
    body = tree_of(kind).body
    methods = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    fields = {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return methods | fields | {node.attr for node in of_self(kind) if isinstance(node.ctx, ast.Store)}


def test_only_the_engine_knows_the_bridge() -> None:
    """What a part of the host needs is an argument of its own: a class is not spread over objects that are handed it."""
    knowing = {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Name | ast.alias | ast.Attribute)
        and "Bridge" in {getattr(node, "id", ""), getattr(node, "name", ""), getattr(node, "attr", "")}
    }
    assert knowing == {"engine.py"}


def test_no_part_of_the_bridge_is_handed_the_bridge() -> None:
    tree = ast.parse((SRC / "host" / "bridge.py").read_text("utf-8"))
    handed = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(argument, ast.Name) and argument.id == "self"
    ]
    assert not handed, f"hand these what they need: {handed}"


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_subject_of_the_engine_names_only_what_it_is_handed(subject: type) -> None:
    assert set(subject.__bases__) <= {Reaches, ABC}, "no subject knows another"
    bare = [node for node in tree_of(subject).body if isinstance(node, ast.AnnAssign) and node.value is None]
    assert not bare, f"declare these where they are handed over, in Reaches: {list(map(ast.unparse, bare))}"
    known = declared(subject) | (declared(Reaches) if issubclass(subject, Reaches) else set())
    unknown = {node.attr for node in of_self(subject)} - known
    assert not unknown, f"{subject.__name__} names what nobody hands to it: {sorted(unknown)}"


def test_every_name_of_the_engine_has_one_place() -> None:
    named = Counter(name for kind in (*SUBJECTS, Reaches) for name in declared(kind))
    twice = {name for name, count in named.items() if count > 1}
    assert not twice, f"these stand in several subjects: {sorted(twice)}"
    # What the engine sets is its own, or declared for its subjects; and it says again only what it has to make.
    again = declared(Engine) & set(named)
    assert again == {"__init__", "applications", "worker"}
