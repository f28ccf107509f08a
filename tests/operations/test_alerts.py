"""Alerts: one run for each occasion, in the commit that holds it, and never one for an alert."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.kernel.errors import DefinitionError
from treadle.testing import VirtualClock, assert_replays

TELL = """
dialect: process
name: tell
version: "1"
steps:
  - set: {state.told: {$: state.run}}
"""
BAD = """
dialect: process
name: bad
version: "1"
alerts: {failed: tell, late: {after: 1h, workflow: tell}}
steps:
  - await: go
  - fail: it went wrong
"""
# An alert that fails itself, and names itself for that.
LOOP = BAD.replace("name: bad", "name: loop").replace("tell", "loop").replace("  - await: go\n", "")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Engine]:
    for name, text in (("tell", TELL), ("bad", BAD), ("loop", LOOP), ("quiet", quiet())):
        (tmp_path / f"{name}.yaml").write_text(text)
    async with clock.engine(f"sqlite:///{tmp_path}/a.db", alerts={"failed": "tell"}) as engine:
        engine.deploy(str(tmp_path))
        yield engine


def quiet() -> str:
    """The same without alerts of its own."""
    return "\n".join(
        line for line in BAD.replace("name: bad", "name: quiet").splitlines() if "alerts" not in line
    )


async def told(engine: Engine) -> dict[str, Any]:
    rows = [row for row in await engine.list(limit=100) if "!" in row["id"]]
    return {row["id"]: (await (await engine.run(row["id"])).show())["input"] for row in rows}


async def test_a_run_that_fails_starts_the_workflow_that_its_definition_names(
    clock: VirtualClock, engine: Engine
) -> None:
    await engine.start("bad", id="r")
    await engine.signal("r", "go")
    await clock.settle()
    run = await (await engine.run("r")).show()
    assert run["status"] == "failed"
    assert list(await told(engine)) == [f"failed-{run['version_no']}!r"]
    (input,) = (await told(engine)).values()
    assert (input["run"], input["occasion"], input["error"]) == ("r", "failed", run["error"])
    await clock.advance(7200)
    assert len(await told(engine)) == 1
    await assert_replays(engine)


async def test_a_run_that_is_late_is_told_once_and_one_that_ended_never(
    clock: VirtualClock, engine: Engine
) -> None:
    await engine.start("bad", id="late")
    await engine.start("bad", id="ended")
    await engine.cancel("ended")
    await clock.advance(3600)
    assert list(await told(engine)) == ["late!late"]
    await clock.advance(7200)
    assert list(await told(engine)) == ["late!late"]
    await assert_replays(engine)


async def test_an_alert_that_fails_sets_off_none(clock: VirtualClock, engine: Engine) -> None:
    await engine.start("loop", id="r")
    await clock.settle()
    assert [name for name in await told(engine) if name.startswith("failed")] == ["failed-1!r"]
    assert await (await engine.run("failed-1!r")).show() is not None
    assert len(await engine.list(limit=100)) == 2


async def test_what_the_house_names_is_for_runs_whose_definitions_name_nothing(
    clock: VirtualClock, engine: Engine
) -> None:
    await engine.start("quiet", id="q")
    await engine.signal("q", "go")
    await clock.settle()
    assert [name.partition("!")[2] for name in await told(engine)] == ["q"]
    assert (await engine.list(workflow="tell"))[0]["status"] == "completed"


async def test_an_alert_that_cannot_start_leaves_the_run_as_it_is_and_is_noted(
    clock: VirtualClock, tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    async with clock.engine("memory:") as engine:
        engine.deploy(str(tmp_path / "bad.yaml"))
        await engine.start("bad", id="r")
        await engine.signal("r", "go")
        await clock.settle()
        assert (await (await engine.run("r")).show())["status"] == "failed"
        assert "alert.refused" in [row["code"] for row in await engine.diagnostics("r")]


@pytest.mark.parametrize(
    "wrong", ["{often: tell}", "{failed: 5}", "{late: tell}", "{late: {after: soon, workflow: tell}}"]
)
def test_alerts_that_mean_nothing_are_a_problem(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(BAD.replace("{failed: tell, late: {after: 1h, workflow: tell}}", wrong))
    with pytest.raises(DefinitionError) as refused:
        Engine("memory:").load(str(file))
    assert refused.value.code == "ALERTS_INVALID"
