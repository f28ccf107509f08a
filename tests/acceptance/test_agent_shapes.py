"""Agent workflows as AGENT.md and seed 001 describe them, seen from the outside.

Each test names the sentence it holds the product to. Models are scripted, so what the engine asked
for, in which order and with what context, is all there to compare.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, RunFailed, TreadleError
from treadle.agent import Skill, ToolContext
from treadle.testing import ScriptedModel

from .conftest import Desk

Flow = dict[str, Any]
EMPTY = {"type": "object"}


def flow(
    nodes: Mapping[str, Mapping[str, Any]] | str, edges: Sequence[tuple[Any, ...]] = (), **fields: Any
) -> Flow:
    """A workflow in short: nodes by id (or one letter each), edges as (from, to[, when[, max]])."""
    given = {id: {} for id in nodes} if isinstance(nodes, str) else nodes
    written = []
    for source, target, *rest in edges:
        when, most = (*rest, None, None)[:2]
        edge = {"from": source, "to": target, "when": when, "max_iterations": most}
        written.append({name: value for name, value in edge.items() if value is not None})
    return {
        "id": "w",
        "name": "W",
        "entry": next(iter(given)),
        "nodes": {id: {"name": id, "instruction": f"do {id}", **node} for id, node in given.items()},
        "edges": written,
        **fields,
    }


def says(*nodes: str, times: int = 1) -> dict[str, list[Any]]:
    """A script in which each node answers {"i": 1}, {"i": 2}, …"""
    return {node: [{"data": {"i": i}} for i in range(1, times + 1)] for node in nodes}


@dataclass
class Ran:
    document: dict[str, Any]
    events: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    journal: list[dict[str, Any]]
    failure: RunFailed | None

    @property
    def results(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["state"]["results"]
        return found

    @property
    def steps(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["state"]["trace"]["steps"]
        return found

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, type: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == type]

    def asked(self, op: str, node: str | None = None) -> list[dict[str, Any]]:
        return [call for call in self.calls if call["op"] == op and node in (None, call.get("node"))]


Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a workflow to its end with a scripted model, in memory."""

    async def run(
        body: Flow,
        script: dict[str, Any],
        input: Any = None,
        *,
        skills: Sequence[Skill] = (),
        observer: Callable[[dict[str, Any]], Any] | None = None,
        store: str = "memory:",
        **options: Any,
    ) -> Ran:
        (tmp_path / "flow.yaml").write_text(json.dumps(body), "utf-8")
        engine, model, events = Engine(store), ScriptedModel(script), []
        engine.models["fake"] = model
        for skill in skills:
            engine.register(skill)
        if observer is not None:
            engine.observe(observer)
        engine.observe(events.append)
        failure = None
        async with engine:
            engine.deploy(tmp_path / "flow.yaml")
            started = await engine.start("w", input, id="r1", model="fake", **options)
            try:
                await started.result(timeout=30)
            except RunFailed as error:
                failure = error
            shown, journal = await started.show(), await started.journal()
        return Ran(shown, events, model.calls, journal, failure)

    return run


