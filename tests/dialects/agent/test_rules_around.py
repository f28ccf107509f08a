"""Rules around the run: the scripted model, options, the command line, events, history (AGENT.md §4-§8)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, RunFailed
from treadle.agent import AskRequest, ChooseRequest, Skill, TurnRequest
from treadle.cli.main import main
from treadle.performers.agent.models import Providers
from treadle.testing.scripted import ScriptedModel


def data(**value: Any) -> list[dict[str, Any]]:
    return [{"data": value}]


def tools(*names: str) -> Skill:
    skill = Skill("kit", name="Kit")
    for name in names:
        skill.tool(name, idempotent=True, input_schema={"type": "object", "required": ["q"]})(
            lambda input, ctx: {"ok": True}
        )
    return skill


def save(folder: Path, name: str, value: Any) -> str:
    (folder / name).write_text(json.dumps(value))
    return str(folder / name)


# --- the scripted model (§8.1) ------------------------------------------------------------------


async def test_each_request_is_in_the_log_and_synced_before_it_is_answered(tmp_path, monkeypatch):
    order: list[str] = []
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        sync(descriptor)
        order.append(f"synced {len((tmp_path / 'asked.jsonl').read_text().splitlines())}")

    monkeypatch.setattr(os, "fsync", fsync)

    async def told(message: str) -> None:
        order.append(message)

    script = {
        "log": "asked.jsonl",
        "run": {"a": [{"progress": ["answering a"], "data": {}}]},
        "evaluate": {"a": [{"throw": "no"}]},
        "ask": ["yes"],
    }
    model = ScriptedModel.load(save(tmp_path, "s.json", script))
    more = {"iteration": 2, "attempt": 1, "turn": 1, "nth": 1, "instruction": "Do."}
    await model.turn(TurnRequest(node="a", progress=told, model="m", max_turns=3, **more))
    with pytest.raises(Exception, match="no"):
        await model.choose(ChooseRequest(node="a", iteration=2, nth=1, question="?", choices=[]))
    await model.ask(AskRequest(instruction="Good?", model="j"))
    assert order == ["synced 1", "answering a", "synced 2", "synced 3"]
    lines = [json.loads(line) for line in (tmp_path / "asked.jsonl").read_text().splitlines()]
    assert lines == [
        {
            "op": "run",
            "node": "a",
            "iteration": 2,
            "attempt": 1,
            "turn": 1,
            "instruction": "Do.",
            "context": {},
            "tools": [],
            "model": "m",
            "max_turns": 3,
            "output_schema": None,
            "mcp_servers": [],
        },
        {"op": "evaluate", "node": "a", "iteration": 2, "context": {}, "choices": [], "model": None},
        {"op": "ask", "instruction": "Good?", "model": "j"},
    ]


def test_an_entry_with_calls_is_two_turns_and_is_charged_on_the_first(prepared, flow):
    usage = {"input_tokens": 10, "output_tokens": 5, "usd": 0.25}
    calls = [{"tool": "one", "input": {"q": 1}}, {"tool": "two", "input": {"q": 2}}]
    script = {"run": {"a": [{"tool_calls": calls, "data": {"n": 1}, "usage": usage}], "b": data()}}
    run = prepared(flow({"a": {"skills": ["kit"]}, "b": {}}, "a b"), script, skills=(tools("one", "two"),))
    run.start().go(2)
    assert run.trace["usage"] == usage, "before the calls are made"
    run.go()
    assert run.trace["usage"] == usage
    assert [(call["node"], call["turn"]) for call in run.asked("run")] == [("a", 1), ("a", 2), ("b", 1)]
    told = [(e["type"], e["tool"]) for e in run.events if e["type"].startswith("tool:")]
    assert told == [
        ("tool:call", "one"),
        ("tool:result", "one"),
        ("tool:call", "two"),
        ("tool:result", "two"),
    ]


def test_a_throw_is_not_retried_and_uses_one_entry(prepared, flow):
    wf = flow("a", ("a", "a", {"max_iterations": 1}))
    run = prepared(wf, {"run": {"a": [{"throw": "overloaded"}, *data(n=2)]}}).start().go()
    assert run.driver.open("timer") == []
    assert [step["status"] for step in run.trace["steps"]] == ["failed", "success"]
    assert run.results["a"]["data"] == {"n": 2}


async def test_an_entry_may_take_its_time(monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    model = ScriptedModel(
        {
            "run": {"a": [{"data": {}, "delay": 0.5}]},
            "evaluate": {"a": [{"choice": "b", "delay": 2}]},
            "ask": [{"text": "yes", "delay": 3}],
        }
    )
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await model.turn(TurnRequest(node="a", iteration=1, attempt=0, turn=1, nth=1, instruction=""))
    await model.choose(ChooseRequest(node="a", iteration=1, nth=1, question="", choices=[]))
    await model.ask(AskRequest(instruction=""))
    assert slept == [0.5, 2, 3]


# --- what is recorded with a run (§8.2) ---------------------------------------------------------


@pytest.mark.house
async def test_whoever_drives_a_run_on_uses_its_options(tmp_path, flow, monkeypatch):
    """SPEC and --secrets, written relative, found again from another folder; no value is recorded."""
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    seen: list[str] = []
    skill = Skill("net", name="Net", config={"NET_KEY": {"description": "k", "required": True}})
    skill.tool("ping", idempotent=True)(lambda input, ctx: seen.append(ctx.config["NET_KEY"]))
    monkeypatch.delenv("NET_KEY", raising=False)
    (home / "s.env").write_text("NET_KEY=the-key-in-the-file\n")
    save(home, "s.json", {"run": {"a": [{"tool_calls": [{"tool": "ping"}], "data": {}}]}})
    approve = {"skills": ["net"], "approve": {"roles": ["lead"], "prompt": "?"}}
    file = save(home, "flow.json", flow({"a": approve}))
    monkeypatch.chdir(home)
    for folder in (home, away):
        monkeypatch.chdir(folder)
        engine = Engine(f"sqlite:///{tmp_path}/t.db")
        engine.register(skill)
        engine.deploy(file)
        async with engine:
            if folder is home:
                run = await engine.start("wf", id="r", model="scripted:s.json", secrets="s.env")
                assert (await run.settled(timeout=30))["status"] == "waiting"
                continue
            (task,) = await engine.tasks(run="r")
            await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=["admin"])
            await (await engine.run("r")).result(timeout=30)
            (started, *_) = await (await engine.run("r")).journal()
    assert seen == ["the-key-in-the-file"]
    options = started["event"]["options"]
    assert options["model"] == f"scripted:{home / 's.json'}"
    assert options["secrets"] == str(home / "s.env")
    for path in tmp_path.glob("t.db*"):
        assert b"the-key-in-the-file" not in path.read_bytes()


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_spec_names_the_provider_and_its_default(provider):
    """PROVIDER[:ARG]; a name may have colons of its own."""

    async def resolve(name: str, options: Any) -> str:
        return "key"

    providers = Providers({}, resolve=resolve, learn=lambda name, value: None)
    found = [providers.get({"model": spec}) for spec in (provider, f"{provider}:my:model")]
    assert type(found[0]) is type(found[1])
    assert found[0].default_model not in (None, "my:model")
    assert found[1].default_model == "my:model"
    assert found[1].small_model == found[0].small_model


@pytest.mark.house
async def test_a_run_that_is_offline_stays_offline(tmp_path, flow):
    file = save(tmp_path, "flow.json", flow({"a": {"instruction": "https://example.org/rules"}}))
    for again in (False, True):
        engine = Engine(f"sqlite:///{tmp_path}/t.db")
        engine.models["fake"] = ScriptedModel({"run": {"a": data()}})
        engine.deploy(file)
        async with engine:
            if again:
                await engine.retry("r")
                run = await engine.run("r")
            else:
                run = await engine.start("wf", id="r", model="fake", offline=True)
            with pytest.raises(RunFailed) as caught:
                await run.result(timeout=30)
        assert caught.value.error["code"] == "SOURCE_OFFLINE_REQUIRES_FETCH"


@pytest.mark.house
@pytest.mark.parametrize("error", [RuntimeError, KeyError, ExceptionGroup])
async def test_whatever_a_provider_raises_is_told_without_secrets(tmp_path, flow, caplog, error):
    """The values of a skill's settings are secrets; a provider may know them, and fail in any way."""

    class Careless(ScriptedModel):
        async def turn(self, request: Any) -> Any:
            said = f"cannot log in with {key}"
            raise ExceptionGroup(said, [ValueError(said)]) if error is ExceptionGroup else error(said)

    key = "a-very-secret-token-1234"
    skill = Skill("net", name="Net", instruction="i", config={"NET_KEY": {"description": "k"}})
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.models["fake"] = Careless({})
    engine.register(skill)
    engine.deploy(save(tmp_path, "flow.json", flow({"a": {"skills": ["net"]}})))
    async with engine:
        run = await engine.start("wf", model="fake", config={"NET_KEY": key})
        shown = await run.settled(timeout=30)
    assert shown["status"] == "failed"
    assert "[redacted:NET_KEY]" in shown["state"]["results"]["a"]["data"]["error"]
    assert key not in json.dumps(shown) + caplog.text
    assert not any(key.encode() in path.read_bytes() for path in tmp_path.glob("t.db*"))


