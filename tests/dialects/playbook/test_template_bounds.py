"""No short template takes long or makes much, whatever holds what (finding 7: values inside values)."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest

from treadle.dialects.playbook.bounds import ITEMS_MAX, SizeBudget, budget
from treadle.dialects.playbook.handles import TemplateScope
from treadle.dialects.playbook.templates import PlacedTemplate, expression
from treadle.kernel.errors import ExpressionError

from .harness import Lab

NEST = "[[[[[[1]*1000]*1000]*1000]*1000]*1000]*1000"
DOUBLED = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"


def value(text: str, **names: Any) -> Any:
    return PlacedTemplate(text, "here").value(TemplateScope(names))


@pytest.mark.parametrize(
    "text",
    [
        f"{{{{ {NEST} }}}}",
        f"{{{{ ({NEST}) | string | length > 3 }}}}",
        "{{ ['a'*1000000]*1000000 }}",
        "{{ ['a'*1000000]*1000 }}",
        "{{ ['a'*1000000, 'b'*1000000]*10000 | length }}",
        DOUBLED + "{{ n.x }}",
        DOUBLED + "{{ n.x | string }}",
        DOUBLED + "{{ n.x | tojson }}",
        DOUBLED + "{{ n.x ~ 'a' }}",
        DOUBLED + "{{ [n.x] | join }}",
        DOUBLED + "{{ '%s' | format(n.x) }}",
        DOUBLED + "{{ '{}'.format(n.x) }}",
        DOUBLED + "{{ n.x | upper }}",
        DOUBLED + "{{ n.x | urlencode }}",
        DOUBLED + "{{ {'a': n.x} | dictsort }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}"
        "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}"
        "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x in [n.y] }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}"
        "{% set n.y = [n.y, n.y] %}{% endfor %}{{ [n.y].index(n.x) }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}"
        "{% set n.y = [n.y, n.y] %}{% endfor %}{{ [n.y] | select('eq', n.x) | list }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}"
        "{% set n.y = [n.y, n.y] %}{% endfor %}{{ [n.x, n.y] | sort }}",
        "{{ range(3000) | map('string') | map('list') | sum(start=[]) | length if false else ([[1]*1000]*9000) "
        "| sum(start=[]) | length }}",
        "{% set t = 'a' * 16000000 %}{% for i in range(9999999) %}{% if t + 'b' %}{% endif %}{% endfor %}",
        "{% set t = 'a' * 16000000 %}{% set u = 'a' * 16000000 %}{% for i in range(9999999) %}"
        "{% if t == u %}{% endif %}{% endfor %}",
        "{% set t = 'a' * 16000000 %}{% for i in range(9999999) %}{% if t[1:] %}{% endif %}{% endfor %}",
        "{% for i in range(9999999) %}{% if 'a' * 16000000 %}{% endif %}{% endfor %}",
        "{% for i in range(9999999) %}{% if 'a' ~ 'b' * 16000000 %}{% endif %}{% endfor %}",
        "{% for i in range(9999999) %}{% if '{:16000000}'.format(1) %}{% endif %}{% endfor %}",
        "{% set t = [1] * 9000000 %}{% for i in range(9999999) %}{% if t + [1] %}{% endif %}{% endfor %}",
        "{{ [range(9000000) | map('string'), range(9000000) | map('string')] }}",
    ],
)
def test_values_inside_values_are_bounded(text: str) -> None:
    before, at = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ExpressionError):
        value(text)
    # A wide margin: without the bound these take minutes, hours, or all there is.
    assert time.process_time() - at < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ ([[1] * 100] * 100) | length }}", 100),
        ("{{ ['a' * 1000] * 1000 == ['a' * 1000] * 1000 }}", True),
        (
            "{{ [1, 2, 3] | sum }} {{ [[1], [2]] | sum(start=[]) }} {{ [{'n': 2}, {'n': 3}] | sum('n') }}",
            "6 [1, 2] 5",
        ),
        ("{{ 'abc'[1:] ~ [1, 2, 3][:2] }}", "bc[1, 2]"),
        ("{{ 1 < 2 < 3 and 3 in [1, 2, 3] and 'a' not in 'b' }}", True),
        ("{{ 1 is sameas 1 and true is sameas true and 1 is not sameas true }}", True),
    ],
)
def test_ordinary_nests_are_left_alone(text: str, expected: Any) -> None:
    assert value(text) == expected


def test_large_data_is_handed_on_whatever_its_size() -> None:
    """What is given is not what a template makes: only what it repeats is bounded."""
    rows = [{"id": number, "text": f"{number} " + "x" * 1000} for number in range(30_000)]
    assert value("{{ rows }}", rows=rows) == rows
    assert value("{{ [rows[0], rows] }}", rows=rows) == [rows[0], rows]
    assert len(value("{{ rows | selectattr('id', 'lt', 5) | list }}", rows=rows)) == 5
    assert len(value("{{ rows | sort(attribute='id', reverse=true) }}", rows=rows)) == 30_000


GUARD = """
workflow:
  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b, when: "{{ (BOMB) | string | length > 3 }}"}]}}
  - {step: b, tool: {kind: noop}}
