"""Patterns that authors and servers write, on data that models and servers write: nobody waits for them.

KERNEL §4: no run, however busy, delays another by more than one event. N13: `matches` is a JavaScript
regular expression without flags, on the value as JavaScript's String() writes it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import Skill
from treadle.dialects.agent.paths import Match, js_text
from treadle.kernel.errors import DefinitionError, ToolError
from treadle.performers.agent.api import McpServer
from treadle.performers.agent.mcp import Sessions
from treadle.testing.scripted import ScriptedModel

HOSTILE = "^(a+)+$"
GIVEN_UP = r"^(a+)+\1$"
TEXT = "a" * 60 + "!"


def rule(pattern: str, path: str = "a.t") -> dict[str, Any]:
    return {"output_matches": [{"path": path, "matches": pattern}]}


# --- no pattern stops anybody -------------------------------------------------------------------


@pytest.mark.house
async def test_a_hostile_pattern_stops_neither_its_run_nor_another(tmp_path: Path, flow: Any) -> None:
    """With Python's `re` neither run would end, nor would a time-out fire, nor a restart help."""
    nodes = {
        "a": {"output": {"properties": {"u": {"pattern": HOSTILE}}}},
        "b": {"requires": rule(HOSTILE)},
        "c": {"eval": [{"name": "v", "kind": "value", "rule": rule(HOSTILE, "t")}]},
    }
    file, other = tmp_path / "flow.json", tmp_path / "other.json"
    file.write_text(json.dumps(flow(nodes, "a b", "b c")))
    other.write_text(json.dumps({**flow({"x": {}}), "id": "other"}))
    script = {
        "run": {"a": [{"data": {"t": TEXT, "u": TEXT}}], "c": [{"data": {"t": TEXT}}], "x": [{"data": {}}]}
    }
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.models["fake"] = ScriptedModel(script)
    async with engine:
        engine.deploy(str(file))
        engine.deploy(str(other))
        run = await engine.start("wf", {}, model="fake")
        beside = await engine.start("other", {}, model="fake")
        await beside.result(timeout=30)
        await run.settled(timeout=30)
        results = (await run.show())["state"]["results"]
        assert (await engine.replay(run.id))["equal"] is True
    assert {name: result["status"] for name, result in results.items()} == dict.fromkeys("abc", "failed")
    assert results["b"]["data"]["error"].startswith(
        "requires failed: a.t matches '^(a+)+$' does not hold for"
    )


@pytest.mark.parametrize("where", ["requires", "eval", "output"])
def test_a_search_that_is_given_up_does_not_hold_and_says_so(play: Any, flow: Any, where: str) -> None:
    node = {
        "requires": {"requires": rule(GIVEN_UP, "input.t")},
        "eval": {"eval": [{"name": "v", "kind": "value", "rule": rule(GIVEN_UP, "t")}]},
        "output": {"output": {"properties": {"t": {"not": {"pattern": GIVEN_UP}}}}},
    }[where]
    found = [
        play(flow({"a": node}), {"run": {"a": [{"data": {"t": TEXT}}]}}, {"t": TEXT}).results["a"]
        for _ in "12"
    ]
    assert found[0] == found[1], "given up by steps, not by a clock"
    assert found[0]["status"] == "failed"
    assert "given up after too many steps" in json.dumps(found[0])


def test_many_values_cost_no_more_than_one() -> None:
    texts = ["a" * 8 + "!"] * 50_000
    told = Match.of({"path": "any:l[*]", "matches": GIVEN_UP}).problem({"l": texts[:2]})
    assert told is not None
    assert "given up" not in told
    told = Match.of({"path": "any:l[*]", "matches": GIVEN_UP}).problem({"l": texts})
    assert told is not None
    assert "given up" in told


def test_a_tools_schema_cannot_hang_its_call(play: Any, flow: Any) -> None:
    skill, called = Skill("s"), []

    @skill.tool(
        "t",
        input_schema={"type": "object", "patternProperties": {HOSTILE: False}, "additionalProperties": False},
    )
    def t(input: dict[str, Any], ctx: Any) -> Any:
        called.append(input)

    script = {"run": {"a": [{"tool_calls": [{"tool": "t", "input": {TEXT: 1}}], "data": {}}]}}
    run = play(flow({"a": {"skills": ["s"]}}), script, skills=(skill,))
    assert "does not match any of the regexes" in run.results["a"]["toolCalls"][0]["error"]
    assert not called