# --- events (§7, §8.17, A3) ---------------------------------------------------------------------


@pytest.mark.house
async def test_numbers_have_no_gaps_and_an_observer_may_come_back(tmp_path, flow):
    """Progress frames get a number too; `after` gives what comes behind it, across a restart."""
    file = save(
        tmp_path, "flow.json", flow({"a": {}, "b": {"approve": {"roles": ["r"], "prompt": "?"}}}, "a b")
    )
    script = {
        "run": {"a": [{"data": {}, "progress": ["one", "two"]}], "b": [{"data": {}, "progress": ["three"]}]}
    }
    told: list[dict[str, Any]] = []
    for last in (False, True):
        engine = Engine(f"sqlite:///{tmp_path}/t.db")
        engine.models["fake"] = ScriptedModel(script)
        engine.deploy(file)
        engine.observe(told.append, after=told[-1]["seq"] if told else 0)
        async with engine:
            if last:
                (task,) = await engine.tasks(run="r")
                await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=["admin"])
            run = await engine.run("r") if last else await engine.start("wf", id="r", model="fake")
            await (run.result if last else run.settled)(timeout=30)
            stored = [event async for event in run.events()] if last else []
    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    assert [(event["seq"], event["type"]) for event in stored] == [(e["seq"], e["type"]) for e in told]
    assert [e["message"] for e in told if e["type"] == "node:progress"] == ["one", "two", "three"]