@pytest.fixture
def net() -> Skill:
    skill = Skill("net", name="Net", description="d", category="data", config={}, instruction="Use it well.")

    @skill.tool(
        "search",
        description="s",
        input_schema={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    )
    async def search(input: dict[str, Any], ctx: ToolContext) -> Any:
        return {"hits": [input["q"]]}

    @skill.tool("boom", description="b", input_schema=EMPTY)
    def boom(input: dict[str, Any], ctx: ToolContext) -> Any:
        raise ValueError("kaputt")

    return skill


# --- events, context, trace (seed 001; S1-S28) ----------------------------------------------------------------


async def test_a_run_tells_its_events_in_order_and_without_gaps(run: Run, net: Skill) -> None:
    calls = [{"tool": "search", "input": {"q": "x"}}, {"tool": "boom", "input": {}}]
    calls.append({"tool": "search", "input": {"q": 5}})
    script = {
        "run": {"a": [{"data": {"n": 3}, "tool_calls": calls, "progress": ["looking"]}], **says("b")},
        "evaluate": {"a": ["b"]},
    }
    ran = await run(flow({"a": {"skills": ["net"]}, "b": {}}, [("a", "b", "good")]), script, skills=[net])
    pairs = ["tool:call", "tool:result"] * 3
    assert ran.types == [
        *("workflow:start", "sources:resolved", "node:enter", "node:progress", *pairs, "node:exit", "route"),
        *("node:enter", "node:exit", "workflow:end"),
    ]
    assert [event["seq"] for event in ran.events] == list(range(1, len(ran.events) + 1))
    ok, raised, refused = ran.results["a"]["toolCalls"]
    assert ok == {"tool": "search", "input": {"q": "x"}, "output": {"hits": ["x"]}}
    assert "output" not in raised
    assert "kaputt" in raised["error"]
    assert "output" not in refused, "an input that does not fit never reaches the handler"
    assert ran.of("tool:result")[1]["output"] == {"error": raised["error"]}
    assert ran.of("route")[0].items() >= {"from": "a", "to": "b", "reason": "good"}.items()
    assert ran.asked("run", "a")[0]["instruction"] == "## Skill: Net\n\nUse it well.\n\n---\n\ndo a"
    assert [call["turn"] for call in ran.asked("run", "a")] == [1, 2], "the calls, then the data"


async def test_a_loop_is_counted_and_the_last_result_stands(run: Run) -> None:
    edges = [("a", "b"), ("b", "a", "again", 2), ("b", "c", "done")]
    script = {"run": {**says("a", "b", times=3), **says("c")}, "evaluate": {"b": ["a", "a", "c"]}}
    ran = await run(flow("abc", edges), script, {"x": 1})
    assert [(s["node"], s["iteration"]) for s in ran.steps] == [
        *(("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3), ("c", 1))
    ]
    assert ran.asked("run", "c")[0]["context"] == {"input": {"x": 1}, "a": {"i": 3}, "b": {"i": 3}}
    assert [c["id"] for c in ran.asked("evaluate")[2]["choices"]] == ["c"], "an exhausted edge is not offered"
    assert {edge["reason"] for edge in ran.document["state"]["trace"]["edges"]} == {
        *("only path", "again", "done")
    }


async def test_an_observer_that_raises_harms_nobody(run: Run) -> None:
    def observer(event: dict[str, Any]) -> None:
        raise RuntimeError(event["type"])

    ran = await run(flow("a"), {"run": says("a")}, observer=observer)
    assert ran.types[-1] == "workflow:end"


@pytest.mark.parametrize("value", [True, "true"])
async def test_only_a_true_dry_run_stops_at_the_first_decision(run: Run, value: Any) -> None:
    edges = [("a", "b"), ("b", "c", "x"), ("b", "d")]
    ran = await run(
        flow("abcd", edges), {"run": says("a", "b", "c"), "evaluate": {"b": ["c"]}}, {"dryRun": value}
    )
    assert ran.document["status"] == "completed"
    if value is True:
        assert list(ran.results) == ["a", "b"]
        assert ran.of("workflow:halted")[0]["node"] == "b"
        assert [event["to"] for event in ran.of("route")] == ["b"], "no route without a next node"
        assert not ran.asked("evaluate")
    else:
        assert list(ran.results) == ["a", "b", "c"]


@pytest.mark.parametrize("answer", ["nonsense", None, "none", "c"])
async def test_the_default_edge_is_taken_when_no_condition_is(run: Run, answer: str | None) -> None:
    body = flow("abc", [("a", "b", "cond"), ("a", "c")])
    ran = await run(body, {"run": says("a", "c"), "evaluate": {"a": [answer]}})
    assert list(ran.results) == ["a", "c"]
    offered = ran.asked("evaluate")[0]["choices"]
    assert [choice["id"] for choice in offered] == ["b", "c"]
    assert ran.of("route")[0]["reason"] == "None of the above / default path"
    assert ran.document["state"]["trace"]["edges"][0]["reason"] == "only path"
    alone = await run(flow("ab", [("a", "b", "cond")]), {"run": says("a"), "evaluate": {"a": [None]}})
    assert alone.document["status"] == "completed"
    assert "route" not in alone.types
    assert alone.of("workflow:halted")


# --- instructions and Sources (N2, N3, R1-R6, §8.11) ----------------------------------------------------------


async def test_instructions_are_assembled_exactly(run: Run) -> None:
    nodes = {"a": {"skills": ["s2", "s1"], "rules": ["nr"], "context": {"only": True, "sources": ["nc"]}}}
    skills = {"s1": {"name": "One", "instruction": "i1"}, "s2": {"instruction": "i2"}}
    body = flow(nodes, rules=["wr"], context=["wc"], skills=skills)
    ran = await run(body, {"run": says("a")}, {"rules": ["ir"], "context": "ic"})
    assert ran.calls[0]["instruction"].split("\n\n---\n\n") == [
        "## Rules — You MUST Follow These\n\nir\n\nwr\n\nnr",
        "## Background Context\n\nnc",
        "## Skill: s2\n\ni2",
        "## Skill: One\n\ni1",
        "do a",
    ]
    assert ran.of("node:enter")[0]["instruction"] == "do a"
    assert set(ran.document["state"]["trace"]["sources"]) == {
        *("nodes.a.instruction", "nodes.a.rules[0]", "nodes.a.context[0]", "workflow.rules[0]"),
        *("workflow.context[0]", "input.rules[0]", "input.context[0]"),
        *("skills.s1.instruction", "skills.s2.instruction"),
    }


async def test_templates_are_sources_too(run: Run) -> None:
    ran = await run(flow("a"), {"run": says("a")}, templates={"issue": "# Issue"})
    assert ran.document["state"]["trace"]["sources"]["templates.issue"]["content"] == "# Issue"
    bad = await run(flow("a"), {"run": {}}, templates={"issue": {"inline": "x", "file": "y"}})
    assert bad.document["error"]["code"] == "SOURCE_INVALID_SHAPE"


async def test_a_file_source_is_found_beside_the_workflow(run: Run, tmp_path: Path) -> None:
    (tmp_path / "i.md").write_text("file text\n", "utf-8")
    ran = await run(flow({"a": {"instruction": "./i.md"}}), {"run": says("a")})
    assert ran.document["state"]["trace"]["sources"]["nodes.a.instruction"] == {
        "content": "file text\n",
        "kind": "file",
        "origin": "./i.md",
        "resolver": "file",
        "hash": hashlib.sha256(b"file text\n").hexdigest()[:16],
        "sourcePath": str(tmp_path / "i.md"),
    }


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("./nope.md", "SOURCE_FILE_NOT_FOUND"),
        ("/review this", "SOURCE_FILE_NOT_FOUND"),
        ({"file": "."}, "SOURCE_FILE_READ_FAILED"),
        ("http://127.0.0.1:1/x", "SOURCE_URL_BLOCKED"),
        ("http://[::1]/x", "SOURCE_URL_BLOCKED"),
        ("http://169.254.169.254/x", "SOURCE_URL_BLOCKED"),
    ],
)
async def test_a_source_that_fails_ends_the_run_before_any_node(run: Run, source: Any, code: str) -> None:
    ran = await run(flow({"a": {"instruction": source}}), {"run": {}})
    assert ran.types == ["workflow:start", "workflow:end"]
    assert ran.events[-1]["results"] == {}
    assert ran.document["error"]["code"] == code
    if source == "/review this":
        assert "inline" in ran.document["error"]["message"]


# --- failures (§8.3, B1, N6, N10, S29) ------------------------------------------------------------------------


async def test_the_run_fails_iff_a_final_result_did(run: Run) -> None:
    failed = {"status": "failed", "data": {"error": "no"}}
    ran = await run(flow("ab", [("a", "b")]), {"run": {"a": [failed], **says("b")}})
    assert ran.failure is not None
    assert ran.failure.error is not None
    assert (ran.failure.error["code"], ran.failure.error["where"]) == ("NODE_FAILED", "a")
    assert set(ran.failure.result) >= {"results", "trace"}
    assert list(ran.results) == ["a", "b"], "routing goes on"
    halted = await run(flow("ab", [("a", "b")], on_failure="halt"), {"run": {"a": [{"throw": "down"}]}})
    assert list(halted.results) == ["a"]
    assert halted.types[-1] == "workflow:end"
    assert len(halted.asked("run")) == 1, "throw is not retried"
    edges = [("a", "a", "again", 3), ("a", "b", "ok")]
    script = {"run": {"a": [failed, {"data": {}}], **says("b")}, "evaluate": {"a": ["a", "b"]}}
    assert (await run(flow("ab", edges), script)).document["status"] == "completed"


async def test_a_script_that_runs_out_fails_the_run(run: Run) -> None:
    ran = await run(flow("ab", [("a", "b")]), {"run": says("a")})
    assert ran.document["error"]["code"] == "SCRIPT_EXHAUSTED"


async def test_max_turns_keeps_the_work_done(run: Run, net: Skill) -> None:
    call = {"tool": "search", "input": {"q": "x"}}
    body = flow({"a": {"skills": ["net"], "max_turns": 1}})
    ran = await run(body, {"run": {"a": [{"data": {}, "tool_calls": [call]}]}}, skills=[net])
    assert ran.results["a"]["status"] == "failed"
    assert ran.results["a"]["toolCalls"][0]["output"] == {"hits": ["x"]}
    assert len(ran.calls) == 1


async def test_fail_soft_softens_the_agent_not_its_evaluation(run: Run) -> None:
    soft = flow({"a": {"fail_soft": True}})
    ran = await run(soft, {"run": {"a": [{"status": "failed", "data": {"error": "no"}}]}})
    assert ran.results["a"]["status"] == "success"
    assert ran.results["a"]["data"] == {"error": "no", "fail_soft": True}
    check = {"name": "v", "kind": "value", "rule": {"output_required": ["zz"]}}
    ran = await run(flow({"a": {"fail_soft": True, "eval": [check]}}), {"run": says("a")})
    assert ran.results["a"]["status"] == "failed"


# --- requires, eval, retry (N11-N18, §8.9) --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "data", "holds"),
    [
        ({"output_required": ["a.xs[*].y"]}, {"xs": [{"y": 1}, {}]}, False),
        ({"output_required": ["a.xs[*].y"]}, {"xs": []}, True),
        ({"output_required": ["any:a.xs[*].y"]}, {"xs": []}, False),
        ({"output_required": ["a.n.m"]}, {"n": None}, False),
        ({"output_matches": [{"path": "a.n", "equals": 1}]}, {"n": True}, False),
        ({"output_matches": [{"path": "a.n", "equals": None}]}, {"n": None}, True),
        ({"output_matches": [{"path": "a.n", "in": [[1], 2]}]}, {"n": [1]}, True),
        ({"output_matches": [{"path": "a.n", "matches": "^12$"}]}, {"n": 12}, True),
        ({"output_matches": [{"path": "a.n", "matches": "^a$"}]}, {"n": "a\n"}, False),
        ({"output_matches": [{"path": "a.n", "matches": r"^(?<x>a)\k<x>$"}]}, {"n": "aa"}, True),
        ({"output_matches": [{"path": "any:a.n[*]", "equals": 2}]}, {"n": [1, 2]}, True),
        ({"output_matches": [{"path": "a.n[*]", "equals": 2}]}, {"n": [1, 2]}, False),
    ],
)
async def test_requires_is_checked_before_the_model(
    run: Run, check: dict[str, Any], data: Any, holds: bool
) -> None:
    body = flow({"a": {}, "b-b": {"requires": check}}, [("a", "b-b")])
    ran = await run(body, {"run": {"a": [{"data": data}], **says("b-b")}})
    assert (ran.results["b-b"]["status"] == "success") is holds
    assert bool(ran.asked("run", "b-b")) is holds
    if not holds:
        assert ran.results["b-b"]["data"]["error"].startswith("requires failed: ")


