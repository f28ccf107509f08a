"""Rules of nodes, each from its sentence and as narrow as that: what breaks the sentence breaks the test
(S10, S13, N3, N7-N18, B20, §8.7, §8.15; the wider tests of the same rules are in test_nodes.py)."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.agent import AskReply, ChooseReply, ProviderError, Skill
from treadle.testing.scripted import ScriptedModel

MISSING = {"name": "has", "kind": "value", "rule": {"output_required": ["x"]}}
JUDGE = {"name": "j", "kind": "judge", "rubric": "Is it good?"}


def data(**value: Any) -> list[dict[str, Any]]:
    return [{"data": value}]


def skill_of(id: str, *tools: str, **more: Any) -> Skill:
    skill = Skill(id, name=id.title(), **more)
    for name in tools:
        skill.tool(name, idempotent=True)(lambda input, ctx: {"ok": True})
    return skill


class House(ScriptedModel):
    """A provider with models of its own to fall back to, and one that keeps what it was asked."""

    default_model = "house-large"
    small_model = "house-small"

    def __init__(self, script: dict[str, Any]) -> None:
        super().__init__(script)
        self.requests: list[Any] = []

    async def turn(self, request: Any) -> Any:
        self.requests.append(request)
        return await super().turn(request)


# --- which model (S10, N7, N17, B21) ------------------------------------------------------------


def test_where_nobody_names_a_model_the_providers_own_serve(play, flow):
    """S10: executor default; N17: the small model judges; §8.15."""
    node = {"eval": [MISSING, JUDGE], "retry": {"max": 1, "instruction": {"auto": True}}}
    script = {
        "run": {"a": data() + data(x=1), "b": data()},
        "evaluate": {"a": ["b"]},
        "ask": ["yes", "I forgot x.", "yes"],
    }
    run = play(flow({"a": node, "b": {}}, ("a", "b", {"when": "x"})), House(script))
    assert [(call["op"], call["model"]) for call in run.asked()] == [
        ("run", "house-large"),
        ("ask", "house-small"),
        ("ask", "house-large"),
        ("run", "house-large"),
        ("ask", "house-small"),
        ("evaluate", "house-large"),
        ("run", "house-large"),
    ]


@pytest.mark.parametrize("provider", [House, ScriptedModel])
def test_the_judge_is_independent_of_the_models_that_do_the_work(play, flow, provider):
    """N7: model and judge_model are independent."""
    wf = flow({"a": {"model": "big", "eval": [JUDGE]}}, model="bigger")
    run = play(wf, provider({"run": {"a": data()}, "ask": ["yes"]}))
    assert [call["model"] for call in run.asked()] == ["big", provider.small_model]
    judged = flow({"a": {"eval": [JUDGE], "judge_model": "strict"}})
    run = play(judged, provider({"run": {"a": data()}, "ask": ["yes"]}))
    assert [call["model"] for call in run.asked()] == [provider.default_model, "strict"]


def test_the_default_judge():
    """N17: claude-haiku-4-5, where the provider has it."""
    from treadle.performers.agent.models.anthropic import AnthropicModel

    assert AnthropicModel.small_model == "claude-haiku-4-5"


# --- results and instructions (S13, N3) ---------------------------------------------------------


@pytest.mark.parametrize("result", [[1], "text", 5, None, True])
def test_a_result_is_an_object(play, flow, result):
    run = play(flow("a b", "a b"), {"run": {"a": [{"data": result}], "b": data()}})
    assert run.results["a"] == {
        "status": "failed",
        "data": {"error": "the model's result is not an object"},
        "toolCalls": [],
    }
    assert run.asked("run")[1]["context"]["a"] == {"error": "the model's result is not an object"}


def test_skills_are_in_the_order_of_the_node(play, flow):
    skills = (skill_of("alpha", instruction="First letter."), skill_of("zeta", instruction="Last letter."))
    run = play(flow({"a": {"skills": ["zeta", "alpha"]}}), {"run": {"a": data()}}, skills=skills)
    assert run.asked("run")[0]["instruction"] == (
        "## Skill: Zeta\n\nLast letter.\n\n---\n\n## Skill: Alpha\n\nFirst letter.\n\n---\n\nDo a."
    )


# --- tools (N8) ---------------------------------------------------------------------------------


def test_disallowed_tools_are_the_providers_business_alone(play, flow):
    """N8: built-in agent tools only. Whoever has such tools is told; skill tools are as they were."""
    model = House({"run": {"a": [{"tool_calls": [{"tool": "Bash", "input": {}}], "data": {}}], "b": data()}})
    node = {"skills": ["s"], "disallowed_tools": ["Bash", "WebSearch"]}
    run = play(flow({"a": node, "b": {}}, "a b"), model, skills=(skill_of("s", "Bash"),))
    assert [list(request.disallowed_tools) for request in model.requests] == [["Bash", "WebSearch"]] * 2 + [
        []
    ]
    assert [tool.name for tool in model.requests[0].tools] == ["Bash"]
    assert run.results["a"]["toolCalls"] == [{"tool": "Bash", "input": {}, "output": {"ok": True}}]
    assert "disallowed_tools" not in run.asked("run")[0], "§8.1 lists what the log has"


# --- fail_soft (N10) ----------------------------------------------------------------------------


def test_a_failure_that_the_model_reports_is_softened(play, flow):
    said = {"status": "failed", "data": {"error": "no network", "found": 3}}
    run = play(flow({"a": {"fail_soft": True}, "b": {}}, "a b"), {"run": {"a": [said], "b": data()}})
    assert run.results["a"] == {
        "status": "success",
        "data": {"error": "no network", "found": 3, "fail_soft": True},
        "toolCalls": [],
    }
    assert run.status == "completed"


@pytest.mark.parametrize("kind", ["requires", "approval", "evaluation"])
def test_only_the_agents_own_failure_is_softened(prepared, flow, kind):
    node: dict[str, Any] = {
        "requires": {"requires": {"output_required": ["input.x"]}},
        "approval": {"approve": {"roles": ["r"], "prompt": "?", "on_deny": "fail"}},
        "evaluation": {"eval": [MISSING]},
    }[kind]
    run = prepared(flow({"a": {"fail_soft": True, **node}}), {"run": {"a": data()}}).start().go()
    for task in run.driver.open("task"):
        run.driver.ok(task, {"approved": False})
    assert run.results["a"]["status"] == "failed"
    assert "fail_soft" not in run.results["a"]["data"]


# --- requires (N13) -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "ok"),
    [
        ({"matches": "ell"}, True),
        ({"matches": "^ell"}, False),
        ({"matches": "o$"}, True),
        ({"in": ["other", "hello"]}, True),
        ({"path": "input.deep", "in": [1, {"n": [1, {"m": None}]}]}, True),
        ({"path": "input.deep", "in": [{"n": [1, {"m": 0}]}]}, False),
        ({"path": "input.deep", "in": [{"n": [True, {"m": None}]}]}, False),
        ({"path": "input.yes", "in": [1]}, False),
        ({"path": "input.one", "in": [True]}, False),
        ({"path": "input.one", "in": [1.0]}, True),
        ({"path": "input.none", "in": [None]}, True),
        ({"path": "input.none", "in": [0, ""]}, False),
    ],
)
def test_matching_is_unanchored_and_membership_deep_and_strict(play, flow, match, ok):
    input = {"text": "hello", "deep": {"n": [1, {"m": None}]}, "yes": True, "one": 1, "none": None}
    wf = flow({"a": {"requires": {"output_matches": [{"path": "input.text", **match}]}}})
    run = play(wf, {"run": {"a": data()}}, input)
    assert (run.results["a"]["status"] == "success") is ok


# --- evaluators (N14, N15) ----------------------------------------------------------------------


def test_a_judge_is_shown_the_result_the_calls_and_the_rubric_and_nothing_else(play, flow):
    """N17: the judge sees data, tool trace and rubric, not input or upstream."""
    wf = flow({"up": {}, "a": {"skills": ["s"], "eval": [JUDGE]}}, "up a")
    calls = [{"tool": "seek", "input": {"q": "needle-in"}}]
    script = {
        "run": {"up": data(old="upstream-data"), "a": [{"tool_calls": calls, "data": {"now": "own-data"}}]},
        "ask": ["yes"],
    }
    run = play(wf, script, {"key": "input-data"}, skills=(skill_of("s", "seek"),))
    (asked,) = run.asked("ask")
    for shown in ("Is it good?", "own-data", "seek", "needle-in", '"ok": true'):
        assert shown in asked["instruction"]
    for hidden in ("upstream-data", "input-data", "Do a."):
        assert hidden not in asked["instruction"]


@pytest.mark.parametrize(("said", "passed"), [("yes", True), ("no", False), ("pass", False)])
def test_a_judge_passes_with_yes_where_nothing_else_is_said(play, flow, said, passed):
    run = play(flow({"a": {"eval": [JUDGE]}}), {"run": {"a": data()}, "ask": [said]})
    assert run.results["a"]["evals"][0]["pass"] is passed


def test_a_judge_is_asked_after_an_evaluator_that_failed(play, flow):
    """N15: every evaluator, no fast fail, in order."""
    checks = [MISSING, JUDGE, {**JUDGE, "name": "k"}]
    script = {"run": {"a": data()}, "ask": ["no: too short", "yes"]}
    run = play(flow({"a": {"eval": checks}}), script)
    assert len(run.asked("ask")) == 2
    assert [(e["name"], e["pass"]) for e in run.results["a"]["evals"]] == [
        ("has", False),
        ("j", False),
        ("k", True),
    ]
    error = run.results["a"]["data"]["error"]
    assert "has (value): x is missing" in error
    assert "j (judge): too short" in error
    assert "k (judge)" not in error


# --- retry (N18, B20) ---------------------------------------------------------------------------


def test_a_retry_is_told_of_the_latest_failure_only(play, flow):
    checks = [MISSING, {"name": "also", "kind": "value", "rule": {"output_required": ["y"]}}]
    wf = flow({"a": {"eval": checks, "retry": {"max": 3, "instruction": "Once more."}}})
    run = play(wf, {"run": {"a": data() + data(x=1) + data(y=1) + data(x=1, y=1)}})
    _, second, third, fourth = [call["instruction"] for call in run.asked("run")]
    assert ("has (value)" in second, "also (value)" in second) == (True, True)
    assert ("has (value)" in third, "also (value)" in third) == (False, True)
    assert ("has (value)" in fourth, "also (value)" in fourth) == (True, False)
    assert [text.count("Once more.") for text in (second, third, fourth)] == [1, 1, 1]
    assert fourth == run.of("node:retry")[2]["preamble"] + "\n\n---\n\nDo a."


@pytest.mark.parametrize("most", [1, 2])
def test_a_retry_has_max_more_attempts(play, flow, most):
    wf = flow({"a": {"eval": [MISSING], "retry": {"max": most}}})
    run = play(wf, {"run": {"a": data() * 5}})
    assert [step["retryAttempt"] for step in run.trace["steps"]] == list(range(most + 1))
    assert len(run.of("node:retry")) == most
    assert run.results["a"]["status"] == "failed"


def test_retries_are_not_counted_as_visits(play, flow):
    wf = flow({"a": {"eval": [MISSING], "retry": {"max": 3}}, "b": {}}, "a b", max_steps=2)
    run = play(wf, {"run": {"a": data() * 3 + data(x=1), "b": data()}})
    assert run.status == "completed"
    assert run.path() == ["a", "a", "a", "a", "b"]


# --- budget (§8.7) ------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [{"tokens": 7}, {"usd": 0.5}])
@pytest.mark.parametrize("whose", ["node", "workflow"])
def test_a_reflection_that_cannot_be_paid_is_not_asked(play, flow, cap, whose):
    """At the cap, not only above it; its work so far kept; a workflow's cap ends the run."""
    node = {"eval": [MISSING], "retry": {"max": 1, "instruction": {"auto": True}}, "skills": ["s"]}
    more = {"budget": cap} if whose == "workflow" else {}
    wf = flow({"a": node | ({"budget": cap} if whose == "node" else {}), "b": {}}, "a b", **more)
    usage = {"input_tokens": 4, "output_tokens": 3, "usd": 0.5}
    entry = {"turns": [{"tool_calls": [{"tool": "seek"}]}, {"data": {"n": 1}, "usage": usage}]}
    run = play(wf, {"run": {"a": [entry], "b": data()}, "ask": ["why"]}, skills=(skill_of("s", "seek"),))
    assert run.asked("ask") == []
    assert run.of("node:retry") == []
    over = "7 of 7 tokens" if "tokens" in cap else "0.5 of 0.5 usd"
    assert run.results["a"]["data"] == {"n": 1, "error": f"budget exceeded: {over}"}
    assert [call["tool"] for call in run.results["a"]["toolCalls"]] == ["seek"]
    assert run.path() == (["a", "b"] if whose == "node" else ["a"])


