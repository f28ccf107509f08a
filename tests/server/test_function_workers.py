"""Durable functions where decisions and steps are made by different processes, one of which is killed."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

from .test_serve import serving
from .test_workers import Api, until, working

APP = """
import pathlib, time
from treadle import flow

HERE = pathlib.Path(__file__).parent

@flow.step
def first(name: str) -> str:
    with (HERE / "calls").open("a") as log:
        log.write("first\\n")
    return name.upper()

@flow.step
def second(name: str) -> str:
    with (HERE / "calls").open("a") as log:
        log.write("second\\n")
    while not (HERE / "go").exists():
        time.sleep(0.05)
    return name + "!"

@flow.workflow
async def greeting(ctx: flow.Context, name: str) -> str:
    ctx.state["stage"] = "first"
    name = await first(name)
    ctx.state["stage"] = "second"
    return await second(name)
"""


def test_a_function_goes_on_when_the_worker_of_its_step_is_killed(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    calls = tmp_path / "calls"
    with ExitStack() as stack:
        _, said = stack.enter_context(serving(tmp_path, "--no-worker", "--app", str(app)))
        api = Api(said["url"])
        doomed = stack.enter_context(working(tmp_path, said["url"], "doomed", "--app", str(app)))
        run = api.start("greeting", input="ann")
        until(lambda: calls.exists() and "second" in calls.read_text())
        doomed.kill()
        doomed.wait(30)
        (tmp_path / "go").touch()
        stack.enter_context(working(tmp_path, said["url"], "heir", "--app", str(app)))
        shown = api.ended(run)
        assert (shown["status"], shown["result"], shown["state"]) == (
            "completed",
            "ANN!",
            {"stage": "second"},
        )
        assert calls.read_text().split() == ["first", "second", "second"], (
            "what was settled is not done again"
        )
        assert api.replays(run)
        graph = api.get(f"/runs/{run}/graph")
        assert [node["label"] for node in graph["nodes"]] == ["greeting", "step first", "step second"], (
            json.dumps(graph)
        )