async def test_every_evaluator_runs_and_downstream_reads_them(run: Run) -> None:
    evaluators = [
        {"name": "v", "kind": "value", "rule": {"output_required": ["zz"]}},
        {"name": "f", "kind": "function", "rule": {"no_tool_called": ["x"]}},
        {"name": "j", "kind": "judge", "rubric": "is it good?"},
    ]
    body = flow({"a": {"eval": evaluators}, "b": {}}, [("a", "b")])
    ran = await run(body, {"run": says("a", "b"), "ask": ["perhaps, maybe", "yes"]})
    found = ran.results["a"]
    assert [(e["name"], e["pass"]) for e in found["evals"]] == [("v", False), ("f", True), ("j", True)]
    assert found["status"] == "failed"
    assert "v (value): " in found["data"]["error"]
    assert "evals" not in found["data"]
    seen = ran.asked("run", "b")[0]["context"]["a"]["evals"]
    assert seen["v"].keys() == {"pass", "kind", "reasoning"}
    assert len(ran.asked("ask")) == 2, "a reply that cannot be read is asked for once more"
    assert set(ran.asked("ask")[0]) == {"op", "instruction", "model"}


async def test_a_retry_is_told_what_failed(run: Run) -> None:
    check = {"name": "v", "kind": "value", "rule": {"output_required": ["x"]}}
    script = {"run": {"a": [{"data": {}}, {"data": {}}, {"data": {"x": 1}}]}}
    ran = await run(flow({"a": {"eval": [check], "retry": {"max": 3}}}), script)
    assert [(s["retryAttempt"], s["status"], s["iteration"]) for s in ran.steps] == [
        *((0, "failed", 1), (1, "failed", 1), (2, "success", 1))
    ]
    told = ran.of("node:retry")
    assert [event["attempt"] for event in told] == [1, 2]
    assert ran.calls[1]["instruction"] == told[0]["preamble"] + "\n\n---\n\ndo a"
    assert [call["attempt"] for call in ran.calls] == [0, 1, 2]


