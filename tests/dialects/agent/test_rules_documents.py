"""Rules of the document, field by field (AGENT.md §2, W1-W4, §8.5)."""

from __future__ import annotations

import copy
import json
import logging
from typing import Any

import pytest

from treadle import Engine
from treadle.dialects.agent import inputs
from treadle.kernel.errors import InputInvalid, TreadleError
from treadle.testing.scripted import ScriptedModel

# Every field of the tables of §2 and of §8.5, once.
WHOLE: dict[str, Any] = {
    "id": "whole",
    "name": "Whole",
    "description": "Everything at once",
    "entry": "first-node",
    "rules": ["Be kind.", {"inline": "./not a file"}],
    "context": [{"file": "notes.md"}, {"url": "https://example.org/x", "type": "fetch"}],
    "workflow_type": "pr_review",
    "model": "any name at all/9",
    "judge_model": "small",
    "judge_budget": 0,
    "parallel": False,
    "budget": {"usd": 2.5, "tokens": 1},
    "on_failure": "halt",
    "max_steps": 7,
    "fetch": {"auth": {"example.org": "TOKEN"}, "allow": ["intranet"]},
    "inputs": {
        "host": {"type": "string", "description": "d", "required": True, "enum": ["a"]},
        "count": {"type": "number", "default": 1, "enum": [1, 2.5]},
        "loud": {"type": "boolean", "default": False},
        "tags": {"type": "string[]", "default": ["x"]},
    },
    "skills": {
        "said": {"name": "Said", "description": "d", "instruction": "How."},
        "local": {"mcp": {"type": "stdio", "command": "c", "args": ["-v"], "env": {"K": "a key"}}},
        "far": {"mcp": {"type": "http", "url": "https://x/mcp", "headers": {"A": "b"}, "timeout": "5s"}},
    },
    "nodes": {
        "first-node": {
            "name": "First",
            "instruction": "Do it.",
            "skills": ["said", "local", "far"],
            "output": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "max_turns": 1,
            "model": "m",
            "judge_model": "j",
            "disallowed_tools": ["Bash"],
            "tools": {"allow": ["a"], "deny": ["b"]},
            "fail_soft": True,
            "rules": ["Mine."],
            "context": {"only": True, "sources": ["Mine."]},
            "eval": [
                {
                    "name": "v",
                    "kind": "value",
                    "rule": {"output_required": ["n"], "output_matches": [{"path": "n", "in": [1]}]},
                },
                {
                    "name": "f",
                    "kind": "function",
                    "rule": {"any_tool_called": ["a"], "all_tools_called": ["a"], "no_tool_called": ["b"]},
                },
                {"name": "j", "kind": "judge", "rubric": "r", "pass_when": "ok", "model": "m"},
            ],
            "eval_policy": "all_pass",
            "requires": {
                "output_required": ["input.host"],
                "output_matches": [
                    {"path": "any:input.tags[*]", "equals": None},
                    {"path": "input.host", "matches": "^a"},
                ],
                "on_fail": "skip",
            },
            "retry": {"max": 1, "instruction": {"reflect": "Why?"}},
            "budget": {"tokens": 5},
            "approve": {"roles": ["r"], "prompt": {"inline": "?"}, "on_deny": "fail", "timeout": "2h"},
            "in_doubt": "ask",
        },
        "second": {"name": "Second", "run": {"workflow": "other", "input": {"n": "{{ first-node.n }}"}}},
    },
    "edges": [{"from": "first-node", "to": "second", "when": "it is so", "max_iterations": 1}],
}

# Where each object of the document stands.
OBJECTS = [
    ("nodes", "first-node"),
    ("nodes", "second"),
    ("nodes", "second", "run"),
    *(
        ("nodes", "first-node", *path)
        for path in [
            ("tools",),
            ("context",),
            *(("eval", index) for index in range(3)),
            ("eval", 0, "rule"),
            ("eval", 0, "rule", "output_matches", 0),
            ("requires",),
            ("requires", "output_matches", 0),
            ("retry",),
            ("retry", "instruction"),
            ("budget",),
            ("approve",),
            ("approve", "prompt"),
        ]
    ),
    ("edges", 0),
    ("rules", 1),
    ("context", 0),
    ("context", 1),
    ("budget",),
    ("fetch",),
    ("inputs", "host"),
    ("skills", "said"),
    ("skills", "local", "mcp"),
]


