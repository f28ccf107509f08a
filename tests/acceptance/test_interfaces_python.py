"""INTERFACES.md §2: the same product from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import treadle.sync
from treadle import Engine, RunFailed, TreadleError
from treadle.process import process, result, start, state
from treadle.testing import Outcome, ScriptedTool, VirtualClock, assert_replays


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "etl.yaml").write_text(
        "metadata: {name: etl}\nworkload: {day: none}\nworkflow: [{step: a, tool: {kind: noop, result: '{{ workload.day }}'}}]\n"
    )
    (folder / "order.yaml").write_text(
        "dialect: process\nname: Order\nversion: 1.0.0\nsteps: [{await: {signal: approved, into: a}}, {complete: {$: result.a.by}}]\n"
    )
    (folder / "bad.txt").write_text("not a definition")
    return folder


async def test_the_page_s_example(flows: Path) -> None:
    async with Engine("sqlite:///treadle.db") as engine:
        definitions = engine.deploy("flows/")
        assert sorted(definition.name for definition in definitions) == ["Order", "etl"]
        run = await engine.start("etl", {"day": "2026-11-15"}, id="etl-2026-11-15")
        assert run.id == "etl-2026-11-15"
        assert await run.result(timeout=60) == "2026-11-15"
        again = await engine.start("etl", {"day": "2026-11-15"}, id="etl-2026-11-15")
        assert again.id == run.id
        events = [event async for event in run.events()]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert "step.done" in [event["type"] for event in events]
        order = await engine.start("Order")
        await engine.signal(order.id, "approved", {"by": "ann"})
        assert await order.result(timeout=60) == "ann"
        assert (await order.show())["status"] == "completed"
        assert [record["seq"] for record in await order.journal()] == [1, 2]
        with pytest.raises(TreadleError) as refused:
            await engine.start("etl", {"day": "other"}, id="etl-2026-11-15")
        assert refused.value.code == "RUN_EXISTS"
        assert await assert_replays(engine) == 2


async def test_deploy_is_allowed_before_the_start(flows: Path) -> None:
    engine = Engine("memory:")
    (definition,) = engine.deploy("flows/etl.yaml")
    assert definition.name == "etl"
    async with engine:
        run = await engine.start("etl")
        assert await run.result(timeout=60) == "none"


async def test_a_failed_run_raises_with_the_error_attached() -> None:
    @process("Fails")
    def fails(p: Any) -> None:
        p.fail("no good")

    async with Engine("memory:") as engine:
        run = await engine.start(fails)
        with pytest.raises(RunFailed) as failed:
            await run.result(timeout=60)
    error = failed.value
    assert isinstance(error, TreadleError)
    assert "no good" in str(error)
    assert error.error is not None
    assert set(error.error) == {"class", "code", "message", "where", "details"}
    assert (error.cls, bool(error.code), bool(error.message)) == ("user", True, True)
    assert hasattr(error, "where")


async def test_result_times_out() -> None:
    @process("Waits")
    def waits(p: Any) -> None:
        p.await_signal("never")

    async with Engine("memory:") as engine:
        run = await engine.start(waits)
        with pytest.raises((TimeoutError, TreadleError)):
            await run.result(timeout=0.05)


async def test_tools_and_transports_by_decorator(flows: Path) -> None:
    (flows / "t.yaml").write_text(
        "metadata: {name: t}\nworkflow: [{step: a, tool: {kind: slack, args: {text: hi}}}]\n"
    )
    engine = Engine("memory:")

    @engine.tool("slack")
    def slack(text: str) -> dict[str, str]:
        return {"said": text}

    @engine.transport("billing")
    async def billing(payload: dict[str, Any]) -> dict[str, Any]:
        return {"billed": payload["n"] + 1}

    @process("Bill")
    def bill(p: Any) -> None:
        p.set(state.n, start.n)
        p.call("billing", payload={"n": state.n}, into="b")
        p.complete(result.b.billed)

    engine.deploy("flows/t.yaml")
    async with engine:
        assert await (await engine.start("t")).result(timeout=60) == {"said": "hi"}
        assert await (await engine.start(bill, {"n": 4})).result(timeout=60) == 5


async def test_an_unknown_tool_stays_open_and_says_so(flows: Path) -> None:
    (flows / "t.yaml").write_text(
        "metadata: {name: t}\nworkflow: [{step: a, tool: {kind: slack, args: {text: hi}}}]\n"
    )
    known = Engine("sqlite:///treadle.db", work=False)

    @known.tool("slack")
    def slack(text: str) -> str:
        return text

    known.deploy("flows/t.yaml")
    async with known:
        run = await known.start("t", id="t-1")
    async with Engine("sqlite:///treadle.db") as engine:
        run = await engine.run("t-1")
        await run.settled(timeout=30)
        shown = await run.show()
        assert shown["status"] in ("running", "waiting")
        said = (
            str([event async for event in run.events(follow=False)])
            + str(await engine.diagnostics("t-1"))
            + str(shown)
        )
        assert "slack" in said
    again = Engine("sqlite:///treadle.db")
    again.tool("slack")(slack)
    async with again:
        run = await again.run("t-1")
        assert await run.result(timeout=60) == "hi"


def test_sync(flows: Path) -> None:
    with treadle.sync.Engine("sqlite:///treadle.db") as engine:
        engine.deploy("flows/")
        run = engine.start("etl", {"day": "x"}, id="s")
        assert run.result(timeout=60) == "x"
        assert "step.done" in [event["type"] for event in run.events()]
        order = engine.start("Order")
        engine.signal(order.id, "approved", {"by": "bob"})
        assert order.result(timeout=60) == "bob"
        assert order.show()["status"] == "completed"


async def test_a_virtual_clock() -> None:
    @process("Reminder")
    def reminder(p: Any) -> None:
        p.wait("3d")
        p.complete("sent")

    clock = VirtualClock()
    async with clock.engine("memory:") as engine:
        run = await engine.start(reminder)
        await clock.advance(3 * 86400 - 1)
        assert (await run.show())["status"] == "waiting"
        await clock.advance(1)
        assert await run.result(timeout=60) == "sent"


async def test_the_plug_in_has_fixtures(
    treadle_engine: Engine, treadle_clock: VirtualClock, treadle_replays: Any
) -> None:
    @process("Late")
    def late(p: Any) -> None:
        p.await_signal("s", timeout="7d", on_timeout=lambda p: p.complete("late"))

    run = await treadle_engine.start(late)
    await treadle_clock.advance(7 * 86400)
    assert await run.result(timeout=60) == "late"
    assert await treadle_replays(run) == 1


async def test_validation_modes(flows: Path) -> None:
    (flows / "p.yaml").write_text(
        "dialect: process\nname: P\nversion: 1.0.0\nsteps: [{child: {workflow: Nobody}}]\n"
    )
    strict = Engine("memory:")
    with pytest.raises(TreadleError) as refused:
        strict.deploy("flows/p.yaml")
        async with strict:
            pass
    assert refused.value.cls == "definition"
    warn = Engine("memory:", validation="warn")
    warn.deploy("flows/p.yaml")
    async with warn:
        (row,) = await warn.definitions()
        assert row["status"] == "unavailable"
        assert "Nobody" in str(row["reasons"])


async def test_patch_and_cancel_from_python(flows: Path) -> None:
    (flows / "g.yaml").write_text(
        "metadata: {name: g}\nworkflow: [{step: a, spec: {policy: {admit: {rules: [{when: '{{ ctx.ok }}', then: {allow: true}}]}}}, tool: {kind: noop, result: done}}]\n"
    )
    engine = Engine("memory:")
    engine.deploy("flows/g.yaml")
    async with engine:
        run = await engine.start("g")
        await run.settled(timeout=30)
        await engine.patch(run.id, {"ok": True})
        assert await run.result(timeout=60) == "done"
        other = await engine.start("g")
        await engine.cancel(other.id)
        with pytest.raises(RunFailed):
            await other.result(timeout=60)


async def test_a_scripted_tool_answers_in_place_of_the_real_one(flows: Path) -> None:
    (flows / "h.yaml").write_text(
        "metadata: {name: h}\nworkflow: [{step: a, tool: {kind: http, url: 'http://nowhere/x', spec: {policy: {rules: "
        "[{when: \"{{ outcome.status == 'error' }}\", then: {do: retry, attempts: 3, delay: 0.01}}, {else: {then: {do: continue}}}]}}}}]\n"
    )
    http = ScriptedTool("http", [Outcome.failed("server_error", "busy"), OSError("gone"), {"data": [1]}])
    engine = Engine("memory:")
    engine.register(http)
    engine.deploy("flows/h.yaml")
    async with engine:
        assert await (await engine.start("h")).result(timeout=60) == {"data": [1]}
        assert await assert_replays(engine) == 1
    assert [call["url"] for call in http.calls] == ["http://nowhere/x"] * 3