async def test_the_router_sees_declared_output_only(run: Run) -> None:
    output = {"type": "object", "properties": {"n": {}, "opt": {}}}
    script = {"run": {"a": [{"data": {"n": 1, "more": 2}}], **says("b")}, "evaluate": {"a": ["b"]}}
    ran = await run(flow({"a": {"output": output}, "b": {}}, [("a", "b", "x")]), script)
    assert ran.asked("evaluate")[0]["context"]["a"] == {"n": 1, "opt": None}
    assert ran.asked("run", "b")[0]["context"]["a"] == {"n": 1, "more": 2}
    assert "opt" in ran.of("node:warning")[0]["message"]


# --- budgets, branches (§8.7, §8.8) ---------------------------------------------------------------------------


async def test_a_cap_stops_what_comes_next_and_keeps_the_work(run: Run, net: Skill) -> None:
    usage = {"input_tokens": 100, "output_tokens": 20}
    entry = {"data": {}, "tool_calls": [{"tool": "search", "input": {"q": "x"}}], "usage": usage}
    nodes = {"a": {"skills": ["net"], "budget": {"tokens": 100}}, "b": {}}
    ran = await run(flow(nodes, [("a", "b")]), {"run": {"a": [entry], **says("b")}}, skills=[net])
    assert ran.results["a"]["data"]["error"] == "budget exceeded: 120 of 100 tokens"
    assert len(ran.results["a"]["toolCalls"]) == 1
    assert "b" in ran.results, "a node's cap fails that node only"
    assert ran.document["stats"]["usage"] == {**usage, "usd": 0.0}
    assert ran.steps[0]["usage"] == {**usage, "usd": 0.0}
    whole = flow("abc", [("a", "b"), ("b", "c")], budget={"tokens": 100})
    ran = await run(whole, {"run": {"a": [{"data": {}, "usage": usage}]}})
    assert list(ran.results) == ["a", "b"]
    assert ran.types[-1] == "workflow:end"


