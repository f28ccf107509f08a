"""Nodes: instructions, tools, limits, requires, evaluators, retries (N1-N18)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from treadle.agent import Skill


def data(**value: Any) -> list[dict[str, Any]]:
    return [{"data": value}]


def value_eval(name: str, **rule: Any) -> dict[str, Any]:
    return {"name": name, "kind": "value", "rule": rule}


def make_skill(id: str, *tools: str, **more: Any) -> Skill:
    skill = Skill(id, name=id.title(), **more)
    for name in tools:

        @skill.tool(name, description=name, input_schema={"type": "object"})
        async def handle(input: dict, ctx: Any) -> Any:
            if input.get("fail"):
                raise RuntimeError("no")
            return {"ok": True}

    return skill


# --- instruction and models ---------------------------------------------------------------------


def test_assembly_is_exact(play, flow):
    skill = make_skill("net", "ping", instruction="Be brief.")
    other = make_skill("plain", "noop")
    node = {"skills": ["plain", "net"], "rules": ["node rule"], "context": ["node context"]}
    wf = flow({"a": node}, rules=["flow rule"], context=["flow context"])
    run = play(
        wf,
        {"run": {"a": data()}},
        {"rules": ["input rule"], "context": "input context"},
        skills=(skill, other),
    )
    assert run.asked("run")[0]["instruction"] == (
        "## Rules — You MUST Follow These\n\ninput rule\n\nflow rule\n\nnode rule"
        "\n\n---\n\n"
        "## Background Context\n\ninput context\n\nflow context\n\nnode context"
        "\n\n---\n\n"
        "## Skill: Net\n\nBe brief."
        "\n\n---\n\n"
        "Do a."
    )
    assert run.of("node:enter")[0]["instruction"] == "Do a."


def test_only_keeps_the_nodes_own_for_that_field_only(play, flow):
    node = {"rules": {"only": True, "sources": ["mine"]}, "context": {"sources": ["also mine"]}}
    wf = flow({"a": node}, rules=["flow rule"], context=["flow context"])
    text = play(wf, {"run": {"a": data()}}).asked("run")[0]["instruction"]
    assert "## Rules — You MUST Follow These\n\nmine\n\n---" in text
    assert "## Background Context\n\nflow context\n\nalso mine\n\n---" in text


def test_instructions_are_never_altered(play, flow):
    text = "  leading\n\n\ttrailing  \n"
    run = play(
        flow({"a": {"instruction": {"inline": text}}, "b": {"instruction": text}}, "a b"),
        {"run": {"a": data(), "b": data()}},
    )
    assert [call["instruction"] for call in run.asked("run")] == [text, text]


def test_models_are_forwarded_verbatim(play, flow):
    wf = flow({"a": {"model": "No Such/Model 9"}, "b": {}}, "a b", model="base")
    assert [c["model"] for c in play(wf, {"run": {"a": data(), "b": data()}}).asked("run")] == [
        "No Such/Model 9",
        "base",
    ]
    assert play(flow("a"), {"run": {"a": data()}}).asked("run")[0]["model"] is None


# --- tools --------------------------------------------------------------------------------------


def test_tools_of_unlisted_skills_are_not_there(play, flow):
    wf = flow({"a": {"skills": ["one"]}, "b": {}}, "a b")
    skills = (make_skill("one", "x"), make_skill("two", "y"))
    call = {"tool_calls": [{"tool": "y", "input": {}}], "data": {}}
    run = play(wf, {"run": {"a": [call], "b": data()}}, skills=skills)
    assert [c["tools"] for c in run.asked("run")] == [["x"], ["x"], []]
    assert "no tool 'y'" in run.results["a"]["toolCalls"][0]["error"]


def test_an_unconfigured_skill_is_left_out_with_a_warning(play, flow):
    skill = make_skill(
        "net", "ping", config={"NET_KEY_X": {"description": "k", "required": True, "env": "NET_KEY_X"}}
    )
    wf = flow({"a": {"skills": ["net", "nobody"], "skills_optional": True}})
    run = play(wf, {"run": {"a": data()}}, skills=(skill,))
    assert run.asked("run")[0]["tools"] == []
    assert run.status == "completed"
    assert len(run.of("node:warning")) == 2
    run = play(wf, {"run": {"a": data()}}, skills=(skill,), config={"NET_KEY_X": "v"})
    assert run.asked("run")[0]["tools"] == ["ping"]


def test_allow_then_deny_filters_skill_tools(play, flow):
    node = {"skills": ["s"], "tools": {"allow": ["x", "y", "typo"], "deny": ["y"]}}
    run = play(
        flow({"a": node}),
        {"run": {"a": [{"tool_calls": [{"tool": "z"}], "data": {}}]}},
        skills=(make_skill("s", "x", "y", "z"),),
    )
    assert run.asked("run")[0]["tools"] == ["x"]
    assert "no tool 'z'" in run.results["a"]["toolCalls"][0]["error"]
    assert run.of("node:warning") == [{"node": "a", "message": "tools: 'typo' matches no tool of this node"}]


def test_disallowed_tools_never_touch_skill_tools(play, flow):
    run = play(
        flow({"a": {"skills": ["s"], "disallowed_tools": ["x", "Bash"]}}),
        {"run": {"a": data()}},
        skills=(make_skill("s", "x"),),
    )
    assert run.asked("run")[0]["tools"] == ["x"]


def test_inputs_are_validated_before_the_handler(play, flow):
    seen = []
    skill = Skill("s", name="S")

    @skill.tool(
        "t", input_schema={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    )
    def t(input: dict, ctx: Any) -> Any:
        seen.append(input)
        return 1

    calls = [
        {"tool": "t", "input": {"n": "x"}},
        {"tool": "t", "input": {}},
        {"tool": "t", "input": [1]},
        {"tool": "t", "input": {"n": 1}},
    ]
    run = play(
        flow({"a": {"skills": ["s"]}}), {"run": {"a": [{"tool_calls": calls, "data": {}}]}}, skills=(skill,)
    )
    assert seen == [{"n": 1}]
    errors = [call.get("error", "") for call in run.results["a"]["toolCalls"]]
    assert [error.startswith("invalid input") for error in errors] == [True, True, True, False]


def test_handlers_get_config_key_and_progress(play, flow):
    skill = Skill("s", name="S", config={"TOKEN": {"description": "t"}})
    seen: list[Any] = []

    @skill.tool("a1", idempotent=True)
    async def a1(input: dict, ctx: Any) -> Any:
        await ctx.progress("one")
        ctx.progress("two")
        seen.append((dict(ctx.config), ctx.idempotency_key, ctx.run_id, ctx.node))
        return None

    @skill.tool("a2")
    def a2(input: dict, ctx: Any) -> Any:
        ctx.progress("three")
        ctx.logger.debug("hi")
        return {"x": (1, 2)}

    run = play(
        flow({"a": {"skills": ["s"]}}),
        {"run": {"a": [{"tool_calls": [{"tool": "a1"}, {"tool": "a2"}], "data": {}}]}},
        skills=(skill,),
        config={"TOKEN": "12345678"},
    )
    call = next(i for i in run.performed if i.kind == "call")
    assert seen == [({"TOKEN": "12345678"}, call.id, "r1", "a")]
    assert [e["message"] for e in run.of("node:progress")] == ["one", "two", "three"]
    assert run.results["a"]["toolCalls"][1]["output"] == {"x": [1, 2]}
    assert run.learned == {"TOKEN": "12345678"}, "configured values are known as secrets"


def test_a_tool_output_that_cannot_be_stored_is_an_error(play, flow):
    skill = Skill("s", name="S")
    skill.tool("t")(lambda input, ctx: object())
    skill.tool("u")(lambda input, ctx: float("nan"))
    run = play(
        flow({"a": {"skills": ["s"]}}),
        {"run": {"a": [{"tool_calls": [{"tool": "t"}, {"tool": "u"}], "data": {}}]}},
        skills=(skill,),
    )
    assert all("error" in call for call in run.results["a"]["toolCalls"])
    assert run.status == "completed"


# --- limits -------------------------------------------------------------------------------------


def test_max_turns_keeps_the_partial_result(play, flow):
    wf = flow({"a": {"skills": ["s"], "max_turns": 1}, "b": {}}, "a b")
    entry = {"tool_calls": [{"tool": "x", "input": {}}], "text": "so far", "data": {"never": 1}}
    run = play(wf, {"run": {"a": [entry], "b": data()}}, skills=(make_skill("s", "x"),))
    result = run.results["a"]
    assert result["status"] == "failed"
    assert result["data"] == {"summary": "so far", "error": "max_turns: no result within 1 turns"}
    assert result["toolCalls"] == [{"tool": "x", "input": {}, "output": {"ok": True}}]
    assert run.asked("run")[0]["max_turns"] == 1
    assert play(flow("a"), {"run": {"a": data()}}).asked("run")[0]["max_turns"] == 50


def test_fail_soft_softens_agent_failures_only(play, flow):
    wf = flow({"a": {"fail_soft": True}, "b": {}}, "a b")
    run = play(wf, {"run": {"a": [{"throw": "down"}], "b": data()}})
    assert run.results["a"] == {
        "status": "success",
        "data": {"error": "down", "fail_soft": True},
        "toolCalls": [],
    }
    assert run.status == "completed"
    checked = flow({"a": {"fail_soft": True, "eval": [value_eval("e", output_required=["x"])]}})
    run = play(checked, {"run": {"a": data()}})
    assert run.results["a"]["status"] == "failed", "eval failures are not softened"


def test_a_token_budget_of_the_node_fails_that_node_only(play, flow):
    usage = {"input_tokens": 100, "output_tokens": 20}
    wf = flow({"a": {"skills": ["s"], "budget": {"tokens": 100}}, "b": {}}, "a b")
    entry = {"tool_calls": [{"tool": "x"}], "data": {}, "usage": usage}
    run = play(wf, {"run": {"a": [entry], "b": data()}}, skills=(make_skill("s", "x"),))
    assert run.results["a"]["data"]["error"] == "budget exceeded: 120 of 100 tokens"
    assert len(run.results["a"]["toolCalls"]) == 1, "its tool calls are kept"
    assert run.path() == ["a", "b"]
    assert run.driver.view()["stats"]["usage"] == {"input_tokens": 100, "output_tokens": 20, "usd": 0.0}
    assert run.trace["steps"][0]["usage"] == {"input_tokens": 100, "output_tokens": 20, "usd": 0.0}


def test_a_small_budget_is_told_as_a_price(play, flow):
    script = {"run": {"a": [{"data": {}, "usage": {"usd": 0.015}}]}}
    run = play(flow("a b", "a b", budget={"usd": 0.00001}), script)
    assert run.results["b"]["data"]["error"] == "budget exceeded: 0.015 of 0.00001 usd"


def test_a_budget_of_the_workflow_ends_the_run(play, flow):
    wf = flow("a b c", "a b", "b c", budget={"usd": 0.5})
    script = {
        "run": {"a": [{"data": {}, "usage": {"usd": 0.25}}], "b": [{"data": {}, "usage": {"usd": 0.3}}]}
    }
    run = play(wf, script)
    assert run.results["c"]["data"]["error"] == "budget exceeded: 0.55 of 0.5 usd"
    assert run.status == "failed"
    assert run.error["where"] == "c"
    assert run.events[-1]["type"] == "workflow:end"


def test_a_budget_in_dollars_says_when_it_cannot_count(play, flow):
    wf = flow({"a": {"model": "unheard-of"}, "b": {}}, "a b", budget={"usd": 1})
    script = {
        "run": {"a": [{"data": {}, "usage": {"input_tokens": 9}}], "b": [{"data": {}, "usage": {"usd": 0.1}}]}
    }
    run = play(wf, script)
    (warning,) = run.of("node:warning")
    assert warning["node"] == "a"
    assert "no price is known for unheard-of" in warning["message"]


def test_a_route_that_cannot_be_paid_fails_the_node(play, flow):
    wf = flow("a b", ("a", "b", {"when": "x"}), budget={"tokens": 5})
    run = play(
        wf, {"run": {"a": [{"data": {"n": 1}, "usage": {"input_tokens": 5}}]}, "evaluate": {"a": ["b"]}}
    )
    assert run.asked("evaluate") == []
    assert run.results["a"]["status"] == "failed"
    assert run.results["a"]["data"] == {"n": 1, "error": "budget exceeded: 5 of 5 tokens"}
    assert run.status == "failed"


def test_a_judge_that_cannot_be_paid_fails_the_node(play, flow):
    judge = {"name": "j", "kind": "judge", "rubric": "Good?"}
    wf = flow({"a": {"eval": [judge], "budget": {"tokens": 5}}, "b": {}}, "a b")
    run = play(
        wf, {"run": {"a": [{"data": {"n": 1}, "usage": {"input_tokens": 6}}], "b": data()}, "ask": ["yes"]}
    )
    assert run.asked("ask") == []
    assert run.results["a"]["data"] == {"n": 1, "error": "budget exceeded: 6 of 5 tokens"}
    assert run.path() == ["a", "b"]


def spent(tokens: int, **more: Any) -> dict[str, Any]:
    return {"data": {"n": 1}, "usage": {"input_tokens": tokens}, **more}


@pytest.mark.parametrize("tokens", [5, 6])
def test_a_route_beyond_the_nodes_own_budget_is_not_asked(play, flow, tokens):
    wf = flow({"a": {"budget": {"tokens": 5}}, "b": {}, "c": {}}, ("a", "b", {"when": "x"}), "a c")
    run = play(wf, {"run": {"a": [spent(tokens)], "c": data()}, "evaluate": {"a": ["b"]}})
    assert run.asked("evaluate") == []
    assert run.results["a"]["status"] == "failed"
    assert run.results["a"]["data"] == {"n": 1, "error": f"budget exceeded: {tokens} of 5 tokens"}
    assert run.path() == ["a", "c"], "the node only: the default edge is followed"
    assert run.error["where"] == "a"


def test_without_a_default_edge_an_unpaid_route_ends_there(play, flow):
    wf = flow({"a": {"budget": {"tokens": 5}}, "b": {}}, ("a", "b", {"when": "x"}))
    run = play(wf, {"run": {"a": [spent(5)]}, "evaluate": {"a": ["b"]}})
    assert run.of("workflow:halted") == [{"node": "a", "reason": "budget exceeded"}]
    assert run.of("route") == []
    assert run.results["a"]["status"] == "failed"


def test_a_budget_used_up_before_a_retry_keeps_the_attempt(play, flow):
    check = [{"name": "has", "kind": "value", "rule": {"output_required": ["x"]}}]
    node = {"budget": {"tokens": 5}, "eval": check, "retry": {"max": 2}, "skills": ["s"]}
    entry = spent(2, tool_calls=[{"tool": "t", "input": {}}])
    run = play(
        flow({"a": {**node, "budget": {"tokens": 2}}, "b": {}}, "a b"),
        {"run": {"a": [spent(2)], "b": data()}},
        skills=(make_skill("s", "t"),),
    )
    assert run.results["a"]["data"] == {"n": 1, "error": "budget exceeded: 2 of 2 tokens"}
    assert [e["pass"] for e in run.results["a"]["evals"]] == [False]
    assert run.of("node:retry") == []
    assert [step["node"] for step in run.trace["steps"]] == ["a", "b"]
    run = play(flow({"a": node}), {"run": {"a": [entry, entry, entry]}}, skills=(make_skill("s", "t"),))
    assert len(run.of("node:retry")) == 2, "below the cap it goes on"


def test_below_the_nodes_budget_the_route_is_asked(play, flow):
    wf = flow({"a": {"budget": {"tokens": 5}}, "b": {}}, ("a", "b", {"when": "x"}))
    run = play(wf, {"run": {"a": [spent(4)], "b": data()}, "evaluate": {"a": ["b"]}})
    assert run.path() == ["a", "b"]
    assert run.status == "completed"


def test_an_unpaid_route_softens_only_what_fail_soft_softens(play, flow):
    soft = {"budget": {"tokens": 5}, "fail_soft": True}
    script = {"run": {"a": [spent(5)]}, "evaluate": {"a": ["b"]}}
    run = play(flow({"a": soft, "b": {}}, ("a", "b", {"when": "x"})), script)
    assert run.results["a"]["status"] == "success"
    assert run.results["a"]["data"] == {
        "n": 1,
        "error": "budget exceeded: 5 of 5 tokens",
        "fail_soft": True,
    }
    check = [{"name": "has", "kind": "value", "rule": {"output_required": ["x"]}}]
    run = play(flow({"a": {**soft, "eval": check}, "b": {}}, ("a", "b", {"when": "x"})), script)
    assert run.results["a"]["status"] == "failed", "a failed evaluation is never softened"
    assert run.results["a"]["data"]["error"].startswith("eval failed: has (value)")
    assert run.asked("evaluate") == []


@pytest.mark.parametrize("soft", [False, True])
def test_the_error_that_a_model_reports_stays_what_it_is(play, flow, soft):
    said = {"code": 5, "ok": True, "why": None}
    entry = {"status": "failed", "data": {"error": said, "n": 1}}
    wf = flow({"a": {"fail_soft": soft}, "b": {"requires": {"output_required": ["a.error.code"]}}}, "a b")
    run = play(wf, {"run": {"a": [entry], "b": data()}})
    assert run.results["a"]["data"]["error"] == said
    assert run.results["b"]["status"] == "success"
    assert run.results["a"]["status"] == ("success" if soft else "failed")


def test_two_tools_of_one_name_are_told_apart(play, flow):
    skills = (make_skill("one", "t"), make_skill("two", "t", "u"))
    both = {"skills": ["one", "two", "one"]}
    calls = [{"tool": name, "input": {}} for name in ("t", "one__t", "two__t", "two__u", "three__t")]
    run = play(flow({"a": both}), {"run": {"a": [{"tool_calls": calls, "data": {}}]}}, skills=skills)
    assert run.asked("run")[0]["tools"] == ["t", "two__t", "u"]
    made = [(call["tool"], "error" in call) for call in run.results["a"]["toolCalls"]]
    assert made == [("t", False), ("t", False), ("two__t", False), ("u", False), ("three__t", True)]
    for filter, left in [
        ({"allow": ["two__t"]}, ["two__t"]),
        ({"allow": ["t"]}, ["t"]),
        ({"deny": ["two__t"]}, ["t", "u"]),
        ({"deny": ["one__t"]}, ["two__t", "u"]),
        ({"deny": ["t"]}, ["u"]),
    ]:
        run = play(flow({"a": {**both, "tools": filter}}), {"run": {"a": data()}}, skills=skills)
        assert run.asked("run")[0]["tools"] == left, filter
        assert run.of("node:warning") == []


# --- requires -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requires", "ok"),
    [
        ({"output_required": ["input.x"]}, True),
        ({"output_required": ["input.none"]}, False),
        ({"output_required": ["a.items[*].n"]}, True),
        ({"output_required": ["a.empty[*].n"]}, True),
        ({"output_required": ["any:a.empty[*].n"]}, False),
        ({"output_required": ["a.n[*]"]}, False),
        ({"output_required": ["a.null.x"]}, False),
        ({"output_required": ["my-node.ok"]}, True),
        ({"output_matches": [{"path": "a.n", "equals": 1}]}, True),
        ({"output_matches": [{"path": "a.n", "equals": True}]}, False),
        ({"output_matches": [{"path": "a.n", "equals": "1"}]}, False),
        ({"output_matches": [{"path": "a.null", "equals": None}]}, True),
        ({"output_matches": [{"path": "a.items", "equals": [{"n": 1}, {"n": 2}]}]}, True),
        ({"output_matches": [{"path": "a.items[*].n", "in": [1, 2]}]}, True),
        ({"output_matches": [{"path": "a.items[*].n", "equals": 1}]}, False),
        ({"output_matches": [{"path": "any:a.items[*].n", "equals": 1}]}, True),
        ({"output_matches": [{"path": "a.text", "matches": "^h.*o$"}]}, True),
        ({"output_matches": [{"path": "a.n", "matches": r"^\d$"}]}, True),
        ({"output_matches": [{"path": "a.text", "matches": "^H"}]}, False),
        ({"output_matches": [{"path": "a.gone", "matches": ".*"}]}, False),
    ],
)
def test_requires(play, flow, requires, ok):
    wf = flow({"a": {}, "my-node": {}, "b": {"requires": requires}, "c": {}}, "a my-node", "my-node b", "b c")
    first = {"n": 1, "items": [{"n": 1}, {"n": 2}], "empty": [], "null": None, "text": "hello"}
    script = {"run": {"a": [{"data": first}], "my-node": data(ok=1), "b": data(), "c": data()}}
    run = play(wf, script, {"x": 0})
    assert (run.results["b"]["status"] == "success") is ok
    assert run.path() == ["a", "my-node", "b", "c"], "routing goes on either way"
    if not ok:
        assert run.results["b"]["data"]["error"].startswith("requires failed: ")
        assert "b" not in [call["node"] for call in run.asked("run")]


def test_requires_may_skip(play, flow):
    wf = flow({"a": {"requires": {"output_required": ["input.x"], "on_fail": "skip"}}, "b": {}}, "a b")
    run = play(wf, {"run": {"b": data()}})
    assert run.results["a"] == {
        "status": "skipped",
        "data": {"skipped_reason": "requires not met: input.x is missing"},
        "toolCalls": [],
    }
    assert run.status == "completed"
    assert [event["type"] for event in run.events][2:5] == ["node:enter", "node:exit", "route"]


def test_a_long_chain_of_skipped_nodes_takes_several_records(play, flow):
    names = [f"n{i}" for i in range(190)]
    skip = {"requires": {"output_required": ["input.x"], "on_fail": "skip"}}
    wf = flow(dict.fromkeys(names, skip), *[f"{a} {b}" for a, b in itertools.pairwise(names)])
    run = play(wf, {"run": {}})
    assert run.path() == names
    assert run.status == "completed"


# --- evaluators ---------------------------------------------------------------------------------


def test_every_evaluator_runs_and_failures_are_listed(play, flow):
    checks = [
        value_eval("first", output_required=["missing"]),
        value_eval("second", output_matches=[{"path": "n", "equals": 1}]),
        {"name": "third", "kind": "function", "rule": {"any_tool_called": ["x"]}},
    ]
    run = play(flow({"a": {"eval": checks}, "b": {}}, "a b"), {"run": {"a": data(n=1), "b": data()}})
    result = run.results["a"]
    assert [(e["name"], e["kind"], e["pass"]) for e in result["evals"]] == [
        ("first", "value", False),
        ("second", "value", True),
        ("third", "function", False),
    ]
    assert result["status"] == "failed"
    assert "first (value): missing is missing" in result["data"]["error"]
    assert "third (function): none of x was called" in result["data"]["error"]
    context = run.asked("run")[1]["context"]["a"]
    assert context["evals"]["second"] == {"pass": True, "kind": "value", "reasoning": "all checks hold"}
    assert "evals" not in result["data"]


@pytest.mark.parametrize(
    ("rule", "passes"),
    [
        ({"any_tool_called": ["x", "nope"]}, True),
        ({"any_tool_called": ["y"]}, False),
        ({"all_tools_called": ["x"]}, True),
        ({"all_tools_called": ["x", "y"]}, False),
        ({"no_tool_called": ["z"]}, True),
        ({"no_tool_called": ["y"]}, False),
    ],
)
def test_called_means_succeeded_except_for_no_tool_called(play, flow, rule, passes):
    node = {"skills": ["s"], "eval": [{"name": "e", "kind": "function", "rule": rule}]}
    calls = [{"tool": "x", "input": {}}, {"tool": "y", "input": {"fail": True}}]
    run = play(
        flow({"a": node}),
        {"run": {"a": [{"tool_calls": calls, "data": {}}]}},
        skills=(make_skill("s", "x", "y", "z"),),
    )
    assert run.results["a"]["evals"][0]["pass"] is passes


def test_no_evaluation_after_the_model_failed(play, flow):
    wf = flow({"a": {"eval": [{"name": "j", "kind": "judge", "rubric": "r"}], "retry": {"max": 2}}})
    run = play(wf, {"run": {"a": [{"status": "failed", "data": {"error": "x"}}]}, "ask": []})
    assert "evals" not in run.results["a"]
    assert len(run.trace["steps"]) == 1, "and no retry either"


@pytest.mark.parametrize(
    ("reply", "pass_when", "passed"),
    [
        ("yes", "yes", True),
        ("Yes.\nIt is fine.", "yes", True),
        ("no", "yes", False),
        ("no: too short", "yes", False),
        ("PASS", "pass", True),
        ("good", "good", True),
        ('{"verdict": "yes", "reasoning": "ok"}', "yes", True),
        ('{"pass": false}', "yes", False),
        ("VERDICT: yes\nREASONING: looks great", "yes", True),
        ("Verdict: **no**", "yes", False),
        ("VERDICT: rejected\nREASONING: too short", "approved", False),
        ("rejected", "approved", False),
        ("5/5 great", "5/5", True),
        ("**ok!**", "ok!", True),
    ],
)
def test_judges(play, flow, reply, pass_when, passed):
    judge = {"name": "j", "kind": "judge", "rubric": "Is it good?", "pass_when": pass_when}
    run = play(
        flow({"a": {"eval": [judge]}}), {"run": {"a": data(answer=42)}, "ask": [reply]}, {"secret_input": 1}
    )
    (asked,) = run.asked("ask")
    assert "Is it good?" in asked["instruction"]
    assert "42" in asked["instruction"]
    assert "secret_input" not in asked["instruction"]
    assert run.results["a"]["evals"][0]["pass"] is passed
    assert (run.results["a"]["status"] == "success") is passed


def test_a_judge_that_cannot_be_read_is_asked_once_more(play, flow):
    judge = {"name": "j", "kind": "judge", "rubric": "r"}
    wf = flow({"a": {"eval": [judge]}})
    run = play(wf, {"run": {"a": data()}, "ask": ["Well, it depends on how you look", "yes"]})
    assert run.results["a"]["status"] == "success"
    run = play(wf, {"run": {"a": data()}, "ask": ["Well, it depends", "... ???"]})
    assert run.results["a"]["evals"][0]["reasoning"].startswith("judge parse failure")
    assert len(run.asked("ask")) == 2


@pytest.mark.parametrize("said", ["garbage", "maybe", "yesterday", "5", "", "not approved"])
def test_a_word_that_decides_nothing_is_no_verdict(play, flow, said):
    judge = {"name": "j", "kind": "judge", "rubric": "r"}
    run = play(flow({"a": {"eval": [judge]}}), {"run": {"a": data()}, "ask": [said, "yes"]})
    assert len(run.asked("ask")) == 2
    assert run.results["a"]["status"] == "success"


def test_the_judge_model_is_the_nearest_one(play, flow):
    judges = [
        {"name": "a", "kind": "judge", "rubric": "r", "model": "own"},
        {"name": "b", "kind": "judge", "rubric": "r"},
    ]
    wf = flow(
        {"n": {"eval": judges, "judge_model": "node"}, "m": {"eval": [judges[1]]}},
        "n m",
        judge_model="flow",
        model="big",
    )
    run = play(wf, {"run": {"n": data(), "m": data()}, "ask": ["yes"] * 3})
    assert [call["model"] for call in run.asked("ask")] == ["own", "node", "flow"]


def test_reasoning_is_capped(play, flow):
    judge = {"name": "j", "kind": "judge", "rubric": "r"}
    run = play(flow({"a": {"eval": [judge]}}), {"run": {"a": data()}, "ask": ["no " + "x" * 2000]})
    assert len(run.results["a"]["evals"][0]["reasoning"]) <= 500


def test_declared_output_is_validated_in_full_and_can_be_retried(play, flow):
    output = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    wf = flow({"a": {"output": output, "retry": {"max": 1}}})
    run = play(wf, {"run": {"a": [{"data": {"n": "one"}}, {"data": {"n": 1}}]}})
    assert run.status == "completed"
    assert run.results["a"]["data"] == {"n": 1}
    assert "output_required (value)" in run.of("node:retry")[0]["reason"]
    assert run.asked("run")[0]["output_schema"] == output
    run = play(flow({"a": {"output": output}}), {"run": {"a": data(n="one")}})
    assert run.results["a"]["status"] == "failed"


# --- retry --------------------------------------------------------------------------------------


def test_retry_prepends_a_preamble_and_traces_each_attempt(play, flow):
    wf = flow({"a": {"eval": [value_eval("e", output_required=["x"])], "retry": {"max": 2}}})
    run = play(wf, {"run": {"a": [{"data": {}}, {"data": {"y": 1}}, {"data": {"x": 1}}]}})
    assert run.status == "completed"
    assert [(s["status"], s["iteration"], s["retryAttempt"]) for s in run.trace["steps"]] == [
        ("failed", 1, 0),
        ("failed", 1, 1),
        ("success", 1, 2),
    ]
    first, second = run.of("node:retry")
    assert (first["node"], first["attempt"], second["attempt"]) == ("a", 1, 2)
    assert "e (value): x is missing" in first["preamble"]
    asked = run.asked("run")
    assert asked[1]["instruction"] == first["preamble"] + "\n\n---\n\nDo a."
    assert asked[1]["attempt"] == 1
    assert len(run.of("node:enter")) == len(run.of("node:exit")) == 1


def test_retry_gives_up_after_max(play, flow):
    wf = flow({"a": {"eval": [value_eval("e", output_required=["x"])], "retry": {"max": 1}}})
    run = play(wf, {"run": {"a": [{"data": {}}, {"data": {}}]}})
    assert run.results["a"]["status"] == "failed"
    assert len(run.trace["steps"]) == 2


def test_static_retry_text_comes_before_the_list(play, flow):
    retry = {"max": 1, "instruction": "Try harder."}
    wf = flow({"a": {"eval": [value_eval("e", output_required=["x"])], "retry": retry}})
    run = play(wf, {"run": {"a": [{"data": {}}, {"data": {"x": 1}}]}})
    assert run.of("node:retry")[0]["preamble"].startswith("Try harder.\n\n")
    assert "e (value)" in run.of("node:retry")[0]["preamble"]


@pytest.mark.parametrize("how", [{"auto": True}, {"reflect": "Why did it go wrong?"}])
def test_a_retry_may_reflect_first(play, flow, how):
    wf = flow(
        {"a": {"eval": [value_eval("e", output_required=["x"])], "retry": {"max": 1, "instruction": how}}}
    )
    run = play(wf, {"run": {"a": [{"data": {}}, {"data": {"x": 1}}]}, "ask": ["I forgot x."]})
    assert run.of("node:retry")[0]["preamble"].startswith("I forgot x.")
    if "reflect" in how:
        assert "Why did it go wrong?" in run.asked("ask")[0]["instruction"]


def test_a_reflection_that_fails_is_done_without(play, flow):
    wf = flow(
        {
            "a": {
                "eval": [value_eval("e", output_required=["x"])],
                "retry": {"max": 1, "instruction": {"auto": True}},
            }
        }
    )
    run = play(wf, {"run": {"a": [{"data": {}}, {"data": {"x": 1}}]}, "ask": [{"throw": "down"}]})
    assert run.status == "completed"
    assert run.of("node:retry")[0]["preamble"].startswith("Your previous attempt")


@pytest.mark.parametrize("token", ["\nyes", "yes\n", " yes", "yes no", "y\tes"])
def test_pass_when_is_one_token(problems, flow, token):
    judge = {"name": "j", "kind": "judge", "rubric": "ok?", "pass_when": token}
    found = problems(flow({"a": {"eval": [judge]}}))
    assert [problem.code for problem in found.errors] == ["PASS_WHEN_NOT_A_TOKEN"]


def test_the_default_preamble_ends_as_the_nodes_page_says(play, flow):
    value = [{"name": "e", "kind": "value", "rule": {"output_required": ["x"]}}]
    wf = flow({"a": {"eval": value, "retry": {"max": 1}}})
    run = play(wf, {"run": {"a": [{"data": {}}, {"data": {"x": 1}}]}})
    assert run.of("node:retry")[0]["preamble"].endswith("\n\nFix and try again.")


def test_a_budget_in_dollars_does_not_ask_for_prices_that_are_there(play, flow, tmp_path, monkeypatch):
    """B16: the warning is true: where the price is known, it is the provider that does not count."""
    (tmp_path / "prices.json").write_text(json.dumps({"mine-1": [1, 2]}))
    monkeypatch.setenv("TREADLE_PRICES", str(tmp_path / "prices.json"))
    wf = flow({"a": {"model": "mine-1"}}, budget={"usd": 1})
    run = play(wf, {"run": {"a": [{"data": {}, "usage": {"input_tokens": 9}}]}})
    (warning,) = run.of("node:warning")
    assert "TREADLE_PRICES" not in warning["message"]
    assert "`usd`" in warning["message"]


def test_a_tool_that_failed_is_told_as_failed(play, flow):
    """B17: it was called."""
    rule = {"all_tools_called": ["x", "y"], "any_tool_called": ["x"]}
    node = {"skills": ["s"], "eval": [{"name": "used", "kind": "function", "rule": rule}]}
    skill = Skill("s", name="S")

    @skill.tool("x")
    def x(input, ctx):
        raise ValueError("no duckdb")

    call = {"tool_calls": [{"tool": "x", "input": {}}], "data": {}}
    run = play(flow({"a": node}), {"run": {"a": [call]}}, skills=(skill,))
    error = run.results["a"]["data"]["error"]
    assert "y was not called" in error
    assert "x was called and failed: ValueError: no duckdb" in error