"""
TASK = 'workflow: [{step: a, tool: {kind: noop, result: "{{ BOMB }}"}}]'


@pytest.mark.parametrize("text", [GUARD, TASK])
@pytest.mark.parametrize("bomb", [NEST, "['a'*1000000]*1000000"])
def test_a_bomb_in_a_guard_or_a_task_fails_its_step_and_nothing_else(text: str, bomb: str) -> None:
    lab = Lab(text.replace("BOMB", bomb)).run().replays()
    assert (lab.status, lab.error["class"]) == ("failed", "expression")


SETS = "{% set x = 1 + 1 %}" * 20
# Each with what it is counted as at least. A short template took seconds for every hundred characters of it.
DONE_AGAIN = {
    "what stands in a loop": ("{% for i in range(100) %}" + SETS + "{% endfor %}", 100 * 20),
    "comparisons in a loop": (
        "{% for i in range(100) %}" + "{% if i == 3 %}{% endif %}" * 9 + "{% endfor %}",
        100 * 9,
    ),
    "the test of a loop": ("{% for i in range(100) if i == 1 or i == 2 or i == 3 %}{% endfor %}", 100 * 3),
    "a loop in a loop": (
        "{% for i in range(10) %}{% for j in range(10) %}" + SETS + "{% endfor %}{% endfor %}",
        100 * 20,
    ),
    "what stands in a macro": (
        "{% macro m() %}" + SETS + "{% endmacro %}{% for i in range(100) %}{{ m() }}{% endfor %}",
        100 * (64 + 20),
    ),
    "what is called back": (
        "{% macro m() %}{{ caller() }}{% endmacro %}{% for i in range(100) %}{% call m() %}"
        + SETS
        + "{% endcall %}{% endfor %}",
        100 * (2 * 64 + 20),
    ),
    "a loop that calls itself": (
        "{% for i in range(10) recursive %}{{ loop(range(10)) if loop.depth < 2 }}" + SETS + "{% endfor %}",
        (10 + 100) * 20,
    ),
    "filters one after the other": ("{{ range(100)" + " | map('int')" * 10 + " | sum }}", 100 * 10 * 8),
    "tests one after the other": (
        "{{ range(100)" + " | select('ge', 0)" * 10 + " | list | length }}",
        100 * 10 * 8,
    ),
}


@pytest.mark.parametrize("what", DONE_AGAIN)
def test_all_that_is_done_again_and_again_counts_and_not_only_the_turn(what: str) -> None:
    text, least = DONE_AGAIN[what]
    token = budget.set(spending := SizeBudget())
    try:
        expression(text).value(TemplateScope({}))
    finally:
        budget.reset(token)
    assert ITEMS_MAX - spending.left >= least


@pytest.mark.parametrize(
    "text", ["{{ ('\u00df' * 16000000) | upper }}", "{{ ('<' * 16000000) | e | length }}"]
)
def test_what_a_filter_makes_of_a_text_is_bounded_too(text: str) -> None:
    with pytest.raises(ExpressionError, match="larger than 16,777,216"):
        value(text)