async def test_branches_meet_once_and_see_their_own(run: Run) -> None:
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("d", "j"), ("c", "j")]
    late = {"status": "failed", "data": {"error": "x"}, "delay": 0.1}
    ran = await run(flow("abcdj", edges, parallel=True), {"run": {**says("a", "b", "d", "j"), "c": [late]}})
    assert list(ran.asked("run", "d")[0]["context"]) == ["input", "a", "b"]
    (join,) = ran.asked("run", "j")
    assert list(join["context"]) == ["input", "a", "b", "d", "c"], "in the order of the edges"
    assert ran.document["error"]["where"] == "c", "a failed branch still arrives"


# --- skills and secrets (§7, K2, K4, N9, KERNEL §7) -----------------------------------------------------------


async def test_a_tool_gets_its_context_and_no_secret_is_kept(run: Run, tmp_path: Path) -> None:
    secret, seen = "S3CR3T-value-abcdef", []
    config = {"NET_KEY": {"description": "k", "required": True, "env": "TREADLE_TEST_NO_SUCH"}}
    skill = Skill("net", name="N", description="d", category="data", config=config)

    @skill.tool("leak", description="x", input_schema=EMPTY)
    def leak(input: dict[str, Any], ctx: ToolContext) -> Any:
        seen.append(ctx)
        ctx.progress(f"key {ctx.config['NET_KEY']}")
        raise ValueError(f"bad key {ctx.config['NET_KEY']}")

    body = flow({"a": {"skills": ["net"]}})
    script = {"run": {"a": [{"data": {}, "tool_calls": [{"tool": "leak", "input": {}}]}]}}
    store = f"sqlite:///{tmp_path}/t.db"
    ran = await run(body, script, skills=[skill], store=store, config={"NET_KEY": secret})
    (ctx,) = seen
    opened = [i["id"] for record in ran.journal for i in record["opened"] if i["kind"] == "call"]
    assert (ctx.run_id, ctx.node, opened) == ("r1", "a", [ctx.idempotency_key])
    assert ran.types[3:6] == ["tool:call", "node:progress", "tool:result"]
    assert ran.results["a"]["toolCalls"][0]["error"] == "ValueError: bad key [redacted:NET_KEY]"
    assert secret not in json.dumps(ran.events)
    for file in tmp_path.rglob("t.db*"):
        assert file.is_dir() or secret.encode() not in file.read_bytes()
    bare = await run(body, {"run": says("a")}, skills=[skill])
    assert bare.calls[0]["tools"] == [], "a skill without its configuration is left out"
    assert bare.of("node:warning")