def changed(*path: Any, **fields: Any) -> dict[str, Any]:
    """WHOLE with fields set (or, as None, left out) in the object at a path."""
    document = copy.deepcopy(WHOLE)
    place: Any = document
    for key in path:
        place = place[key]
    for name, value in fields.items():
        if value is None:
            del place[name]
        else:
            place[name] = value
    return document


def test_every_field_is_known(problems):
    found = problems(WHOLE)
    assert not found.errors, [str(problem) for problem in found.errors]


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: ".".join(map(str, path)))
def test_inner_objects_are_closed(problems, path):
    assert problems(changed(*path, unheard_of=1)).errors


def test_the_top_level_is_open(problems):
    """Marketplace files carry fields of their own."""
    more = {
        "author": "someone",
        "category": "ops",
        "tags": ["a"],
        "icon": "x",
        "color": "#fff",
        "version": "1.0",
        "sweny_version": ">=0.2",
        "variables": {"X": {"required": True}},
        "sample_output": {"any": ["thing"]},
    }
    assert not problems(changed(**more)).errors


@pytest.mark.parametrize(
    ("path", "field"),
    [
        *(((), name) for name in ("id", "name", "entry", "nodes", "edges")),
        *((("nodes", "first-node"), name) for name in ("name", "instruction")),
        *((("edges", 0), name) for name in ("from", "to")),
        *((("nodes", "first-node", "eval", 0), name) for name in ("name", "kind", "rule")),
        (("nodes", "first-node", "eval", 2), "rubric"),
        (("nodes", "first-node", "retry"), "max"),
        *((("nodes", "first-node", "approve"), name) for name in ("roles", "prompt")),
        (("nodes", "second", "run"), "workflow"),
        (("inputs", "host"), "type"),
        (("skills", "said"), "instruction"),
        (("skills", "local", "mcp"), "command"),
        (("skills", "far", "mcp"), "url"),
    ],
    ids=str,
)
def test_what_is_required(problems, path, field):
    assert problems(changed(*path, **{field: None})).errors


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ((), {"id": ""}),
        ((), {"name": 5}),
        ((), {"workflow_type": "party"}),
        ((), {"model": ""}),
        ((), {"judge_budget": -1}),
        ((), {"max_steps": 0}),
        ((), {"on_failure": "stop"}),
        ((), {"budget": {}}),
        ((), {"budget": {"usd": 0}}),
        ((), {"rules": "one"}),
        (("nodes", "first-node"), {"max_turns": 0}),
        (("nodes", "first-node"), {"max_turns": 1.5}),
        (("nodes", "first-node"), {"disallowed_tools": [""]}),
        (("nodes", "first-node"), {"tools": {"allow": []}}),
        (("nodes", "first-node"), {"eval": []}),
        (("nodes", "first-node"), {"fail_soft": "yes"}),
        (("nodes", "first-node"), {"in_doubt": "maybe"}),
        (("nodes", "first-node", "retry"), {"max": 0}),
        (("nodes", "first-node", "requires"), {"on_fail": "retry"}),
        (("nodes", "first-node", "approve"), {"roles": []}),
        (("edges", 0), {"max_iterations": 0}),
        (("edges", 0), {"to": ""}),
        (("inputs", "host"), {"type": "integer"}),
    ],
    ids=str,
)
def test_what_a_field_may_be(problems, path, wrong):
    assert problems(changed(*path, **wrong)).errors


def test_what_holds_where_nothing_is_written(play, flow, problems):
    """§2 and §8.5: judge_budget 50, max_steps 200 (max_turns 50 is in test_nodes.py)."""
    judges = [{"name": f"j{n}", "kind": "judge", "rubric": "r"} for n in range(51)]
    assert not list(problems(flow({"a": {"eval": judges[:50]}})))
    assert [problem.code for problem in problems(flow({"a": {"eval": judges}}))] == ["JUDGE_BUDGET"]
    skipped = {"requires": {"output_required": ["input.x"], "on_fail": "skip"}}
    run = play(flow({"a": skipped}, ("a", "a", {"max_iterations": 199})), {"run": {}})
    assert (run.status, len(run.path())) == ("completed", 200)
    run = play(flow({"a": skipped}, ("a", "a", {"max_iterations": 200})), {"run": {}})
    assert (run.error["code"], len(run.path())) == ("MAX_STEPS", 200)