def test_a_workflows_cap_ends_the_run_there(play, flow):
    wf = flow("a b c", "a b", "b c", budget={"tokens": 5})
    run = play(wf, {"run": {"a": [{"data": {}, "usage": {"input_tokens": 5}}]}})
    assert run.path() == ["a", "b"], "b is not asked, c is not entered"
    assert run.results["b"]["data"] == {"error": "budget exceeded: 5 of 5 tokens"}
    assert run.of("workflow:halted") == [{"node": "b", "reason": "budget exceeded"}]
    assert [call["node"] for call in run.asked()] == ["a"]


def test_a_nodes_cap_is_for_one_visit(play, flow):
    """Not for the run, and not for all its visits together."""
    wf = flow({"a": {}, "b": {"budget": {"tokens": 10}}}, "a b", ("b", "b", {"max_iterations": 2}))
    spent = {"data": {}, "usage": {"input_tokens": 9}}
    calling = {"turns": [{"tool_calls": [{"tool": "none"}], "usage": {"input_tokens": 9}}, {"data": {}}]}
    run = play(wf, {"run": {"a": [spent], "b": [calling, calling, calling]}})
    assert [step["status"] for step in run.trace["steps"]] == ["success"] * 4
    assert run.trace["usage"]["input_tokens"] == 36


