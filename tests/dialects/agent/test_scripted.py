"""The scripted model: which entry answers, what an entry may hold, and what is refused before a run begins."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, TreadleError
from treadle.agent import AskRequest, ProviderError, Skill, TurnRequest
from treadle.testing.scripted import ScriptedModel

TOOLS = Skill("kit", name="Kit", description="d", category="general")


@TOOLS.tool("add", description="Adds", input_schema={"type": "object"}, idempotent=True)
def add(input: dict[str, Any], ctx: Any) -> int:
    return int(input["a"]) + 1


JUDGED = {"eval": [{"name": "j", "kind": "judge", "rubric": "good?"}]}


async def turn(model: ScriptedModel, node: str = "a", nth: int = 1, turn: int = 1) -> Any:
    return await model.turn(
        TurnRequest(node=node, iteration=1, attempt=0, turn=turn, nth=nth, instruction="")
    )


# --- whether it waits ---------------------------------------------------------------------------


class Derived(ScriptedModel):
    """Nobody knows what it does."""


def test_a_script_without_delays_answers_at_once() -> None:
    script = {"run": {"a": [{"data": {}}, {"turns": [{"text": "x"}]}]}, "ask": ["yes"]}
    assert ScriptedModel(script, remember=False).answers_at_once
    assert not ScriptedModel(script).answers_at_once, "what it remembers has to be loaded"
    assert not Derived(script, remember=False).answers_at_once
    assert not ScriptedModel({**script, "log": "log.txt"}, remember=False).answers_at_once
    for late in ({"data": {}, "delay": 1}, {"turns": [{"delay": 1}]}, {"script": {"ask": [{"delay": 1}]}}):
        assert not ScriptedModel({"run": {"a": [late]}}, remember=False).answers_at_once, late


def test_a_script_that_came_to_wait_waits_without_an_event_loop_too() -> None:
    model = ScriptedModel({"run": {"a": [{"data": {"n": 1}, "delay": 0.02}]}}, remember=False)
    began, coroutine = time.monotonic(), turn(model)
    with pytest.raises(StopIteration) as stop:
        coroutine.send(None)
    assert stop.value.value.data == {"n": 1}
    assert time.monotonic() - began >= 0.02


# --- entries ------------------------------------------------------------------------------------


def test_calls_and_progress_come_before_a_throw(play, flow):
    entry = {
        "throw": "down",
        "tool_calls": [{"tool": "add", "input": {"a": 1}}],
        "progress": ["trying"],
        "usage": {"input_tokens": 5},
    }
    run = play(flow({"a": {"skills": ["kit"]}}), {"run": {"a": [entry]}}, skills=(TOOLS,)).go()
    result = run.result["results"]["a"]
    assert result["status"] == "failed"
    assert result["data"]["error"] == "down"
    assert result["toolCalls"] == [{"tool": "add", "input": {"a": 1}, "output": 2}]
    assert [e["message"] for e in run.events if e["type"] == "node:progress"] == ["trying"]
    assert run.result["trace"]["usage"]["input_tokens"] == 5


def test_progress_comes_before_a_throw_without_calls(play, flow):
    run = play(flow("a"), {"run": {"a": [{"throw": "down", "progress": ["trying"]}]}}).go()
    assert run.result["results"]["a"]["data"]["error"] == "down"
    assert [e["message"] for e in run.events if e["type"] == "node:progress"] == ["trying"]


def test_turns_can_be_written_out(play, flow):
    turns = [
        {"tool_calls": [{"tool": "add", "input": {"a": 1}}], "usage": {"input_tokens": 1}},
        {
            "tool_calls": [{"tool": "add", "input": {"a": 5}}],
            "progress": ["more"],
            "usage": {"input_tokens": 2},
        },
        {"data": {"n": 6}, "usage": {"input_tokens": 4}},
    ]
    run = play(flow({"a": {"skills": ["kit"]}}), {"run": {"a": [{"turns": turns}]}}, skills=(TOOLS,)).go()
    assert run.result["results"]["a"]["data"] == {"n": 6}
    assert [call["output"] for call in run.result["results"]["a"]["toolCalls"]] == [2, 6]
    assert run.result["trace"]["usage"]["input_tokens"] == 7
    assert [call["turn"] for call in run.model.calls] == [1, 2, 3]


async def test_written_turns_run_out_like_entries():
    model = ScriptedModel({"run": {"a": [{"turns": [{"tool_calls": [{"tool": "add"}]}]}]}})
    assert (await turn(model)).calls[0]["tool"] == "add"
    with pytest.raises(ProviderError, match=r"1 entries at run\.a\[0\]\.turns.*number 2") as caught:
        await turn(model, turn=2)
    assert caught.value.code == "SCRIPT_EXHAUSTED"


# --- questions by node --------------------------------------------------------------------------


async def test_ask_by_node_answers_by_the_count_of_the_node():
    model = ScriptedModel({"ask": {"b": ["yes", "no"], "c": [{"text": "maybe"}]}})

    async def ask(node: str, nth: int) -> str:
        request = AskRequest(instruction="?", node=node, node_nth=nth, nth=99)
        return (await model.ask(request)).text

    assert [await ask("c", 1), await ask("b", 2), await ask("b", 1)] == ["maybe", "no", "yes"]
    with pytest.raises(ProviderError, match=r"1 entries at ask\.c, and is asked for number 2"):
        await ask("c", 2)


async def test_ask_as_a_list_answers_by_the_count_of_the_run():
    model = ScriptedModel({"ask": ["yes", "no"]})
    request = AskRequest(instruction="?", node="b", node_nth=1, nth=2)
    assert (await model.ask(request)).text == "no"


@pytest.mark.parametrize(
    ("ask", "passed"),
    [(["yes", "no"], [True, False]), ({"b": ["no"], "a": ["yes"]}, [True, False]), ({"a": ["no"], "b": ["yes"]}, [False, True])],
)  # fmt: skip
def test_a_run_takes_either_form(play, flow, ask, passed):
    script = {"run": {"a": [{"data": {}}], "b": [{"data": {}}]}, "ask": ask}
    run = play(flow({"a": JUDGED, "b": JUDGED}, "a b"), script).go()
    results = run.result["results"]
    assert [results[node]["evals"][0]["pass"] for node in ("a", "b")] == passed


# --- runs that are called -----------------------------------------------------------------------


async def test_a_called_run_has_the_script_of_its_call():
    inner = [{"script": {"run": {"x": [{"data": {"n": n}}]}}} for n in (1, 2)]
    inner[1]["script"]["run"]["deep"] = [{"script": {"run": {"x": [{"data": {"n": 3}}]}}}]
    model = ScriptedModel({"run": {"b": inner, "x": [{"data": {"n": 0}}]}})

    async def answer(*within: list[Any]) -> Any:
        return (await turn(model.within(within), "x")).data["n"]

    assert await answer() == 0
    assert [await answer(["b", 1]), await answer(["b", 2]), await answer(["b", 2], ["deep", 1])] == [1, 2, 3]
    # A call without a script of its own is answered by the script around it.
    assert [await answer(["b", 3]), await answer(["other", 1]), await answer(["b", 1], ["y", 1])] == [0, 0, 1]


# --- what is refused ----------------------------------------------------------------------------

WRONG = [
    ([], "it is not an object"),
    ({"runs": {}}, "unknown keys runs"),
    ({"run": []}, "run is not a mapping"),
    ({"run": {"a": {}}}, "run.a is not a list"),
    ({"run": {"a": ["x"]}}, "run.a[0] is not an object"),
    ({"run": {"a": [{}, {"progress": "text"}]}}, "run.a[1].progress is not a list of texts"),
    ({"run": {"a": [{"progress": [5]}]}}, "run.a[0].progress"),
    ({"run": {"a": [{"usage": 5}]}}, "run.a[0].usage is not an object"),
    ({"run": {"a": [{"usage": {"input_tokens": -5}}]}}, "run.a[0].usage.input_tokens"),
    ({"run": {"a": [{"usage": {"output_tokens": 1.5}}]}}, "run.a[0].usage.output_tokens"),
    ({"run": {"a": [{"usage": {"usd": "x"}}]}}, "run.a[0].usage.usd"),
    ({"run": {"a": [{"tool_calls": [{"input": {}}]}]}}, "run.a[0].tool_calls is not a list of {tool, input}"),
    ({"run": {"a": [{"delay": "1"}]}}, "run.a[0].delay"),
    ({"run": {"a": [{"turns": []}]}}, "run.a[0].turns"),
    ({"run": {"a": [{"turns": [{"usage": 5}]}]}}, "run.a[0].turns[0].usage"),
    ({"run": {"a": [{"script": {"run": {"x": [5]}}}]}}, "run.a[0].script.run.x[0] is not an object"),
    ({"evaluate": {"a": "b"}}, "evaluate.a is not a list"),
    ({"evaluate": {"a": [{"delay": -1}]}}, "evaluate.a[0].delay"),
    ({"ask": "yes"}, "ask is not a list"),
    ({"ask": {"b": "yes"}}, "ask.b is not a list"),
    ({"run": {"a": [{"dta": {}}]}}, "run.a[0].dta is no part of an entry; data is"),
    ({"run": {"a": [{"toolCalls": []}]}}, "run.a[0].toolCalls is no part of an entry; tool_calls is"),
    ({"log": 5}, "log is not the name of a file"),
]


@pytest.mark.parametrize(("script", "message"), WRONG)
def test_a_wrong_script_is_refused_with_its_place(tmp_path: Path, script: Any, message: str):
    with pytest.raises(TreadleError) as caught:
        ScriptedModel(script)
    assert caught.value.code == "SCRIPT_INVALID"
    assert message in caught.value.message
    path = tmp_path / "s.json"
    path.write_text(json.dumps(script))
    with pytest.raises(TreadleError) as caught:
        ScriptedModel.load(path)
    assert str(path) in caught.value.message
    assert message in caught.value.message


def test_what_people_note_in_an_entry_is_left_alone():
    ScriptedModel({"run": {"a": [{"data": {}, "note": "from Tuesday"}]}, "evaluate": {"a": [None, "b"]}})


def test_the_folder_of_the_log_is_there_before_the_run(tmp_path: Path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"log": "no/such/log"}))
    with pytest.raises(TreadleError, match=r"log is to be in .*no/such, which is no folder"):
        ScriptedModel.load(path)


@pytest.mark.house
async def test_a_wrong_script_starts_nothing(tmp_path: Path, flow):
    (tmp_path / "s.json").write_text('{"run": {"a": [')
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        (tmp_path / "flow.json").write_text(json.dumps(flow("a")))
        engine.deploy(str(tmp_path / "flow.json"))
        for spec, said in (
            (f"scripted:{tmp_path}/s.json", "s.json is not JSON"),
            (f"scripted:{tmp_path}/none.json", "none.json cannot be read: No such file"),
            (f"scripted:{tmp_path}", "cannot be read: Is a directory"),
            ("scripted", "needs a script"),
        ):
            with pytest.raises(TreadleError, match="SCRIPT_INVALID") as caught:
                await engine.start("wf", {}, model=spec)
            assert said in caught.value.message
        assert await engine.list() == []
