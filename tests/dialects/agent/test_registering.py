"""Skills written in Python: the shape of skill.json, unique ids, installed packages (§2, §7, K6)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import Skill
from treadle.kernel.errors import DefinitionError, TreadleError
from treadle.performers.agent.skill_finding import Skills, is_there
from treadle.testing.scripted import ScriptedModel


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"name": 5}, "name"),
        ({"description": None}, "description"),
        ({"category": "party"}, "category"),
        ({"config": {"K": {"required": True}}}, "config.K"),
        ({"config": {"K": {"description": "d", "secret": True}}}, "config.K"),
        ({"config": [1]}, "config"),
        ({"instruction": 5}, "instruction"),
        ({"mcp": {"args": []}}, "mcp"),
        ({"mcp": {"command": "x", "timeout": "soon"}}, "mcp.timeout"),
        ({"mcpAliases": {"a": []}}, "mcpAliases.a"),
        ({"mcpAliases": {"a": "b"}}, "mcpAliases.a"),
        ({"mcpAliases": {"a": [""]}}, "mcpAliases.a"),
        ({"tools": [{"name": "t"}]}, "decorator"),
    ],
)
def test_a_skill_has_the_shape_of_skill_json(change, wrong):
    """§2: skill.json is closed and typed; §7: a Skill has its fields."""
    good = {"name": "N", "description": "d", "category": "git", "config": {}, "instruction": "i"}
    with pytest.raises(DefinitionError, match=re.escape(wrong)) as caught:
        Skill("x", **{**good, **change})
    assert caught.value.code == "SKILL_INVALID"
    Skill("x", **good, mcp={"url": "https://x", "timeout": "5s"}, mcpAliases={"search": ["find", "look"]})


@pytest.mark.parametrize(
    ("name", "more", "wrong"),
    [
        ("", {}, "name"),
        (5, {}, "name"),
        ("t", {"description": 5}, "description"),
        ("t", {"input_schema": True}, "input_schema"),
        ("t", {"input_schema": {"type": "foo"}}, "input_schema.type"),
        ("t", {"input_schema": {"properties": {"a": {"type": "strng"}}}}, "input_schema.properties.a"),
        ("t", {"input_schema": {"type": "object", "default": {1, 2}}}, "cannot be stored"),
        ("t", {"input_schema": {"type": "object", "$ref": "https://example.org/x.json"}}, "leads out"),
        ("twice", {}, "already"),
    ],
)
def test_a_tool_has_the_shape_of_skill_json(name, more, wrong):
    skill = Skill("x", name="X")
    skill.tool("twice")(lambda input, ctx: 1)
    with pytest.raises(DefinitionError, match=re.escape(wrong)) as caught:
        skill.tool(name, **more)
    assert (caught.value.code, caught.value.message.count("\n")) == ("SKILL_INVALID", 0)
    assert list(skill.tools) == ["twice"]
    with pytest.raises(DefinitionError, match="needs a function"):
        skill.tool("new")(5)


def test_ids_are_unique_among_the_registered():
    """K6. The same skill may be registered again: programs do so when they are set up twice."""
    engine = Engine("memory:")
    skill = Skill("net", name="N", instruction="i")
    engine.register(skill)
    engine.register(skill)
    with pytest.raises(TreadleError, match="registered already") as caught:
        engine.register(Skill("net", name="N", instruction="i"))
    assert caught.value.code == "SKILL_INVALID"
    skill.instruction = 5
    with pytest.raises(TreadleError, match="instruction"):
        engine.register(skill)
    with pytest.raises(TreadleError, match=r"treadle\.agent\.Skill") as caught:
        engine.register(5)
    assert caught.value.code == "PLUGIN_INVALID"


def test_a_function_evaluator_knows_a_tool_by_its_aliases(play, flow):
    skill = Skill("net", name="N", mcpAliases={"search": ["find"]})
    skill.tool("find")(lambda input, ctx: 1)
    rule = {"name": "used", "kind": "function", "rule": {"any_tool_called": ["search"]}}
    script = {"run": {"a": [{"tool_calls": [{"tool": "find"}], "data": {}}]}}
    run = play(flow({"a": {"skills": ["net"], "eval": [rule]}}), script, skills=(skill,))
    assert run.results["a"]["status"] == "success"


@pytest.mark.house
async def test_a_run_is_decided_the_same_by_who_compiled_and_by_who_reads_later(tmp_path, flow):
    """D5. The order of keys is the author's in a file, and canonical in a store."""
    names = {"reasoning": {}, "zz": {}, "a": {}}
    output = {"type": "object", "properties": names, "required": ["reasoning"]}
    wf = flow(
        {"n": {"output": {**output, "required": []}}, "b": {"output": output}}, ("n", "b", {"when": "q"})
    )
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    script = {"run": {"n": [{"data": {}}], "b": [{"data": {"reasoning": 1}}]}, "evaluate": {"n": ["b"]}}
    shown = []
    for is_first in (True, False):
        engine = Engine(f"sqlite:///{tmp_path}/t.db")
        model = engine.models["fake"] = ScriptedModel(script)
        if is_first:
            engine.deploy(str(tmp_path / "flow.json"))
        async with engine:
            run = await engine.start("wf", {}, id=f"r{is_first}", model="fake")
            await run.result(timeout=20)
            assert (await engine.replay("rTrue"))["equal"]
        shown.append(
            [list(call["output_schema"]["properties"]) for call in model.calls if call["op"] == "run"]
        )
    assert shown[0] == shown[1]
    assert shown[0][1][0] == "reasoning", "required ones first, as the author lists them"


def test_installed_skills_that_are_broken_stop_nobody(monkeypatch, caplog):
    good = Skill("good", name="G", instruction="i")

    class Entry:
        def __init__(self, name: str, loaded: Any) -> None:
            self.name, self.loaded = name, loaded

        def load(self) -> Any:
            if isinstance(self.loaded, Exception):
                raise self.loaded
            return self.loaded

    entries = [Entry("broken", ImportError("gone")), Entry("odd", [5, good])]
    groups = {"treadle.skills": entries}
    monkeypatch.setattr(
        "treadle.performers.agent.skill_finding.entry_points", lambda group: groups.get(group, [])
    )
    assert Skills(learn=lambda name, value: None).find("good", {}, None) is good
    assert is_there("good", None)
    assert not is_there("broken", None)
    assert "gone" in caplog.text
    assert "5 is not a Skill" in caplog.text