@pytest.mark.house
async def test_an_observer_is_called_after_the_commit(tmp_path, flow):
    """What an observer is told can be read by anyone, at once."""
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.models["fake"] = ScriptedModel({"run": {"a": data(), "b": data()}})
    engine.deploy(save(tmp_path, "flow.json", flow("a b", "a b")))
    missing: list[Any] = []
    seen: list[Any] = []

    async def look(event: dict[str, Any]) -> None:
        stored = await engine.events_after(event["run"], event["seq"] - 1)
        seen.append(event["seq"])
        if not stored or stored[0]["seq"] != event["seq"]:
            missing.append(event)

    engine.observe(look)
    async with engine:
        await (await engine.start("wf", model="fake")).result(timeout=30)
    assert (missing, len(seen)) == ([], 8)


def test_a_call_that_is_refused_has_its_result_too(play, flow):
    """A3: pairs, also where the input does not fit or the tool is not there."""
    calls = [
        {"tool": "one", "input": {}},
        {"tool": "nothing", "input": {}},
        {"tool": "one", "input": {"q": 1}},
    ]
    script = {"run": {"a": [{"tool_calls": calls, "data": {}}]}}
    run = play(flow({"a": {"skills": ["kit"]}}), script, skills=(tools("one"),))
    told = [(e["type"], e["tool"]) for e in run.events if e["type"].startswith("tool:")]
    assert told == [(kind, call["tool"]) for call in calls for kind in ("tool:call", "tool:result")]
    first, second, third = [event["output"] for event in run.of("tool:result")]
    assert first["error"].startswith("invalid input")
    assert "no tool 'nothing'" in second["error"]
    assert third == {"ok": True}


