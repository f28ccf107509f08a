"""The examples of examples/playbook run as their first lines say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle import Engine

EXAMPLES = Path(__file__).parents[3] / "examples" / "playbook"


@pytest.mark.parametrize(
    ("name", "given", "result"),
    [
        ("words", {"text": "the quick brown fox"}, {"words": 4, "letters": 16, "lengths": [3, 5, 5, 3]}),
        ("retries", {"succeeds_at": 3}, "took 3 attempts"),
        ("retries", {"succeeds_at": 9}, "gave up: ConnectionError: attempt 4 was not lucky"),
    ],
)
async def test_example(name: str, given: dict[str, Any], result: Any) -> None:
    async with Engine("memory:") as engine:
        (definition,) = engine.load(str(EXAMPLES / f"{name}.yaml"))
        assert definition.warnings == ()
        run = await engine.start(definition, given)
        assert await run.result(timeout=30) == result


async def test_approval() -> None:
    async with Engine("memory:") as engine:
        (definition,) = engine.load(str(EXAMPLES / "approval.yaml"))
        run = await engine.start(definition)
        shown = await run.settled(timeout=10)
        assert [item["kind"] for item in shown["waiting_for"]] == ["gate"]
        await engine.patch(run.id, {"budget": 1000})
        shown = await run.settled(timeout=10)
        (task,) = shown["waiting_for"]
        assert task["name"] == "May Ann go to Oslo for 480?"
        await engine.task_claim(task["id"], user="ann", roles=["boss"])
        await engine.task_complete(task["id"], {"answer": "yes"}, user="ann", roles=["boss"])
        assert await run.result(timeout=10) == "booked Oslo"
