"""Inline code, read before it runs: what it names of the run, templates in it; steps without anything."""

from __future__ import annotations

from textwrap import indent
from typing import Any

import pytest

from .harness import compile_text, problems_of

FLOW = """\
workload: {{city: Bern}}
workflow:
  - step: first
    tool: {{kind: noop}}
    next: {{arcs: [{{step: second}}]}}
  - step: second
    tool:
      kind: python
      args: {args}
      code: |
{code}
"""


def context_of(code: str, args: str = "{}") -> Any:
    body = compile_text(FLOW.format(code=indent(code, " " * 8), args=args)).body
    return body["workflow"][1]["tool"][0].get("context")


EVERYTHING = {
    "workload": "{{ workload }}",
    "ctx": "{{ ctx }}",
    "iter": "{{ iter }}",
    "steps": {"first": "{{ first }}", "second": "{{ second }}"},
}


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("result = 1", None),
        ("result = context['execution_id']", None),
        ("result = context['workload']['city']", {"workload": "{{ workload }}"}),
        ("result = context.get('ctx')", {"ctx": "{{ ctx }}"}),
        ("result = context['first']", {"steps": {"first": "{{ first }}"}}),
        ("result = context['steps']['first']", {"steps": EVERYTHING["steps"]}),
        ("result = 'first' in context", {"steps": {"first": "{{ first }}"}}),
        ("result = dict(context)", EVERYTHING),
        ("def main(context):\n    return context", EVERYTHING),
    ],
)
def test_only_what_the_code_names_travels(code: str, wanted: Any) -> None:
    assert context_of(code) == wanted


def test_an_argument_named_context_is_that_argument() -> None:
    assert context_of("result = context", "{context: 1}") is None


@pytest.mark.parametrize("code", ["x = {{ workload.city }}", "x = 'in {{ workload.city }}'"])
def test_templates_inside_code_are_told_of(code: str) -> None:
    found = [
        p
        for p in problems_of(FLOW.format(code=indent(code, " " * 8), args="{}"))
        if p.code == "code_template"
    ]
    assert [(p.severity, "args" in p.hint) for p in found] == [("warning", True)]


@pytest.mark.parametrize("code", ["x = f'{{literal}} {1}'", "x = {1: {2: 3}}", "x = '{{name}}'.format()"])
def test_braces_that_are_python_are_not(code: str) -> None:
    assert not [
        p
        for p in problems_of(FLOW.format(code=indent(code, " " * 8), args="{}"))
        if p.code == "code_template"
    ]


def test_an_empty_step_is_warned_of() -> None:
    found = [
        (p.severity, p.line) for p in problems_of("workflow:\n  - step: end\n") if p.code == "step_empty"
    ]
    assert found == [("warning", 2)]