# --- how a run ends (§8.3) ----------------------------------------------------------------------


def test_the_first_node_that_failed_is_named(play, flow):
    fails = {"status": "failed", "data": {"error": "no"}}
    wf = flow("a b c d", "a b", "b c", "c d")
    run = play(wf, {"run": {"a": data(), "b": [fails], "c": [fails], "d": data()}})
    assert (run.error["code"], run.error["where"], run.error["message"]) == (
        "NODE_FAILED",
        "b",
        "b failed: no",
    )
    assert list(run.result["results"]) == ["a", "b", "c", "d"]


# --- providers that do not answer (§8.15) -------------------------------------------------------


class Busy(House):
    """Refuses the first questions of one kind, or all of them."""

    def __init__(self, script: dict[str, Any], op: str, times: int) -> None:
        super().__init__(script)
        self.op, self.times, self.asked_for = op, times, 0

    def refuse(self, op: str) -> None:
        if op == self.op:
            self.asked_for += 1
            if self.asked_for <= self.times:
                raise ProviderError("busy", retryable=True)

    async def turn(self, request: Any) -> Any:
        self.refuse("turn")
        return await super().turn(request)

    async def choose(self, request: Any) -> ChooseReply:
        self.refuse("choose")
        return await super().choose(request)

    async def ask(self, request: Any) -> AskReply:
        self.refuse("reflect" if "An attempt at the task" in request.instruction else "judge")
        return await super().ask(request)


