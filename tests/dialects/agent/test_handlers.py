"""Handlers of skills: where they run, for how long, and what they may be (K4, S32)."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import threading
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import Skill, ToolContext
from treadle.kernel.errors import DefinitionError, RunFailed, ToolError
from treadle.performers.agent.handlers import run_handler
from treadle.performers.agent.skill_finding import Skills, Values

CONTEXT = ToolContext(
    config={},
    logger=logging.getLogger("t"),
    idempotency_key="k",
    run_id="r",
    node="n",
    progress=lambda text: None,
)


async def run(handler: Any, **more: Any) -> Any:
    skill = Skill("s")
    skill.tool("t", **more)(handler)
    return await run_handler(skill.tools["t"], {"x": 1}, CONTEXT)


async def test_tools_that_block_stop_nobody_else():
    """More of them than the event loop's own threads, which read files and resolve names."""
    go = threading.Event()
    blocked = [asyncio.create_task(run(lambda input, ctx: go.wait())) for _ in range(40)]
    try:
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(os.getpid) == os.getpid()
        assert not any(task.done() for task in blocked)
    finally:
        go.set()
    assert all(await asyncio.gather(*blocked))


async def test_a_tool_that_runs_out_of_time_has_failed():
    never, go = asyncio.Event(), threading.Event()

    async def waits(input: Any, ctx: Any) -> None:
        await never.wait()

    with pytest.raises(ToolError, match=r"'t' did not finish within 0\.05 s \["):
        await run(waits, timeout=0.05)
    with pytest.raises(ToolError, match="may still take effect"):
        await run(lambda input, ctx: go.wait(), timeout=0.05)
    go.set()


@pytest.mark.house
async def test_the_late_end_of_a_cancelled_call_is_counted(tmp_path, flow):
    """A thread cannot be stopped; what it comes to changes nothing, and is not lost from sight either."""
    begun, go = threading.Event(), threading.Event()
    skill = Skill("slow")

    @skill.tool("wait")
    def wait(input: Any, ctx: Any) -> str:
        begun.set()
        go.wait()
        return "too late"

    engine = Engine("memory:")
    engine.register(skill)
    (tmp_path / "flow.json").write_text(json.dumps(flow({"a": {"skills": ["slow"]}})))
    script = {"run": {"a": [{"tool_calls": [{"tool": "wait", "input": {}}], "data": {}}]}}
    (tmp_path / "script.json").write_text(json.dumps(script))
    engine.deploy(str(tmp_path / "flow.json"))
    async with engine, asyncio.timeout(30):
        model = f"scripted:{tmp_path / 'script.json'}"
        run = await engine.start("wf", {}, id="r", model=model)
        await asyncio.to_thread(begun.wait)
        await engine.cancel("r")
        with pytest.raises(RunFailed):
            await run.result()
        assert await engine.diagnostics("r") == []
        go.set()
        while not (found := await engine.diagnostics("r")):  # noqa: ASYNC110, nothing tells
            await asyncio.sleep(0.01)
        assert [d["code"] for d in found] == ["receipt.stale"]
        assert (await run.show())["status"] == "cancelled"


async def test_a_time_out_of_its_own_is_not_ours():
    def fails(input: Any, ctx: Any) -> None:
        raise TimeoutError("the database did not answer")

    with pytest.raises(TimeoutError, match="the database"):
        await run(fails, timeout=30)


def test_the_model_is_told_that_time_ran_out(play, flow):
    go = threading.Event()
    skill = Skill("s")
    skill.tool("slow", idempotent=True, timeout=0.05)(lambda input, ctx: go.wait())
    done = play(
        flow({"a": {"skills": ["s"]}}),
        {"run": {"a": [{"tool_calls": [{"tool": "slow"}], "data": {}}]}},
        skills=(skill,),
    )
    go.set()
    assert done.status == "completed"
    (call,) = done.results["a"]["toolCalls"]
    assert "did not finish within 0.05 s" in call["error"]
    assert "output" not in call


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "5s"])
def test_a_limit_is_a_number_of_seconds(timeout):
    with pytest.raises(DefinitionError, match="timeout"):
        Skill("s").tool("t", timeout=timeout)


class Called:
    async def __call__(self, input: Any, ctx: Any) -> Any:
        return {"got": input["x"]}


async def plain(input: Any, ctx: Any) -> Any:
    return {"got": input["x"]}


@pytest.mark.parametrize(
    "handler",
    [
        Called(),
        plain,
        functools.partial(plain),
        lambda input, ctx: plain(input, ctx),
        lambda input, ctx: {"got": input["x"]},
    ],
    ids=["object", "function", "partial", "returns a coroutine", "lambda"],
)
async def test_whatever_can_be_called_can_be_a_tool(handler):
    assert await run(handler) == {"got": 1}


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), KeyboardInterrupt(), GeneratorExit()])
async def test_a_tool_cannot_end_the_process(error):
    def fails(input: Any, ctx: Any) -> None:
        raise error

    with pytest.raises(Exception, match=r"raised|StopIteration|GeneratorExit"):
        await run(fails)


async def test_what_a_built_in_skill_may_do_is_never_said_by_a_file_beside_the_workflow(
    tmp_path, monkeypatch
):
    names = ("TREADLE_SHELL", "TREADLE_FILES_ROOT", "TREADLE_DUCKDB_DATABASE")
    (tmp_path / ".env").write_text("".join(f"{name}=1\n" for name in names) + "OTHER=2\n")
    for name in names:
        monkeypatch.delenv(name, raising=False)

    async def secret(name: str) -> str:
        return "from the workflow's secrets" if name == "SHELL" else ""

    values = Values({}, secret, str(tmp_path))
    assert await values.find("X", "OTHER") == "2", "other settings may come from there"
    for name in names:
        assert await values.find(name.removeprefix("TREADLE_"), name) is None
    monkeypatch.setenv("TREADLE_SHELL", "1")
    assert await values.find("SHELL", "TREADLE_SHELL") == "1"
    assert await Values({"SHELL": "yes"}, secret, None).find("SHELL", "TREADLE_SHELL") == "yes"


async def test_the_shell_is_left_out_of_a_workflow_that_allows_it_itself(tmp_path, monkeypatch):
    from treadle.performers.agent.skills.built_in import shell_skill

    monkeypatch.delenv("TREADLE_SHELL", raising=False)
    (tmp_path / ".env").write_text("TREADLE_SHELL=1\n")

    async def secret(name: str) -> str:
        raise KeyError(name)

    skills = Skills(learn=lambda name, value: None, built_in=lambda: [shell_skill()])
    shell = skills.find("shell", {}, str(tmp_path))
    assert shell is not None
    assert await skills.missing_config(shell, Values({}, secret, str(tmp_path))) == ["SHELL"]