async def test_allow_and_deny_choose_the_tools(run: Run, net: Skill) -> None:
    body = flow({"a": {"skills": ["net"], "tools": {"allow": ["search", "boom"], "deny": ["boom", "zz"]}}})
    call = {"tool": "boom", "input": {}}
    ran = await run(body, {"run": {"a": [{"data": {}, "tool_calls": [call]}]}}, skills=[net])
    assert ran.calls[0]["tools"] == ["search"]
    assert "error" in ran.results["a"]["toolCalls"][0]
    assert "zz" in ran.of("node:warning")[0]["message"]


# --- definitions and input (W1-W3, §2, §8.5, §8.10) -----------------------------------------------------------

JUDGE = {"name": "j", "kind": "judge", "rubric": "q"}
REFUSED: dict[str, Flow] = {
    "MISSING_ENTRY": flow("ab", [("a", "b")], entry="zz"),
    "UNKNOWN_EDGE_SOURCE": flow("ab", [("a", "b"), ("zz", "b")]),
    "UNKNOWN_EDGE_TARGET": flow("ab", [("a", "b"), ("b", "zz")]),
    "UNREACHABLE_NODE": flow("ab"),
    "SELF_LOOP": flow("a", [("a", "a")]),
    "UNBOUNDED_CYCLE": flow("ab", [("a", "b"), ("b", "a", "x")]),
    "INVALID_INLINE_SKILL": flow("a", skills={"s": {}}),
    "AMBIGUOUS_EDGES": flow("abc", [("a", "b"), ("a", "c")]),
    "AMBIGUOUS_EDGES beside a condition": flow(
        "abcd", [("a", "b"), ("a", "c"), ("a", "d", "x")], parallel=True
    ),
    "UNSUPPORTED_EVAL_POLICY": flow({"a": {"eval": [JUDGE], "eval_policy": "any_pass"}}),
    "SOURCE_INVALID_SHAPE": flow({"a": {"instruction": {"inline": "x", "file": "y"}}}),
    "SOURCE_INVALID_TYPE": flow({"a": {"instruction": {"url": "https://x.y/", "type": "git"}}}),
}


