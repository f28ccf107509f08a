"""Only values leave a template; a dot asks for a key, never for a method (PLAYBOOK §6.41, §6.42)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from treadle.dialects.playbook.edition import edition
from treadle.dialects.playbook.handles import TemplateScope
from treadle.dialects.playbook.slices import Slices
from treadle.dialects.playbook.templates import PlacedTemplate
from treadle.kernel.errors import ExpressionError

from .harness import Lab, problems_of

WORKLOAD: dict[str, Any] = {"rows": [{"name": "ann"}, {"name": "bob"}], "text": "abc", "of": {"a": 1}}


def value(text: str) -> Any:
    return PlacedTemplate(text, "here").value(TemplateScope({"workload": WORKLOAD}))


def truth(text: str) -> bool:
    return PlacedTemplate(text, "here").truth(TemplateScope({"workload": WORKLOAD}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("to {{ workload.rows | map(attribute='name') }}", "to ['ann', 'bob']"),
        ("to {{ workload.rows | selectattr('name', 'eq', 'bob') }}", "to [{'name': 'bob'}]"),
        ("to {{ [1, 2, 3] | select('odd') }}", "to [1, 3]"),
        ("to {{ [1, 2, 3] | batch(2) }}", "to [[1, 2], [3]]"),
        ("to {{ [1, 2, 1] | unique }}", "to [1, 2]"),
        ("to {{ [1, 2] | reverse }}", "to [2, 1]"),
        ("to {{ workload.of | items }}", "to [['a', 1]]"),
        ("to {{ workload.of.items() }}", "to [['a', 1]]"),
        ("to {{ range(3) }}", "to [0, 1, 2]"),
        ("to {{ [workload.rows | map(attribute='name')] }}", "to [['ann', 'bob']]"),
        ("{{ 'to ' ~ (workload.rows | map(attribute='name')) }}", "to ['ann', 'bob']"),
        ("{{ workload.rows | map(attribute='name') | string }}", "['ann', 'bob']"),
        ("{{ (workload.rows | map(attribute='name')) | upper }}", "['ANN', 'BOB']"),
        ("{{ '{}'.format(workload.rows | map(attribute='name')) }}", "['ann', 'bob']"),
        ("{{ [workload.rows | map(attribute='name')] | join('-') }}", "['ann', 'bob']"),
    ],
)
def test_what_is_lazy_is_the_list_it_stands_for(text: str, expected: str) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a {{ cycler('a') }}",
        "a {{ joiner() }}",
        "a {{ namespace(x=1) }}",
        "a {{ range }}",
        "{% macro m() %}{% endmacro %}a {{ m }}",
        "{% for x in [1] %}{{ loop }}{% endfor %}",
        "{{ [range] }}",
        "{{ {'a': dict} }}",
        "{{ range | string }}",
        "{{ 'a' ~ dict }}",
        "{{ [range] | join(',') }}",
        "{{ '{}'.format(range) }}",
        "{{ '%s' | format(range) }}",
    ],
)
def test_what_has_no_value_is_an_error_that_names_the_filter_to_add(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        value(text)
    assert "| list" in caught.value.message
    assert "0x" not in str(caught.value.to_value())


@pytest.mark.parametrize(
    "text",
    ["workload.of.items", "workload.of.values", "workload.rows.count", "workload.text.upper", "'a'.join"],
)
def test_a_key_that_is_not_there_is_undefined_whatever_python_calls_its_methods(text: str) -> None:
    assert value(f"{{{{ {text} }}}}") is None
    assert value(f"n={{{{ {text} }}}}") == "n="
    assert truth(f"{{{{ {text} }}}}") is False
    assert value(f"{{{{ {text} is defined }}}}") is False
    assert value("{{ workload.rows | map(attribute='items') | list }}") == [None, None]
    assert value("{{ workload.of | attr('items') }}") is None
    assert value("{{ workload.of['items'] }}") is None


def test_methods_are_called_and_only_those_on_a_list() -> None:
    assert value("{{ workload.of.get('a') }} {{ workload.text.upper() }}") == "1 ABC"
    assert value("{{ [1, 2, 1].count(1) }}") == 2
    assert (
        value("{% for x in [1, 2] %}{{ loop.cycle('a', 'b') }}{{ loop.last }}{% endfor %}") == "aFalsebTrue"
    )
    assert value(
        "{% for g in workload.rows | groupby('name') %}{{ g.grouper }}{{ g.list | length }}{% endfor %}"
    ) == ("ann1bob1")
    for text in ("{{ workload.of.copy() }}", "{{ workload.text.nothing() }}", "{{ (1).conjugate() }}"):
        with pytest.raises(ExpressionError):
            value(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ workload.n + 1 }}", "'n' is undefined"),
        ("{{ workload.n > 1 }}", "'n' is undefined"),
        ("{{ workload.text + 1 }}", "+ does not go with text and a number"),
        ("{{ workload.text > 1 }}", "> does not go with text and a number"),
        ("{{ 1 // 0 }}", "divides by zero"),
        ("{{ 'x' | fromjson }}", "not JSON"),
        ("{{ 1 in 2 }}", "in does not go with a number and a number"),
    ],
)
def test_errors_are_in_words_of_ours(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        value(text)
    assert said in caught.value.message


MAIL = """
metadata: {name: mail, version: "1"}
workload: {rows: [{name: ann}, {name: bob}]}
workflow:
  - step: load
    tool: {kind: noop}
    next: {arcs: [{step: work, args: {text: "Send to {{ workload.rows | map(attribute='name') }}"}}]}
  - step: work
    tool: {kind: echo, value: "{{ args.text }}"}