SERVER = """
import json, sys
TOOL = {"name": "t", "inputSchema": json.loads(sys.argv[1]), "outputSchema": json.loads(sys.argv[2])}
for line in sys.stdin:
    asked = json.loads(line)
    answer = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                       "serverInfo": {"name": "x", "version": "1"}},
        "tools/list": {"tools": [TOOL]},
        "tools/call": {"content": [], "structuredContent": {"t": "a" * 60 + "!"}},
    }.get(asked.get("method"))
    if "id" in asked:
        said = {"result": answer} if answer else {"error": {"code": -32601, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"pattern": HOSTILE}, "does not match"),
        ({"pattern": GIVEN_UP}, "given up after too many steps"),
        ({"pattern": "("}, "cannot be applied"),
        ({"$ref": "http://localhost/x.json"}, "cannot be applied: Unresolvable"),
    ],
)  # fmt: skip
async def test_a_servers_output_schema_hangs_and_fetches_nothing(schema: dict[str, Any], told: str) -> None:
    """The SDK would check the output itself, on the event loop, with `re`."""
    output = json.dumps({"type": "object", "properties": {"t": schema}})
    sessions = Sessions()
    try:
        server = McpServer(
            name="x", command=sys.executable, args=("-c", SERVER, '{"type": "object"}', output)
        )
        session = await sessions.open("v", {"x": server}, [])
        for _ in range(2):  # what it gave is wrong, but it is there still
            with pytest.raises(ToolError, match=told):
                await session.call(session.tools["t"], {})
    finally:
        await sessions.close()


@pytest.mark.house
@pytest.mark.parametrize(
    ("schema", "told"),
    [({"pattern": HOSTILE}, "does not match"), ({"$ref": "http://localhost/x.json"}, "cannot be applied")],
)
async def test_a_servers_input_schema_hangs_and_fetches_nothing(
    tmp_path: Path, flow: Any, schema: dict[str, Any], told: str
) -> None:
    """K4: inputs are checked against what the server published, before it is called."""
    published = json.dumps({"type": "object", "properties": {"t": schema}})
    server = {"command": sys.executable, "args": ["-c", SERVER, published, '{"type": "object"}']}
    (tmp_path / "flow.json").write_text(
        json.dumps(flow({"a": {"skills": ["x"]}}, skills={"x": {"mcp": server}}))
    )
    engine = Engine("memory:")
    calls = [{"tool": "t", "input": {"t": TEXT}}]
    engine.models["fake"] = ScriptedModel({"run": {"a": [{"tool_calls": calls, "data": {}}]}})
    async with engine:
        engine.deploy(str(tmp_path / "flow.json"))
        run = await engine.start("wf", {}, model="fake")
        await run.settled(timeout=60)
        (call,) = (await run.show())["state"]["results"]["a"]["toolCalls"]
    assert told in call["error"]


# --- what `check` says --------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(", "x*+", "(?i)a", "(?P<n>a)", "[b-a]", "a{2,1}", "\\"])
def test_what_is_no_pattern_is_found_before_a_run(problems: Any, flow: Any, pattern: str) -> None:
    found = problems(flow({"a": {"requires": rule(pattern, "input.t")}}))
    assert [problem.code for problem in found] == ["BAD_PATTERN"]
    assert "position" in found.errors[0].message
    found = problems(
        flow({"a": {"output": {"properties": {"t": {"pattern": pattern.replace("(?", "(?*")}}}}})
    )
    assert [problem.code for problem in found] == ["OUTPUT_SCHEMA_INVALID"]


@pytest.mark.parametrize(
    "pattern", ["[]", r"\cJ", r"\p{L}", r"\1(a)", r"[\d-x]", "a{,3}", HOSTILE, GIVEN_UP, "(?<=a+)b"]
)
def test_what_javascript_takes_is_taken(problems: Any, flow: Any, pattern: str) -> None:
    assert list(problems(flow({"a": {"requires": rule(pattern, "input.t")}}))) == []


def test_a_skill_with_a_broken_pattern_is_refused() -> None:
    with pytest.raises(DefinitionError, match="nothing to repeat"):
        Skill("s").tool("t", input_schema={"type": "object", "patternProperties": {"*": True}})


# --- the text that is matched -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-7, "1e-7"), (1.5e-7, "1.5e-7"), (1e-6, "0.000001"), (1.25e-5, "0.0000125"), (0.1, "0.1"), (-0.0, "0"),
        (1.0, "1"), (-2.5, "-2.5"), (1e16, "10000000000000000"), (123456789012345680000.0, "123456789012345680000"),
        (1e21, "1e+21"), (-1.5e300, "-1.5e+300"), (5e-324, "5e-324"), (0.30000000000000004, "0.30000000000000004"),
        (None, "null"), (True, "true"), ([1, None, [2, "x"]], "1,,2,x"), ({"a": 1}, "[object Object]"), (7, "7"),
    ],
)  # fmt: skip
def test_values_become_text_as_in_javascript(value: Any, text: str) -> None:
    assert js_text(value) == text
    assert Match.of(
        {"path": "v", "matches": "^" + text.replace("+", r"\+").replace("[", r"\[") + "$"}
    ).passes(value)
