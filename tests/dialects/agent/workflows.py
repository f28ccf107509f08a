"""Ten workflows and the examples, with their scripts: what the crash tests run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from treadle.agent import Skill
from treadle.lang.text import parse

EXAMPLES = Path(__file__).parents[3] / "examples" / "agent"
EXAMPLE_NAMES = [path.parent.name for path in sorted(EXAMPLES.glob("*/flow.yaml"))]


def data(*values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"data": value} for value in values]


def call(tool: str, **more: Any) -> dict[str, Any]:
    return {"tool": tool, "input": more}


def notes() -> Skill:
    skill = Skill("notes", name="Notes", instruction="Be brief.")

    @skill.tool("note", idempotent=True)
    def note(input: dict, ctx: Any) -> Any:
        if input.get("fail"):
            raise ValueError("no")
        return {"noted": input.get("text", "")}

    @skill.tool("once")
    def once(input: dict, ctx: Any) -> Any:
        return {"done": ctx.idempotency_key != ""}

    return skill


VALUE = [{"name": "has", "kind": "value", "rule": {"output_required": ["x"]}}]
JUDGE = [{"name": "j", "kind": "judge", "rubric": "Good?"}]
SKIP = {"output_required": ["input.nothing"], "on_fail": "skip"}

# Each: nodes, edges, script, more of the workflow.
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "chain": ("a b c", ("a b", "b c"), {"run": {n: data({n: 1}) for n in "abc"}}, {}),
    "tools": (
        {"a": {"skills": ["notes"]}, "b": {}},
        ("a b",),
        {"run": {"a": [{"tool_calls": [call("note", text="1"), call("note", fail=1)], "data": {"n": 1}}], "b": data({})}},
        {},
    ),
    "in doubt": (
        {"a": {"skills": ["notes"], "in_doubt": "retry"}},
        (),
        {"run": {"a": [{"tool_calls": [call("once"), call("once")], "data": {}}]}},
        {},
    ),
    "routes": (
        "a b c",
        (("a", "b", {"when": "x"}), "a c"),
        {"run": {"a": data({}), "c": data({})}, "evaluate": {"a": [None]}},
        {},
    ),
    "loop": (
        "a b",
        (("a", "a", {"when": "again", "max_iterations": 3}), ("a", "b", {"when": "done"})),
        {"run": {"a": data({"n": 1}, {"n": 2}, {"n": 3}), "b": data({})}, "evaluate": {"a": ["a", "a", "b"]}},
        {},
    ),
    "retry": (
        {"a": {"eval": VALUE, "retry": {"max": 2, "instruction": {"auto": True}}}},
        (),
        {"run": {"a": data({}, {}, {"x": 1})}, "ask": ["think", "harder"]},
        {},
    ),
    "judges": (
        {"a": {"eval": [*JUDGE, {**JUDGE[0], "name": "k"}]}, "b": {}},
        ("a b",),
        {"run": {"a": data({}), "b": data({})}, "ask": ["What do you mean?", "yes", "no"]},
        {},
    ),
    "parallel": (
        {"a": {}, "b": {"skills": ["notes"]}, "c": {"eval": JUDGE}, "d": {}},
        ("a b", "a c", "b d", "c d"),
        {
            "run": {"a": data({}), "b": [{"tool_calls": [call("note")], "data": {"b": 1}}], "c": data({"c": 1}), "d": data({})},
            "ask": ["yes"],
        },
        {"parallel": True},
    ),
    "failures": (
        {"a": {}, "b": {"fail_soft": True}, "c": {"requires": SKIP}, "d": {"max_turns": 1, "skills": ["notes"]}},
        ("a b", "b c", "c d"),
        {"run": {"a": [{"throw": "x"}], "b": [{"throw": "y"}], "d": [{"tool_calls": [call("note")], "data": {}}]}},
        {},
    ),
    "long": (
        " ".join(f"n{i}" for i in range(25)),
        tuple(f"n{i} n{i + 1}" for i in range(24)),
        {"run": {f"n{i}": data({"i": i, "pad": "p" * 900}) for i in range(25)}},
        {},
    ),
}  # fmt: skip


def examples() -> dict[str, tuple[Any, dict[str, Any], str]]:
    found = {}
    for path in sorted(EXAMPLES.glob("*/flow.yaml")):
        script = json.loads((path.parent / "script.json").read_text())
        found[path.parent.name] = (parse(path.read_text()).value, script, str(path.parent))
    return found