def busy_run(prepared: Any, flow: Any, op: str, times: int) -> tuple[Any, int]:
    """A run in which every kind of question is asked, and how often it paused."""
    node = {"eval": [MISSING, JUDGE], "retry": {"max": 1, "instruction": {"auto": True}}}
    wf = flow({"a": node, "b": {}, "c": {}}, ("a", "b", {"when": "x"}), "a c")
    script = {
        "run": {"a": data() + data(x=1), "b": data(), "c": data()},
        "evaluate": {"a": ["b"]},
        "ask": ["yes", "I forgot x.", "yes"],
    }
    run = prepared(wf, Busy(script, op, times)).start().go()
    pauses = 0
    while run.driver.open("timer"):
        pauses += 1
        run.driver.advance(10)
        run.go()
    run.driver.assert_replays()
    return run, pauses


@pytest.mark.parametrize("op", ["turn", "judge", "reflect", "choose"])
def test_every_kind_of_question_is_asked_again(prepared, flow, op):
    run, pauses = busy_run(prepared, flow, op, times=3)
    assert pauses == 3
    assert run.status == "completed"
    assert [step["node"] for step in run.trace["steps"]] == ["a", "a", "b"]
    assert run.of("node:retry")[0]["preamble"].startswith("I forgot x.")


@pytest.mark.parametrize("op", ["turn", "judge", "reflect", "choose"])
def test_no_question_is_asked_a_fifth_time(prepared, flow, op):
    run, pauses = busy_run(prepared, flow, op, times=4)
    assert pauses == 3
    if op == "choose":
        assert (run.error["code"], run.model.asked_for) == ("ROUTE_FAILED", 4)
    elif op == "turn":
        assert run.results["a"]["data"]["error"] == "busy"
        assert run.model.asked_for == 5, "four for a, which failed, one for the node after it"
    elif op == "judge":
        assert run.trace["steps"][0]["status"] == "failed"
        assert "j (judge): busy" in run.of("node:retry")[0]["reason"]
    else:
        assert run.status == "completed", "a reflection is done without"
        assert run.of("node:retry")[0]["preamble"].startswith("Your previous attempt")
