"""Many runs at once: counted over time, and what the newest have in common."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from treadle import Engine
from treadle.kernel.errors import RunNotFound
from treadle.server.app import create_app
from treadle.views import insights

from .conftest import APPROVAL, FLOW, deployed
from .test_access import client, made

BROKEN = """
metadata: {name: broken, version: "1"}
workflow:
  - step: add
    tool: {kind: python, code: "def main():\\n    raise ValueError('no such card')"}
"""


async def test_runs_are_counted_over_time_by_workflow_and_by_what_became_of_them(
    http: httpx.AsyncClient,
) -> None:
    await deployed(http, greet=FLOW, broken=BROKEN)
    for workflow in ("greet", "greet", "broken"):
        run = (await http.post("/runs", json={"workflow": workflow})).json()["id"]
        await http.post(f"/runs/{run}/wait")
    found = (await http.get("/stats/history", params={"since": "1h"})).json()
    assert found["width_s"] == 60
    counted: dict[tuple[str, str], int] = {}
    for item in found["items"]:
        key = (item["workflow"], item["status"])
        counted[key] = counted.get(key, 0) + item["count"]
        assert found["since"] <= item["at"] <= found["until"]
        assert item["mean_ms"] > 0
    assert counted == {("greet", "completed"): 2, ("broken", "failed"): 1}
    narrowed = (await http.get("/stats/history", params={"workflow": "broken"})).json()["items"]
    assert {item["workflow"] for item in narrowed} == {"broken"}
    assert (await http.get("/stats/history", params={"since": "0001-01-01T00:00:00Z"})).status_code == 200
    refused = await http.get("/stats/history", params={"since": "soon"})
    assert (refused.status_code, refused.json()["where"]) == (422, "since")


async def test_a_run_that_is_collected_while_it_is_looked_at_is_left_out(
    http: httpx.AsyncClient, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deployed(http, greet=FLOW)
    for _ in range(2):
        run = (await http.post("/runs", json={"workflow": "greet"})).json()["id"]
        await http.post(f"/runs/{run}/wait")
    look = engine.run

    async def gone(id: str) -> Any:
        if id == run:
            raise RunNotFound(id)
        return await look(id)

    monkeypatch.setattr(engine, "run", gone)
    found = (await http.get("/stats/insights")).json()
    assert [(step["workflow"], step["count"]) for step in found["steps"]] == [("greet", 1)]


async def test_what_the_newest_runs_have_in_common_is_told(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW, broken=BROKEN, approval=APPROVAL)
    for workflow in ("greet", "broken", "broken", "approval"):
        run = (await http.post("/runs", json={"workflow": workflow})).json()["id"]
        await http.post(f"/runs/{run}/wait")
    found = (await http.get("/stats/insights")).json()
    (failure,) = found["failures"]
    assert (failure["workflow"], failure["count"]) == ("broken", 2)
    assert "no such card" in failure["cause"]
    (wait,) = found["waits"]
    assert (wait["workflow"], wait["kind"], wait["name"], wait["count"]) == ("approval", "task", "review", 1)
    steps = {(step["workflow"], step["step"]): step for step in found["steps"]}
    assert steps.keys() == {("greet", "hello"), ("broken", "add")}  # who waits for people is not slow
    assert steps["broken", "add"]["count"] == 2
    assert found["costs"] == []
    assert found["sampled"] == {"failed": 2, "waiting": 1, "runs": 4}


async def test_a_token_for_some_workflows_sees_the_numbers_of_those_only(engine: Engine) -> None:
    app = create_app(engine)
    admin = await made(engine, "admin")
    async with client(app, admin) as http:
        await deployed(http, greet=FLOW, broken=BROKEN)
        for workflow in ("greet", "broken"):
            run = (await http.post("/runs", json={"workflow": workflow, "id": workflow})).json()["id"]
            await http.post(f"/runs/{run}/wait")
    narrow = await made(engine, "viewer", workflow="greet")
    async with client(app, narrow) as http:
        items = (await http.get("/stats/history")).json()["items"]
        assert {item["workflow"] for item in items} == {"greet"}
        found = (await http.get("/stats/insights")).json()
        assert found["failures"] == []
        assert {step["workflow"] for step in found["steps"]} == {"greet"}
        assert (await http.get("/runs/broken/steps")).status_code == 404


async def test_the_steps_of_a_run_are_told_whatever_its_dialect(http: httpx.AsyncClient) -> None:
    await deployed(http, approval=APPROVAL)
    await http.post("/runs", json={"workflow": "approval", "id": "p"})
    await http.post("/runs/p/wait")
    (step,) = (await http.get("/runs/p/steps")).json()["items"]
    assert (step["kind"], step["name"], step["status"]) == ("task", "review", "open")


def test_costs_are_added_up_and_the_dearest_comes_first() -> None:
    def used(workflow: str, usd: float) -> dict[str, object]:
        usage = {"input_tokens": 10, "output_tokens": 2, "usd": usd}
        return {"workflow": workflow, "stats": {"usage": usage}}

    found = insights.costs([used("a", 0.1), used("b", 0.5), used("a", 0.2), {"workflow": "c", "stats": {}}])
    assert [(one["workflow"], one["runs"], round(one["usd"], 3)) for one in found] == [
        ("b", 1, 0.5),
        ("a", 2, 0.3),
    ]
    assert found[1]["input_tokens"] == 20
