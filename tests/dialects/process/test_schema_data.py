"""A JSON Schema is data: whatever its keys are called, it comes through every format unchanged."""

from __future__ import annotations

import pytest

from treadle.dialects.process import DIALECT
from treadle.lang.text import parse

TEXT = """
dialect: process
name: P
start: {schema: {type: object, properties: {"$": {const: {"$": "state.n +"}}}}}
tasks: {ask: {roles: [clerk], schema: {const: {"$": null}}}}
steps: [{task: ask}]
"""


@pytest.mark.parametrize("format", ["yaml", "json"])
def test_a_dollar_in_a_schema_is_no_expression(format: str) -> None:
    definition, problems = DIALECT.compile(parse(TEXT))
    assert not list(problems)
    assert definition is not None
    again, _ = DIALECT.compile(parse(DIALECT.export(definition, format)))
    assert again is not None
    assert again.digest == definition.digest


def test_the_python_form_holds_it_too() -> None:
    definition, _ = DIALECT.compile(parse(TEXT))
    assert definition is not None
    assert "{'const': {'$': 'state.n +'}}" in DIALECT.export(definition, "python")