# --- history (§4) -------------------------------------------------------------------------------


def test_the_history_of_a_node_lives_beside_the_journal(play, flow):
    """By reference: a turn's record does not grow with the turns before it."""

    heard: list[list[str]] = []

    class Remembers(ScriptedModel):
        keeps_history = True

        async def turn(self, request: Any) -> Any:
            heard.append([message["role"] for message in await request.history()])
            return await super().turn(request)

    turns = [
        {"tool_calls": [{"tool": "one", "input": {"q": n}}], "text": f"thought-{n}-" * 50} for n in range(3)
    ]
    script = {"run": {"a": [{"turns": [*turns, {"data": {}}]}]}}
    run = play(flow({"a": {"skills": ["kit"]}}), Remembers(script), skills=(tools("one"),))
    assert heard == [["assistant", "tool"] * n for n in range(4)]
    asked = [intent.params for intent in run.performed if intent.kind == "model"]
    assert [set(params.get("history", {})) >= {"checksum"} for params in asked] == [False, True, True, True]
    assert not any("thought-" in json.dumps(params) for params in asked)


# --- the command line (§6, §8.10, §8.18) --------------------------------------------------------

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def treadle(tmp_path, monkeypatch, capsys) -> Command:
    """`treadle("run", …)` gives the exit code and standard output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_STORE", raising=False)

    def command(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return int(ended.value.code or 0), capsys.readouterr().out

    return command


RUN = ("run", "flow.json", "--model", "scripted:s.json", "--id", "r")


def test_bad_input_makes_no_run_and_tells_everything(treadle, flow, tmp_path):
    declared = {"host": {"type": "string", "required": True}, "count": {"type": "number"}}
    save(tmp_path, "flow.json", flow("a", inputs=declared))
    save(tmp_path, "s.json", {"run": {"a": data()}})
    code, out = treadle(*RUN, "-i", "count=many", "--json")
    error = json.loads(out)["error"]
    assert (code, error["class"], error["code"]) == (2, "user", "INPUT_INVALID")
    assert [set(item) for item in error["details"]["errors"]] == [{"field", "message"}] * 2
    assert [item["field"] for item in error["details"]["errors"]] == ["host", "count"]
    assert json.loads(treadle("list", "--json")[1]) == []


def test_input_is_what_was_given_and_the_defaults(play, flow):
    """§8.10: `input` is the input after declared inputs were applied; given none it is {}."""
    wf = flow("a", inputs={"n": {"type": "number", "default": 3}})
    assert play(wf, {"run": {"a": data()}}, {"x": 1}).asked("run")[0]["context"] == {
        "input": {"x": 1, "n": 3}
    }
    assert play(flow("a"), {"run": {"a": data()}}).asked("run")[0]["context"] == {"input": {}}


def test_a_node_that_failed_exits_with_1_and_the_whole_document(treadle, flow, tmp_path):
    save(tmp_path, "flow.json", flow("a b", "a b"))
    failed = {"status": "failed", "data": {"error": "no"}, "usage": {"input_tokens": 7, "usd": 0.5}}
    save(tmp_path, "s.json", {"run": {"a": [failed], "b": data(n=1)}})
    code, out = treadle(*RUN, "--json")
    document = json.loads(out)
    assert (code, document["status"], document["error"]["code"]) == (1, "failed", "NODE_FAILED")
    assert document["state"]["results"]["b"]["data"] == {"n": 1}
    usage = {"input_tokens": 7, "output_tokens": 0, "usd": 0.5}
    assert document["stats"]["usage"] == document["state"]["trace"]["usage"] == usage
    code, out = treadle("trace", "r", "--json")
    trace = json.loads(out)
    assert (code, set(trace)) == (0, {"steps", "edges", "sources", "usage"})
    assert trace["usage"] == usage
    assert [step["usage"] for step in trace["steps"]] == [
        usage,
        {"input_tokens": 0, "output_tokens": 0, "usd": 0.0},
    ]


def test_the_option_dry_run_wins_whatever_else_is_given(treadle, flow, tmp_path):
    save(tmp_path, "flow.json", flow("a b", ("a", "b", {"when": "x"})))
    save(tmp_path, "s.json", {"run": {"a": data()}, "log": "asked.jsonl"})
    code, out = treadle(*RUN, "--dry-run", "-i", "dryRun=false", "--stream")
    assert code == 0
    assert [json.loads(line)["type"] for line in out.splitlines()] == [
        *("workflow:start", "sources:resolved", "node:enter", "node:exit", "workflow:halted", "workflow:end")
    ]
    (asked,) = (tmp_path / "asked.jsonl").read_text().splitlines()
    assert json.loads(asked)["context"]["input"] == {"dryRun": True}


def test_the_option_offline_refuses_urls(treadle, flow, tmp_path):
    save(tmp_path, "flow.json", flow({"a": {"rules": ["https://example.org/rules"]}}))
    save(tmp_path, "s.json", {"run": {"a": data()}})
    code, out = treadle(*RUN, "--offline", "--json")
    error = json.loads(out)["error"]
    assert (code, error["code"], error["where"]) == (1, "SOURCE_OFFLINE_REQUIRES_FETCH", "nodes.a.rules[0]")


def test_a_graph_says_what_was_taken_how_often(treadle, flow, tmp_path):
    wf = flow("a b", ("a", "a", {"when": "again", "max_iterations": 3}), ("a", "b", {"when": "done"}))
    save(tmp_path, "flow.json", wf)
    save(tmp_path, "s.json", {"run": {"a": data() * 3, "b": data()}, "evaluate": {"a": ["a", "a", "b"]}})
    treadle(*RUN)
    drawn = treadle("graph", "flow.json", "--format", "mermaid")[1]
    assert "again · max 3x" in drawn
    assert "taken" not in drawn
    drawn = treadle("graph", "r", "--format", "mermaid")[1]
    assert "again · max 3x · taken 2x" in drawn
    assert "done · taken 1x" in drawn


def test_a_diff_shows_that_a_source_has_changed(treadle, flow, tmp_path):
    """The seed: diffing runs detects drift in content that lives elsewhere."""
    save(tmp_path, "flow.json", flow({"a": {"instruction": "./a.md"}}))
    save(tmp_path, "s.json", {"run": {"a": data()}})
    for id in ("one", "two", "three"):
        (tmp_path / "a.md").write_text("old" if id != "three" else "new")
        assert treadle(*RUN[:-1], id)[0] == 0
    assert treadle("diff", "one", "two", "--json")[0] == 0
    code, out = treadle("diff", "one", "three", "--json")
    found = {line["path"]: (line["left"], line["right"]) for line in json.loads(out)["differences"]}
    assert code == 1
    (content,) = [path for path in found if path.endswith("content")]
    assert "nodes.a.instruction" in content
    assert found[content] == ("old", "new")
    assert any(path.endswith("hash") for path in found)
