"""The examples do what their first lines say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle.dialects.process import DIALECT
from treadle.engine import Engine, Run
from treadle.lang.text import parse
from treadle.testing.clock import VirtualClock

HERE = Path(__file__).parents[3] / "examples" / "process"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(clock: VirtualClock) -> AsyncIterator[Engine]:
    async with clock.engine("memory:") as engine:
        yield engine


async def begun(engine: Engine, clock: VirtualClock, file: str, input: Any) -> Run:
    (definition,) = engine.load(str(HERE / file))
    run = await engine.start(definition.digest, input)
    await clock.settle()
    return run


async def done(engine: Engine, clock: VirtualClock, role: str, answer: Any) -> dict[str, Any]:
    """The first task of a role, claimed and completed."""
    row = (await engine.tasks(role=role))[0]
    await engine.task_claim(row["id"], user="ann", roles=[role])
    await engine.task_complete(row["id"], answer, user="ann")
    await clock.settle()
    return row


@pytest.mark.house
async def test_renewal_with_approval_and_rework(engine: Engine, clock: VirtualClock) -> None:
    cheap = await begun(engine, clock, "renewal.py", {"policy_id": "P-1"})
    assert (await cheap.result(timeout=60))["total"] == 800
    run = await begun(engine, clock, "renewal.py", {"policy_id": "P-7", "claims": 3})
    first = await done(engine, clock, "underwriter", {"answer": "rework", "discount": 100})
    assert first["payload"] == {"policy": "P-7", "total": 1250, "round": 1}
    second = await done(engine, clock, "underwriter", {"answer": "approve"})
    assert second["payload"] == {"policy": "P-7", "total": 1150, "round": 2}
    assert await run.result(timeout=60) == {
        "renewed": True,
        "total": 1150,
        "rounds": 2,
        "last_invoice": "invoice for water at 100",
    }
    rejected = await begun(engine, clock, "renewal.py", {"policy_id": "P-8", "claims": 2})
    await done(engine, clock, "underwriter", {"answer": "reject"})
    assert await rejected.result(timeout=60) == {"renewed": False}


@pytest.mark.house
async def test_order_with_parallel_checks_a_deadline_and_escalation(
    engine: Engine, clock: VirtualClock
) -> None:
    lines = [{"sku": "lamp", "count": 1}]
    run = await begun(engine, clock, "order.yaml", {"order": "o-1", "customer": "c-13", "lines": lines})
    assert [row["name"] for row in await engine.tasks(reference="o-1")] == ["release"]
    await done(engine, clock, "accounting", {"ok": True})
    await clock.advance(4 * 3600)
    assert await engine.tasks(role="warehouse") == []
    await done(engine, clock, "warehouse manager", {"by": "the boss"})
    assert await run.result(timeout=60) == {
        "shipped": True,
        "parcel": "parcel-of-o-1",
        "packed_by": "the boss",
    }
    late = await begun(engine, clock, "order.yaml", {"order": "o-2", "customer": "c-13", "lines": lines})
    await clock.advance(86400)
    assert await late.result(timeout=60) == {"shipped": False, "why": "nobody decided"}


@pytest.mark.house
async def test_onboarding_with_sub_processes_and_documents_by_signal(
    engine: Engine, clock: VirtualClock
) -> None:
    run = await begun(engine, clock, "onboarding.yaml", {"name": "Ada Byron", "courses": ["safety", "tools"]})
    assert await engine.signal_reference("Ada Byron", "documents", ["passport.pdf"]) == [run.id]
    await clock.settle()
    failed = await done(engine, clock, "trainer", {"passed": False})
    assert failed["payload"] == {"course": "safety", "attempt": 1}
    await clock.advance(86400)
    assert (await done(engine, clock, "trainer", {"passed": True}))["payload"]["attempt"] == 2
    await done(engine, clock, "trainer", {"passed": True})
    assert await run.result(timeout=60) == {"login": "ada.byron", "passed": "safety, tools", "documents": 1}
    await clock.advance(1)
    (welcome,) = await engine.list(workflow="Welcome")
    shown = await (await engine.run(welcome["id"])).show()
    assert shown["result"] == "Welcome Ada Byron, your login is ada.byron"


async def test_onboarding_without_documents(engine: Engine, clock: VirtualClock) -> None:
    run = await begun(engine, clock, "onboarding.yaml", {"name": "Bob"})
    await clock.advance(14 * 86400)
    shown = await run.show()
    assert (shown["status"], shown["error"]["code"]) == ("failed", "NO_DOCUMENTS")


@pytest.mark.parametrize("file", [*sorted(path.name for path in HERE.glob("*.yaml")), "renewal.py"])
def test_examples_export_to_every_format(file: str) -> None:
    (definition,) = Engine("memory:").load(str(HERE / file))
    text = DIALECT.export(definition, "yaml")
    again, problems = DIALECT.compile(parse(text))
    assert again is not None, list(problems)
    assert again.digest == definition.digest
    space: dict[str, Any] = {}
    exec(DIALECT.export(definition, "python"), space)
    assert [v.definition.digest for v in space.values() if type(v).__name__ == "Process"] == [
        definition.digest
    ]