"""


def test_text_around_a_lazy_filter_in_an_arc_is_replayed_as_it_was_decided() -> None:
    lab = Lab(MAIL).run().replays()
    assert lab.result == "Send to ['ann', 'bob']"


def test_a_guard_over_a_key_named_like_a_method_does_not_hold() -> None:
    lab = Lab("""
    workflow:
      - {step: a, tool: {kind: echo, value: {rows: [1, 2]}}, next: {arcs: [{step: b, when: "{{ a.items }}"}]}}
      - {step: b, tool: {kind: noop}}
    """).run()
    lab.replays()
    assert "b" not in lab.steps


def test_a_run_of_0_1_0_is_decided_by_the_rules_of_0_1_0() -> None:
    first = edition.set(1)
    try:
        assert truth("{{ workload.of.items }}") is True
        assert value("{{ (1, 2) }} {{ range(3) }}") == "(1, 2) range(0, 3)"
        with pytest.raises(ExpressionError, match="unsupported operand"):
            value("{{ 1 + [] }}")
    finally:
        edition.reset(first)


@pytest.mark.parametrize(
    "text",
    [
        "a {{ cycler('a') }}",
        "{{ joiner() }}",
        "a {{ range }}",
        "{% macro m() %}{% endmacro %}{{ m }}",
        "{{ dict }}",
    ],
)
def test_check_finds_what_has_no_value_where_it_can_be_seen(text: str) -> None:
    (problem,) = [
        problem
        for problem in problems_of(f"""workflow: [{{step: a, tool: {{kind: noop, result: "{text}"}}}}]""")
        if problem.code == "template_no_value"
    ]
    assert (problem.severity, problem.line) == ("error", 1)


def test_a_net_that_doubles_its_tokens_fails_before_it_fills_the_store() -> None:
    steps = "\n".join(
        f"  - {{step: s{n}, tool: {{kind: noop}}, next: {{spec: {{mode: inclusive}}, "
        f"arcs: [{{step: s{n + 1}}}, {{step: s{n + 1}}}]}}}}"
        for n in range(30)
    )
    lab = (
        Lab(f"workflow:\n{steps}\n  - {{step: s30, tool: {{kind: noop}}}}", slices=Slices(tokens=50))
        .run()
        .replays()
    )
    assert (lab.status, lab.error["code"]) == ("failed", "LIMIT_EXCEEDED")
    assert "50 tokens" in lab.error["message"]


def doubling(steps: int, last: str = "") -> str:
    lines = [
        f"  - {{step: s{n}, tool: {{kind: noop}}, next: {{spec: {{mode: inclusive}}, "
        f"arcs: [{{step: s{n + 1}, when: true}}, {{step: s{n + 1}, when: true}}]}}}}"
        for n in range(steps)
    ]
    return "workflow:\n" + "\n".join(lines) + f"\n  - {{step: s{steps}, {last}tool: {{kind: noop}}}}"


def test_check_names_a_net_that_doubles_its_tokens() -> None:
    (found,) = [problem for problem in problems_of(doubling(30)) if problem.code == "tokens_multiply"]
    assert (found.severity, found.line) == ("warning", 19)
    assert "131,072 tokens reach 's17'" in found.message


def test_check_finds_nothing_in_a_net_that_joins_or_ends_in_time() -> None:
    join = "spec: {policy: {admit: {join: {from: [s16], mode: count, count: 131072}}}}, "
    for text in (doubling(16), doubling(17, join)):
        assert "tokens_multiply" not in [problem.code for problem in problems_of(text)]


def test_templates_of_one_place_are_bounded_together() -> None:
    fields = ", ".join(f"f{n}: '{{{{ [workload.big] * 100 }}}}'" for n in range(40))
    lab = Lab(f"""
    workload: {{big: {"y" * 60_000}}}
    workflow:
      - {{step: a, next: {{arcs: [{{step: b, args: {{{fields}}}}}]}}}}
      - {{step: b, tool: {{kind: noop}}}}
    """).run()
    assert (lab.status, lab.error["class"]) == ("failed", "expression")
    assert "together" in lab.error["message"]


def test_deep_nests_are_refused_by_check_and_named() -> None:
    nested = "{% for a in [1] %}" * 25 + "x" + "{% endfor %}" * 25
    with pytest.raises(ExpressionError) as caught:
        PlacedTemplate(nested, "here")
    assert caught.value.code == "TEMPLATE_SYNTAX"
    assert "nests too deeply" in caught.value.message


def test_what_a_template_makes_does_not_depend_on_the_process() -> None:
    """Rendered in two processes with other hashes and other addresses, a text is the same."""
    code = (
        "from treadle.dialects.playbook.templates import PlacedTemplate\nfrom treadle.dialects.playbook.handles import TemplateScope\n"
        "print(PlacedTemplate(\"{{ [w | map(attribute='n'), {'b': 1, 'a': w | unique(attribute='n')}] }} {{ w.x.y }}\", 'h')"
        ".value(TemplateScope({'w': [{'n': 'x'}, {'n': 'y'}]})))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert "0x" not in said.pop()
