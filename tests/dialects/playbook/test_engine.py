"""Playbooks in a real engine: retried, cancelled, restarted, patched, watched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, RunFailed
from treadle.tools.protocol import Outcome, ToolCall

from .harness import compile_text

# Also on PostgreSQL, with a worker behind NATS.
pytestmark = pytest.mark.house


class Flaky:
    """Fails until it is repaired; waits for ever when told to."""

    kind = "flaky"
    idempotent = True

    def __init__(self) -> None:
        self.broken = True
        self.calls = 0
        self.cancelled = asyncio.Event()
        self.begun = asyncio.Event()

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        self.calls += 1
        if config.get("forever"):
            self.begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        if self.broken:
            return Outcome.failed("server_error", "still broken")
        return Outcome(result=config.get("value"))

    async def close(self) -> None: ...


TWO_STEPS = """
metadata: {name: two}
workflow:
  - {step: a, tool: {kind: noop, result: 1}, next: {arcs: [{step: b, args: {n: "{{ event.result }}"}}]}}
  - {step: b, tool: {kind: flaky, value: "{{ args.n }}"}}
"""


def write(folder: Path, text: str, name: str = "pb.yaml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


async def start(engine: Engine, file: str, **more: Any) -> Any:
    (definition,) = engine.load(file)
    return await engine.start(definition, **more)


async def test_a_failed_run_is_retried_from_where_it_failed(tmp_path: Path) -> None:
    tool = Flaky()
    async with Engine("memory:") as engine:
        engine.register(tool)
        run = await start(engine, write(tmp_path, TWO_STEPS))
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout=10)
        assert caught.value.error is not None
        assert caught.value.error["class"] == "transport"
        tool.broken = False
        await engine.retry(run.id)
        assert await run.result(timeout=10) == 1
        shown = await run.show()
        assert {name: step["runs"] for name, step in shown["state"]["steps"].items()} == {"a": 1, "b": 2}
        assert (await engine.replay(run.id))["equal"]


async def test_cancel_reaches_a_running_tool(tmp_path: Path) -> None:
    tool = Flaky()
    async with Engine("memory:") as engine:
        engine.register(tool)
        run = await start(
            engine, write(tmp_path, "workflow: [{step: a, tool: {kind: flaky, forever: true}}]")
        )
        await asyncio.wait_for(tool.begun.wait(), 10)
        await engine.cancel(run.id, "enough")
        await asyncio.wait_for(tool.cancelled.wait(), 10)
        shown = await run.show()
        assert (shown["status"], shown["error"]["message"]) == ("cancelled", "enough")


async def test_cancel_cascades_to_children(tmp_path: Path) -> None:
    write(tmp_path, "workflow: [{step: s, tool: {kind: await, signal: never}}]", "child.yaml")
    parent = write(tmp_path, "workflow: [{step: p, tool: {kind: playbook, path: child}}]")
    async with Engine("memory:") as engine:
        run = await start(engine, parent)
        shown = await run.settled(timeout=10)
        (child,) = shown["children"]
        await engine.cancel(run.id)
        status = (await (await engine.run(child)).settled(timeout=10))["status"]
        assert status == "cancelled"


async def test_a_restart_loses_no_gate_no_signal_and_no_loop(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    text = """
metadata: {name: durable}
workflow:
  - step: each
    loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel}}
    tool: [{name: go, kind: await, signal: go}, {kind: noop, name: out, result: "{{ n * 10 + go.add }}"}]
    next: {arcs: [{step: gate}]}
  - step: gate
    spec: {policy: {admit: {rules: [{when: "{{ ctx.open }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}}
    tool: {kind: noop, result: "{{ each.results }}"}
"""
    file = write(tmp_path, text)
    async with Engine(store) as engine:
        run = await start(engine, file, id="d1")
        assert (await run.settled(timeout=10))["status"] == "waiting"
        await engine.signal("d1", "go", {"add": 1})
    async with Engine(store) as engine:
        await engine.signal("d1", "go", {"add": 2})
        await engine.signal("d1", "go", {"add": 3})
        run = await engine.run("d1")
        shown = await run.settled(timeout=10)
        assert [item["kind"] for item in shown["waiting_for"]] == ["gate"]
    async with Engine(store) as engine:
        await engine.patch("d1", {"open": True})
        run = await engine.run("d1")
        assert await run.result(timeout=10) == [11, 22, 33]
        assert (await engine.replay("d1"))["equal"]


async def test_an_unknown_tool_stays_open_and_says_so(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    file = write(tmp_path, "workflow: [{step: a, tool: {kind: teleport, to: mars}}]")
    async with Engine(store) as engine:
        run = await start(engine, file, id="t1")
        async with asyncio.timeout(10):
            async for event in run.events():
                if event["type"] == "work.unavailable":
                    break
    engine = Engine(store)

    @engine.tool("teleport")
    def teleport(to: str) -> str:
        return f"on {to}"

    async with engine:
        assert await (await engine.run("t1")).result(timeout=10) == "on mars"


async def test_a_parallel_loop_of_plain_functions(tmp_path: Path) -> None:
    engine = Engine("memory:")

    @engine.tool("square")
    def square(n: int) -> int:
        return n * n

    text = """
workflow:
  - step: each
    loop: {in: "{{ range(2500) }}", iterator: n, spec: {mode: parallel, max_in_flight: 100}}
    tool: {kind: square, n: "{{ n }}"}
    next: {arcs: [{step: total}]}
  - {step: total, tool: {kind: noop, result: "{{ each.results | sum }}"}}
"""
    async with engine:
        run = await start(engine, write(tmp_path, text))
        assert await run.result(timeout=60) == sum(n * n for n in range(2500))
        shown = await run.show()
        assert shown["state"]["steps"]["each"]["result"]["results"]["kind"] == "manifest"


async def test_strict_is_asked_of_the_loader(tmp_path: Path) -> None:
    compile_text("workflow: [{step: a, tool: {kind: noop}}]", strict=True)
    async with Engine("memory:") as engine:
        problems = engine.check(
            write(tmp_path, "workflow: [{step: a, tool: {kind: noop, set: {ctx.a: 1}}}]"), strict=True
        )
        assert [problem.code for problem in problems] == ["spelling_b"]


class Interrupted:
    """Raises what is no Exception, as a client library does whose own task was cancelled."""

    kind = "interrupted"
    idempotent = True

    def __init__(self, *, sync: bool) -> None:
        self.sync = sync
        self.calls = 0

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        self.calls += 1
        if self.calls < 3:
            raise asyncio.CancelledError
        return Outcome(result=self.calls)

    async def close(self) -> None: ...


@pytest.mark.parametrize("sync", [True, False])
async def test_whatever_a_tool_raises_goes_through_the_policy_of_its_task(tmp_path: Path, sync: bool) -> None:
    text = """
    workflow:
      - step: a
        tool:
          kind: interrupted
          spec:
            policy:
              rules:
                - {when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 5, delay: 0}}
    """
    async with Engine("memory:") as engine:
        engine.register(Interrupted(sync=sync))
        run = await start(engine, write(tmp_path, text))
        assert await run.result(timeout=10) == 3
        failed = [e for e in await engine.events_after(run.id, 0) if e["type"] == "task.attempt.failed"]
        assert [e["error"]["code"] for e in failed] == ["CancelledError", "CancelledError"]