def test_two_evaluators_have_two_names(problems, flow):
    """Downstream reads <node>.evals.<name>: one of two would be lost."""
    check = {"name": "same", "kind": "judge", "rubric": "r"}
    found = problems(flow({"a": {"eval": [check, check]}}))
    assert [problem.code for problem in found.errors] == ["DUPLICATE_EVALUATOR"]
    assert not problems(flow({"a": {"eval": [check]}, "b": {"eval": [check]}}, "a b")).errors


def test_a_node_is_reachable_over_any_edge(problems, flow):
    """W1: over conditional and bounded ones too, in any order; from the entry only."""
    wf = flow(
        "a b c d", ("c", "d", {"max_iterations": 1}), ("b", "c", {"when": "y"}), ("a", "b", {"when": "x"})
    )
    assert not problems(wf).errors
    wf["entry"] = "b"
    assert [(p.code, p.path) for p in problems(wf).errors] == [("UNREACHABLE_NODE", "nodes.a")]


def test_two_branches_do_not_start_at_one_node(problems, flow):
    wf = flow("a b", "a b", "a b", parallel=True)
    (problem,) = problems(wf).errors
    assert (problem.code, problem.hint) == ("AMBIGUOUS_EDGES", "Two branches cannot start at the same node.")


@pytest.mark.parametrize("twice", ["id: wf\n", "  a: {name: A, instruction: Do a.}\n", "edges: []\n"])
def test_a_key_that_stands_twice_is_an_error(problems, twice):
    text = "id: wf\nname: W\nentry: a\nnodes:\n  a: {name: A, instruction: Do a.}\nedges: []\n"
    assert not problems(text).errors
    with pytest.raises(TreadleError, match="twice"):
        problems(text.replace(twice, twice * 2))


def test_workflow_type_changes_nothing(play, flow):
    """W2: the executor never changes behaviour on it."""
    script = {"run": {"a": [{"data": {"n": 1}}], "b": [{"data": {}}]}}
    plain = play(flow("a b", "a b"), script)
    for kind in ("pr_review", "e2e_test", "content_generation", "monitor", "data_sync", "generic"):
        typed = play(flow("a b", "a b", workflow_type=kind), script)
        assert (typed.events, typed.model.calls) == (plain.events, plain.model.calls)


def test_null_is_missing():
    """W3: also where there is a default."""
    declared = {"n": {"type": "number", "default": 3}, "s": {"type": "string"}, "b": {"type": "boolean"}}
    assert inputs.apply(declared, {"n": None, "s": None, "b": False}) == {"n": 3, "s": None, "b": False}
    with pytest.raises(InputInvalid) as caught:
        inputs.apply({"s": {"type": "string", "required": True}}, {"s": None})
    assert caught.value.details["errors"] == [{"field": "s", "message": "is required"}]


@pytest.mark.house
async def test_no_value_of_an_input_is_logged(tmp_path, flow, caplog):
    """W4: telemetry carries shapes, never values. There is none; what there is, is the log."""
    declared = {"host": {"type": "string", "required": True}, "count": {"type": "number"}}
    wf = flow("a b", ("a", "b", {"when": "x"}), inputs=declared)
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.models["fake"] = ScriptedModel(
        {"run": {"a": [{"data": {}}], "b": [{"throw": "down"}]}, "evaluate": {"a": ["b"]}}
    )
    with caplog.at_level(logging.DEBUG):
        async with engine:
            engine.deploy(str(tmp_path / "flow.json"))
            run = await engine.start("wf", {"host": "hunter2.example", "count": 987654321}, model="fake")
            assert (await run.settled(timeout=30))["status"] == "failed"
    text = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("treadle"))
    assert "hunter2" not in text
    assert "987654321" not in text
