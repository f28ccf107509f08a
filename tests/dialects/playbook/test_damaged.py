"""Playbooks with one value damaged, whichever it is: refused with file, line and remedy, or made ready to run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle.dialects.playbook import DIALECT
from treadle.kernel.values import Value
from treadle.lang.text import Document, parse

HERE = Path(__file__).parent
# Together they have all that a playbook may have.
WHOLE = [
    *sorted((HERE.parents[2] / "examples" / "playbook").glob("*.yaml")),
    *(
        HERE / "cases" / f"{name}.yaml"
        for name in (
            "inclusive_fan_out_and_join",
            "keychain_from_workload",
            "nested_iteration",
            "newer_spelling",
            "sugar",
            "workbook_and_layers",
        )
    ),
]
MISSING = object()
JUNK = [MISSING, None, 5, "x", "{{", [], [5], {}, {"a": [5]}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def damaged(whole: Value, place: tuple[Any, ...], junk: object) -> Value:
    value = node = copy.deepcopy(whole)
    for key in place[:-1]:
        node = node[key]
    if junk is MISSING:
        del node[place[-1]]
    else:
        node[place[-1]] = copy.deepcopy(junk)
    return value


@pytest.mark.parametrize("file", WHOLE, ids=lambda path: path.stem)
def test_whatever_is_damaged_is_told_before_it_runs(file: Path) -> None:
    whole = parse(file.read_text("utf-8"), file=file.name)
    for place in places(whole.value):
        for junk in JUNK:
            document = Document(damaged(whole.value, place, junk), file.name, whole.positions)
            definition, problems = DIALECT.compile(document)
            assert (definition is None) == bool(problems.errors), (place, junk)
            for problem in problems:
                assert problem.message, (place, junk)
                assert (problem.file, bool(problem.line)) == (file.name, True), (place, junk)
            if definition is not None:
                DIALECT.graph(DIALECT.machine.load(definition.body))
                assert all(isinstance(name, str) for name in DIALECT.names(definition.body))
