"""Documents: shape, structure, declared inputs (W1-W5, E6-E8, AGENT.md §2)."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referencing.exceptions import Unresolvable

from treadle import Engine
from treadle.dialects.agent import DIALECT, inputs
from treadle.kernel.errors import InputInvalid, TreadleError, ValueRefused
from treadle.lang import json_schema
from treadle.lang.problems import Problems
from treadle.lang.text import parse

GOOD = """\
id: triage
name: Triage
author: someone            # the top level is open
entry: gather
nodes:
  gather:
    name: Gather
    instruction: Collect what is known.
    eval:
      - name: fine
        kind: judge
        rubric: Is it complete?
        pass_when: yes
  decide:
    name: Decide
    instruction: Decide.
edges:
  - {from: gather, to: decide}
"""


def codes(found: Problems) -> list[str]:
    return [problem.code for problem in found.errors]


def test_yaml_is_1_2_core(definition):
    found = definition(GOOD)
    assert found.body["nodes"]["gather"]["eval"][0]["pass_when"] == "yes"
    assert (found.name, found.dialect) == ("triage", "agent")


@pytest.mark.parametrize(
    ("change", "code", "line"),
    [
        (("entry: gather", "entry: nowhere"), "MISSING_ENTRY", 4),
        (("from: gather", "from: ghost"), "UNKNOWN_EDGE_SOURCE", 18),
        (("to: decide", "to: ghost"), "UNKNOWN_EDGE_TARGET", 18),
        (("- {from: gather, to: decide}", "- {from: gather, to: gather, max_iterations: 1}"), "UNREACHABLE_NODE", 14),
        (("- {from: gather, to: decide}", "- {from: gather, to: decide}\n  - {from: decide, to: decide}"), "SELF_LOOP", 19),
        (("- {from: gather, to: decide}", "- {from: gather, to: decide}\n  - {from: decide, to: gather}"), "UNBOUNDED_CYCLE", 19),
        (("edges:", "skills:\n  s: {description: nothing in it}\nedges:"), "INVALID_INLINE_SKILL", 18),
        (("name: Triage", "name: Triage\nworkflow_type: party"), "SCHEMA", 3),
        (("instruction: Decide.", "instruction: {inline: a, file: b}"), "SOURCE_INVALID_SHAPE", 16),
        (("instruction: Decide.", "instruction: {url: 'https://x', type: soap}"), "SOURCE_INVALID_TYPE", 16),
        (("instruction: Decide.", "instruction: ''"), "SOURCE_INVALID_SHAPE", 16),
        (("instruction: Decide.", "instruction: D\n    eval_policy: any_pass"), "UNSUPPORTED_EVAL_POLICY", 17),
        (("instruction: Decide.", "instruction: D\n    verify: {}"), "LEGACY_VERIFY", 17),
        (("instruction: Decide.", "instruction: D\n    max_turn: 3"), "SCHEMA", 17),
        (("instruction: Decide.", "instruction: D\n    output: {type: nonsense}"), "OUTPUT_SCHEMA_INVALID", 17),
        (("pass_when: yes", "pass_when: yes please"), "PASS_WHEN_NOT_A_TOKEN", 13),
        (("rubric: Is it complete?", "rubric: R\n        rule: {output_required: [x]}"), "SCHEMA", 13),
        (("instruction: Decide.", "instruction: D\n    requires: {output_required: ['a..b']}"), "BAD_PATH", 17),
        (("instruction: Decide.", "instruction: D\n    requires: {output_matches: [{path: a, matches: '('}]}"), "BAD_PATTERN", 17),
        (("instruction: Decide.", "instruction: D\n    requires: {output_matches: [{path: a, equals: 1, in: [1]}]}"), "SCHEMA", 17),
        (("instruction: Decide.", "instruction: D\n    requires: {on_fail: skip}"), "SCHEMA", 17),
        (("name: Triage", "name: Triage\ninputs: {a: {type: string, required: true, default: x}}"), "INPUT_REQUIRED_WITH_DEFAULT", 3),
        (("name: Triage", "name: Triage\ninputs: {a: {type: number, default: x}}"), "INPUT_DEFAULT_TYPE", 3),
        (("name: Triage", "name: Triage\ninputs: {a: {type: string, enum: [1]}}"), "INPUT_ENUM_TYPE", 3),
        (("name: Triage", "name: Triage\ninputs: {a: {type: string, enum: [x], default: y}}"), "INPUT_DEFAULT_TYPE", 3),
        (("name: Triage", "name: Triage\ninputs: {a: {type: 'string[]', enum: [x], default: [x, y]}}"), "INPUT_DEFAULT_TYPE", 3),
    ],
)  # fmt: skip
def test_problems_have_codes_and_lines(problems, change, code, line):
    found = problems(GOOD.replace(*change))
    assert code in codes(found), [str(p) for p in found]
    problem = next(p for p in found.errors if p.code == code)
    assert problem.line == line
    assert problem.file == "flow.yaml"


def test_unknown_fields_are_told_one_by_one_where_they_stand(problems):
    text = GOOD.replace(
        "instruction: Decide.", "instruction: D\n    max_turn: 3\n    verify: {}\n    typo: 1"
    )
    found = [(p.code, p.line, p.path) for p in problems(text).errors]
    assert found == [
        ("SCHEMA", 17, "nodes.decide.max_turn"),
        ("LEGACY_VERIFY", 18, "nodes.decide.verify"),
        ("SCHEMA", 19, "nodes.decide.typo"),
    ]
    assert "Did you mean 'max_turns'?" in problems(text).errors[0].hint
    assert codes(problems(GOOD + "verify: {}\n")) == ["LEGACY_VERIFY"]


@pytest.mark.parametrize(
    ("node", "message", "hint"),
    [
        (
            {"retry": {"max": 1, "instruction": {"auto": False}}},
            "cannot stand here",
            "text, or {auto: true}, or {reflect: …}",
        ),
        ({"tools": {}}, "is empty", "Write something"),
        ({"skills": None}, "null is not a list", "leave the field out"),
        ({"max_turns": 0}, "0 is too small", "1 or more"),
        ({"max_turns": "3"}, "'3' is not a whole number", "Write a whole number."),
        ({"in_doubt": "panic"}, "'panic' is not one of", "'retry', 'skip', 'fail', 'ask'"),
        ({"budget": {}}, "at least one of usd, tokens", "Write one of usd, tokens."),
        ({"budget": {"usd": 0}}, "0 is too small", "more than 0"),
        ({"approve": {"roles": ["r"]}}, "'prompt' is missing", "Add it."),
        ({"rules": 5}, "5 cannot stand here", "a list, or {only: …, sources: …}"),
    ],
)
def test_what_to_write_instead_is_told(problems, flow, node, message, hint):
    """INTERFACES §1: problems with file, line, code, and what to do."""
    (problem,) = problems(flow({"a": node})).errors
    assert (problem.code, problem.rule) == ("SCHEMA", "schema")
    assert message in problem.message
    assert hint in problem.hint


def test_all_problems_are_found_at_once(problems):
    text = (
        GOOD.replace("entry: gather", "entry: x")
        .replace("to: decide", "to: ghost")
        .replace("name: Decide", "nome: D")
    )
    assert {"MISSING_ENTRY", "UNKNOWN_EDGE_TARGET", "SCHEMA"} <= set(codes(problems(text)))


@pytest.mark.parametrize("id", ["input", "approval"])
def test_reserved_node_ids_are_refused(problems, flow, id):
    assert codes(problems(flow(id))) == ["RESERVED_NODE_ID"]


def test_bounded_cycles_are_allowed(problems, flow):
    assert not problems(
        flow("a b c", "a b", ("b", "a", {"max_iterations": 2, "when": "x"}), ("b", "c", {"when": "y"}))
    ).errors


def test_braces_that_stand_for_nothing_are_a_warning(problems, flow):
    given = {
        "fine": "{{ input.day }} of {{a.list}} by {{ approval.by }}",
        "sum": "{{ input.q + 1 }}",
        "deep": ["{{ a.list[0] }}", {"open": "{{ a.list"}],
        "typo": "from {{ nope.x }}",
        "text": "{ no } braces",
    }
    wf = flow({"a": {}, "b": {"run": {"workflow": "child", "input": given}}}, "a b")
    found = problems(wf)
    assert not found.errors
    assert [(p.code, p.path) for p in found] == [
        ("RUN_INPUT", f"nodes.b.run.input.{place}") for place in ("sum", "deep[0]", "deep[1].open", "typo")
    ]
    assert "'nope'" in list(found)[-1].message


def test_unknown_skills_are_a_warning(problems, flow):
    found = problems(
        flow({"a": {"skills": ["somewhere", "files", "mine"]}}, skills={"mine": {"instruction": "x"}})
    )
    assert not found.errors
    assert [(p.code, p.path) for p in found] == [("UNKNOWN_SKILL", "nodes.a.skills[0]")]


TREE = {"type": "object", "properties": {"inner": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}


@pytest.mark.parametrize(
    ("output", "bad"),
    [
        ({"$ref": "http://localhost:8080/schema.json"}, True),
        ({"properties": {"a": {"$ref": "https://example.org/schema.json#/a"}}}, True),
        ({"properties": {"a": {"items": {"$ref": "file:///etc/passwd"}}}}, True),
        ({"$ref": "#/$defs/nope"}, True),
        ({"$ref": "other.json"}, True),
        ({"$ref": "#"}, True),
        ({"allOf": [{"if": {"$ref": "#"}}]}, True),
        (
            {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}]}}},
            True,
        ),
        ({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}}, False),
        ({"properties": {"again": {"$ref": "#"}}}, False),
        ({"$id": "urn:x", "properties": {"a": {"$ref": "#b"}}, "$defs": {"b": {"$anchor": "b"}}}, False),
        ({"properties": {"schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}}, False),
    ],
)
def test_an_output_schema_refers_to_nothing_but_itself(problems, flow, output, bad):
    """§4: the machine is a pure function over receipts; it fetches no schema, and ends."""
    found = codes(problems(flow({"a": {"output": output}})))
    assert found == (["OUTPUT_SCHEMA_INVALID"] if bad else [])


def test_checking_a_value_never_fetches(monkeypatch):
    fetched: list[str] = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)
    with pytest.raises(Unresolvable):
        list(json_schema.validator({"$ref": "http://localhost/schema.json"}).iter_errors({}))
    assert fetched == []


@pytest.mark.parametrize(
    ("evaluator", "bad"),
    [
        ({"kind": "value", "rule": {"output_required": ["x"]}, "rubric": "r"}, True),
        ({"kind": "value", "rule": {"output_required": ["x"]}, "model": "m"}, True),
        ({"kind": "function", "rule": {"any_tool_called": ["t"]}, "pass_when": "yes"}, True),
        ({"kind": "judge", "rubric": "r", "rule": {"output_required": ["x"]}}, True),
        ({"kind": "value", "rubric": "r"}, True),
        ({"kind": "value", "rule": {}}, True),
        ({"kind": "judge"}, True),
        ({"kind": "judge", "rubric": "r", "pass_when": "ok", "model": "m"}, False),
    ],
)
def test_fields_of_another_kind_are_refused(problems, flow, evaluator, bad):
    """§2: rule for value and function only; rubric, pass_when, model for judge only."""
    assert bool(problems(flow({"a": {"eval": [{"name": "e", **evaluator}]}})).errors) == bad


@pytest.mark.parametrize(("kind", "other"), [("value", "no_tool_called"), ("function", "output_required")])
def test_a_rule_of_the_other_kind_is_told_and_checked(problems, flow, play, kind, other):
    wf = flow({"a": {"eval": [{"name": "e", "kind": kind, "rule": {other: ["missing"]}}]}})
    found = problems(wf)
    assert [(p.severity, p.code, p.path) for p in found] == [
        ("warning", "RULE_OF_OTHER_KIND", f"nodes.a.eval[0].rule.{other}")
    ]
    run = play(wf, {"run": {"a": [{"data": {}}]}})
    assert run.results["a"]["status"] == ("success" if other == "no_tool_called" else "failed")


def test_skill_ids_that_are_not_kebab_case_are_a_warning(problems, flow):
    """K6: SHOULD."""
    skills = {id: {"instruction": "x"} for id in ("fine-1", "Net", "a--b", "a_b", "a" * 65)}
    found = problems(flow({"a": {"skills": ["Net"]}}, skills=skills))
    assert [(p.severity, p.code) for p in found] == [("warning", "SKILL_ID")] * 4


@pytest.mark.parametrize(
    "skills",
    [
        {"": {"instruction": "x"}},
        {"s": {"mcp": {"type": "http", "command": "x"}}},
        {"s": {"mcp": {"type": "stdio", "url": "https://x"}}},
    ],
)
def test_inline_skills_that_cannot_be(problems, flow, skills):
    """K6: ids are not empty; §2 McpServerConfig: command is stdio, url is http."""
    assert codes(problems(flow("a", skills=skills))) == ["INVALID_INLINE_SKILL"]
    fine = {
        "a": {"mcp": {"type": "http", "url": "https://x"}},
        "b": {"mcp": {"type": "stdio", "command": "x"}},
    }
    assert not problems(flow("a", skills=fine)).errors


def test_a_run_without_a_terminal_node_is_a_warning(problems, flow):
    found = problems(flow("a", ("a", "a", {"max_iterations": 2})))
    assert [p.code for p in found] == ["NO_TERMINAL_NODE"]


def test_judge_budget_is_a_warning(problems, flow):
    judge = [{"name": f"j{i}", "kind": "judge", "rubric": "r"} for i in range(3)]
    found = problems(flow({"a": {"eval": judge, "retry": {"max": 1}}}, judge_budget=5))
    assert [p.code for p in found] == ["JUDGE_BUDGET"]


def test_the_dialect_is_recognised_by_its_shape():
    assert DIALECT.recognises({"nodes": {}, "edges": []})
    assert DIALECT.recognises({"dialect": "agent"})
    assert not DIALECT.recognises({"dialect": "process", "nodes": {}, "edges": []})
    assert not DIALECT.recognises({"workflow": []})
    assert not DIALECT.recognises([1])


# --- declared inputs ----------------------------------------------------------------------------

DECLARED = {
    "host": {"type": "string", "required": True},
    "count": {"type": "number", "default": 3},
    "loud": {"type": "boolean"},
    "tags": {"type": "string[]", "enum": ["a", "b"]},
    "level": {"type": "string", "enum": ["low", "high"]},
}


def test_defaults_are_filled_the_caller_wins_and_other_keys_pass():
    given = {"host": "h", "extra": {"x": 1}, "count": 5, "level": "low", "tags": ["b"]}
    assert inputs.apply(DECLARED, given) == given
    assert inputs.apply(DECLARED, {"host": "h"}) == {"host": "h", "count": 3}
    assert inputs.apply({}, None) == {}


def test_all_input_errors_come_at_once():
    with pytest.raises(InputInvalid) as caught:
        inputs.apply(
            DECLARED, {"host": None, "count": float("nan"), "loud": "yes", "tags": ["a", 1], "level": "mid"}
        )
    assert [error["field"] for error in caught.value.details["errors"]] == [
        "host",
        "count",
        "loud",
        "tags",
        "level",
    ]
    assert (caught.value.cls, caught.value.code) == ("user", "INPUT_INVALID")


@pytest.mark.parametrize(
    "value", [True, "1", float("inf"), float("nan"), 2**64, -(2**63) - 1, 10**400, [1], None]
)
def test_numbers_are_numbers(value):
    assert not inputs.fits(value, "number")


@pytest.mark.house
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 10**30, 10**400])
async def test_a_number_that_cannot_be_stored_hides_no_other_error(tmp_path, flow, number):
    """W3, §8.10: `number` rejects NaN/Inf; all errors at once; no run."""
    file = tmp_path / "flow.json"
    declared = {
        "s": {"type": "string", "required": True},
        "n": {"type": "number"},
        "b": {"type": "boolean"},
        "t": {"type": "string[]"},
    }
    file.write_text(json.dumps(flow("a", inputs=declared)))
    async with Engine("memory:") as engine:
        engine.deploy(str(file))
        with pytest.raises(InputInvalid) as caught:
            await engine.start("wf", {"s": 5, "n": number, "b": "q", "t": ("x", "y")})
        assert [error["field"] for error in caught.value.details["errors"]] == ["s", "n", "b"]
        assert await engine.list() == []
        with pytest.raises(ValueRefused, match="other"):
            await engine.start("wf", {"s": "x", "other": float("inf")})


def test_text_that_cannot_be_stored_is_an_input_error():
    with pytest.raises(InputInvalid) as caught:
        inputs.apply(DECLARED, {"host": "\ud800", "loud": 1})
    assert [error["field"] for error in caught.value.details["errors"]] == ["host", "loud"]


# --- fuzzing ------------------------------------------------------------------------------------

SCALAR = st.none() | st.booleans() | st.integers(-3, 300) | st.text(max_size=6) | st.floats()
JUNK = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *(
        "name",
        "instruction",
        "skills",
        "output",
        "max_turns",
        "tools",
        "fail_soft",
        "rules",
        "context",
        "eval",
    ),
    *("requires", "retry", "budget", "approve", "run", "in_doubt", "nonsense"),
]
NODE = st.fixed_dictionaries(
    {"name": st.text(max_size=3), "instruction": st.text(max_size=3) | JUNK},
    optional=dict.fromkeys(FIELDS[2:], JUNK),
)
IDS = st.sampled_from(["a", "b", "c", "input", ""])
EDGE = st.fixed_dictionaries({"from": IDS, "to": IDS}, optional={"when": JUNK, "max_iterations": JUNK})
DOCUMENT = st.fixed_dictionaries(
    {"id": st.just("wf") | JUNK, "name": st.just("W"), "entry": IDS},
    optional={
        "nodes": st.dictionaries(IDS, NODE | JUNK, max_size=3) | JUNK,
        "edges": st.lists(EDGE | JUNK, max_size=4) | JUNK,
        "skills": JUNK,
        "inputs": JUNK,
        "parallel": JUNK,
        "fetch": JUNK,
        "budget": JUNK,
        "judge_budget": JUNK,
        "rules": JUNK,
    },
)


@settings(max_examples=int(os.environ.get("TREADLE_FUZZ_DOCUMENTS", "350")), deadline=None)
@given(DOCUMENT | JUNK)
def test_no_document_breaks_the_compiler(value):
    from treadle.lang.text import Document

    definition, found = DIALECT.compile(Document(value))
    assert (definition is None) == bool(found.errors)
    assert all(problem.hint for problem in found if problem.code != "VALUE_REFUSED"), list(map(str, found))
    if definition is not None:
        DIALECT.machine.load(definition.body)
        assert definition.digest


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_no_text_breaks_the_compiler(text):
    try:
        document = parse(text)
    except TreadleError:
        return
    DIALECT.compile(document)