@pytest.mark.parametrize("code", REFUSED)
def test_each_kind_of_bad_definition_has_its_code(tmp_path: Path, code: str) -> None:
    (tmp_path / "flow.yaml").write_text(json.dumps(REFUSED[code]), "utf-8")
    with pytest.raises(TreadleError) as refused:
        Engine("memory:").deploy(tmp_path / "flow.yaml")
    assert code.split()[0] in {problem["code"] for problem in refused.value.details["problems"]}


@pytest.mark.parametrize(
    "node",
    [
        *({"zz": 1}, {"verify": {}}, {"max_turns": 0}, {"model": ""}, {"tools": {}}, {"eval": []}),
        *({"requires": {}}, {"retry": {"max": 0}}, {"in_doubt": "zz"}, {"fail_soft": "yes"}),
        *({"approve": {"roles": [], "prompt": "x"}}, {"budget": {"usd": 0}}, {"run": {}}),
        {"eval": [{**JUDGE, "pass_when": "a b"}]},
        {"eval": [{**JUDGE, "rule": {"output_required": ["x"]}}]},
        {"requires": {"output_matches": [{"path": "input.x", "equals": 1, "in": [1]}]}},
    ],
)
def test_nodes_are_closed_and_checked(tmp_path: Path, node: dict[str, Any]) -> None:
    (tmp_path / "flow.yaml").write_text(json.dumps(flow({"a": node})), "utf-8")
    with pytest.raises(TreadleError) as refused:
        Engine("memory:").deploy(tmp_path / "flow.yaml")
    assert refused.value.cls == "definition"


async def test_declared_inputs_are_applied_and_all_errors_told_at_once(run: Run) -> None:
    inputs = {
        "n": {"type": "number", "required": True},
        "s": {"type": "string", "default": "d"},
        "l": {"type": "string[]"},
        "e": {"type": "string", "enum": ["x"]},
    }
    body = flow("a", inputs=inputs)
    ran = await run(body, {"run": says("a")}, {"n": 1, "other": 5})
    assert ran.calls[0]["context"]["input"] == {"n": 1, "s": "d", "other": 5} == ran.document["input"]
    with pytest.raises(TreadleError) as refused:
        await run(body, {"run": {}}, {"n": None, "l": ["a", 1], "e": "z"})
    assert (refused.value.cls, refused.value.code) == ("user", "INPUT_INVALID")
    assert sorted(error["field"] for error in refused.value.details["errors"]) == ["e", "l", "n"]


# --- the command line (§5, §8.2, §8.6, §8.18) -----------------------------------------------------------------


def write(desk: Desk, body: Flow, script: dict[str, Any]) -> None:
    desk.write("flow.yaml", json.dumps(body))
    desk.write("s.json", json.dumps(script))


def test_a_wrong_provider_is_told_before_there_is_a_run(desk: Desk) -> None:
    write(desk, flow("a"), {"run": says("a")})
    for spec, code in (("zzz:q", "UNKNOWN_PROVIDER"), ("scripted:none.json", "SCRIPT_INVALID")):
        assert desk("run", "flow.yaml", "--model", spec, "--json", code=2).error["code"] == code
    assert desk("list", "--json").json == []


def test_stream_trace_and_replay(desk: Desk) -> None:
    write(desk, flow("ab", [("a", "b")]), {"run": says("a", "b"), "log": "log.jsonl"})
    streamed = desk("run", "flow.yaml", "--model", "scripted:s.json", "--stream", "--id", "r1", code=0).lines
    assert [event["type"] for event in streamed] == desk.types("r1")
    assert set(desk("trace", "r1", "--json", code=0).json) == {"steps", "edges", "sources", "usage"}
    assert desk("replay", "r1", "--json", code=0).json == {"id": "r1", "equal": True}
    logged = [json.loads(line) for line in (desk.folder / "log.jsonl").read_text("utf-8").splitlines()]
    assert set(logged[0]) == {
        *("op", "node", "iteration", "attempt", "turn", "instruction", "context", "tools", "model"),
        *("max_turns", "output_schema", "mcp_servers"),
    }
    assert len(logged) == 2, "replay asks nobody"


@pytest.mark.parametrize("approved", [True, False])
def test_a_person_approves_before_the_first_turn(desk: Desk, approved: bool) -> None:
    body = flow({"a": {"approve": {"roles": ["boss"], "prompt": "ok?"}}, "b": {}}, [("a", "b")])
    write(desk, body, {"run": says("a", "b"), "log": "log.jsonl"})
    waiting = desk("run", "flow.yaml", "--model", "scripted:s.json", "--id", "r1", "--json", code=3).json
    (task,) = desk("tasks", "--json", code=0).json
    assert task["id"] == waiting["waiting_for"][0]["id"]
    assert (task["roles"], task["payload"]["prompt"]) == (["boss"], "ok?")
    assert desk.types("r1")[-1] == "node:waiting"
    assert not (desk.folder / "log.jsonl").exists()
    desk("task", "claim", task["id"], "--user", "u", "--role", "boss", code=0)
    answer = json.dumps({"approved": approved, "note": "too risky"})
    done = desk("task", "complete", task["id"], "--user", "u", "--data", answer, "--json", code=0).json
    logged = [json.loads(line) for line in (desk.folder / "log.jsonl").read_text("utf-8").splitlines()]
    if approved:
        assert logged[0]["context"]["approval"]["approved"] is True
    else:
        assert done["state"]["results"]["a"]["data"] == {"skipped_reason": "not approved: too risky"}
    assert "approval" not in logged[-1]["context"]
    assert logged[-1]["node"] == "b"


def test_resume_goes_on_when_a_deadline_passed_meanwhile(desk: Desk) -> None:
    node = {"approve": {"roles": ["boss"], "prompt": "ok?", "timeout": "300ms"}}
    write(desk, flow({"a": node, "b": {}}, [("a", "b")]), {"run": says("a", "b")})
    waiting = desk("run", "flow.yaml", "--model", "scripted:s.json", "--id", "r1", "--json", code=3).json
    due = datetime.fromisoformat(waiting["waiting_for"][0]["due"])
    while datetime.now(UTC) <= due:
        time.sleep(0.01)
    done = desk("resume", "r1", "--json", code=0).json
    assert done["status"] == "completed"
    assert done["state"]["results"]["a"]["status"] == "skipped"


def test_a_run_of_another_provider_stays_open_here(desk: Desk, run: Run) -> None:
    """§7: what is unknown here stays open and does not fail; the engine that has it goes on."""
    import asyncio

    body = flow({"a": {"approve": {"roles": ["boss"], "prompt": "ok?"}}})
    desk.write("flow.yaml", json.dumps(body))

    async def drive(answer: bool) -> str:
        engine = Engine("sqlite:///treadle.db")
        engine.models["mine"] = ScriptedModel({"run": says("a")})
        async with engine:
            engine.deploy("flow.yaml")
            started = await engine.start("w", {}, id="r1", model="mine")
            if answer:
                await started.result(timeout=30)
            else:
                await started.settled(timeout=30)
            return str((await started.show())["status"])

    assert asyncio.run(drive(False)) == "waiting"
    (task,) = desk("tasks", "--json", code=0).json
    who = ("--user", "u", "--role", "admin")
    answered = desk("task", "complete", task["id"], *who, "--data", '{"approved": true}', "--json", code=3)
    assert answered.json["error"] is None
    assert asyncio.run(drive(True)) == "completed"


def test_nothing_is_written_for_a_bad_definition(desk: Desk) -> None:
    error = desk.refuse(json.dumps(flow("ab")))
    assert {problem["code"] for problem in error["details"]["problems"]} == {"UNREACHABLE_NODE"}
    assert "treadle.db" not in os.listdir(desk.folder)
