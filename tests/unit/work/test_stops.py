"""Code that raises what usually stops a process has failed, and only it; Ctrl-C still stops the process."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, flow
from treadle import reactive as rx
from treadle.agent import Skill
from treadle.kernel.errors import RunFailed
from treadle.kernel.stops import is_stop
from treadle.store.open import read_sqlite
from treadle.testing import assert_replays

SOON_S = 30.0
KINDS = [KeyboardInterrupt, SystemExit, GeneratorExit]
raising: list[type[BaseException]] = []

PLAYBOOK = """
metadata: {name: book, version: "1"}
workflow:
  - {step: one, tool: {kind: bad, timeout: 20}, next: {arcs: [{step: two, when: "{{ true }}"}]}}
  - {step: two, tool: {kind: abad}, next: {arcs: [{step: three, when: "{{ true }}"}]}}
  - {step: three, tool: {kind: abad, timeout: 20}, next: {arcs: [{step: four, when: "{{ true }}"}]}}
  - {step: four, tool: {kind: python, code: "import builtins; raise getattr(builtins, '%s')('mine')"}}
"""


def bad(*_: Any) -> Any:
    raise raising[-1]("mine")


async def abad(*_: Any) -> Any:
    await asyncio.sleep(0)
    raise raising[-1]("mine")


# Durable functions and reactive code belong to a module.
step_bad = flow.step(name="stops.bad")(bad)
step_abad = flow.step(name="stops.abad")(abad)


@flow.workflow(name="stops")
async def caught(ctx: flow.Context) -> list[str]:
    said = []
    for step in (step_bad, step_abad):
        try:
            await step()
        except flow.StepFailed as error:
            said.append(str(error))
    return said


@flow.step(name="stops.ends")
def ends() -> None:
    next(iter([]))


@flow.workflow(name="stops-ends")
async def ended(ctx: flow.Context) -> str:
    try:
        await ends()
    except flow.StepFailed as error:
        return str(error)
    return "nothing"


@flow.workflow(name="stops-itself")
async def itself(ctx: flow.Context) -> None:
    await ctx.sleep("1ms")
    raise raising[-1]("mine")


@rx.schema("s/Go@1")
@dataclass(frozen=True)
class Go:
    k: str


@rx.schema("s/State@1")
@dataclass
class State:
    said: str = ""


effect = rx.effect("s/work@1", params=Go, receipt=State)
effect.executor(abad)


@rx.workflow("s/flow@1", state=State, events=[Go], key="k", effects=[effect])
def reacts(state: Any, event: Any) -> Any:
    if isinstance(event, rx.Receipt):
        return rx.Output(State(f"{event.status} {event.error['message']}"))
    return rx.Output(State(), effects=[effect(Go("x"))])


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[BaseException]:
    raising.append(request.param)
    return request.param  # type: ignore[no-any-return]


def make(folder: Path) -> Engine:
    return Engine(f"sqlite:///{folder / 't.db'}")


async def test_what_a_task_of_a_playbook_raises_is_its_outcome(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    engine = make(tmp_path)
    engine.tool("bad")(bad)
    engine.tool("abad")(abad)
    (tmp_path / "book.yaml").write_text(PLAYBOOK % kind.__name__)
    engine.deploy(str(tmp_path / "book.yaml"))
    async with engine:
        run = await engine.start("book")
        with pytest.raises(RunFailed):
            await run.result(SOON_S)
        steps = (await run.show())["state"]["steps"]
        assert [steps[name]["error"]["code"] for name in ("one", "two", "three", "four")] == [
            kind.__name__
        ] * 4
        await assert_replays(engine)


async def test_what_a_transport_raises_stalls_its_process(tmp_path: Path, kind: type[BaseException]) -> None:
    engine = make(tmp_path)
    for name, function in (("bad", bad), ("abad", abad)):
        engine.transport(name)(function)
        (tmp_path / f"{name}.yaml").write_text(
            f"dialect: process\nname: {name}\nsteps: [{{call: {{transport: {name}, payload: {{}}}}}}, {{complete: 1}}]\n"
        )
        engine.deploy(str(tmp_path / f"{name}.yaml"))
    async with engine:
        for name in ("bad", "abad"):
            run = await engine.start(name)
            async with asyncio.timeout(SOON_S):
                with engine.watch(run.id) as watch:
                    while (shown := await run.show())["status"] != "stalled":
                        await watch.changed(poll_s=0.02)
            assert shown["error"]["message"] == f"{kind.__name__}: mine"
        await assert_replays(engine)


async def test_what_a_step_or_a_durable_function_raises_is_its_failure(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    engine = make(tmp_path)
    async with engine:
        said = await (await engine.start(caught)).result(SOON_S)
        assert [kind.__name__ in text for text in said] == [True, True]
        with pytest.raises(RunFailed):
            await (await engine.start(itself)).result(SOON_S)
        await assert_replays(engine)


async def test_an_iterator_that_is_at_its_end_is_a_failure_of_the_step(tmp_path: Path) -> None:
    async with make(tmp_path) as engine:
        run = await engine.start(ended)
        assert "StopIteration" in await run.result(SOON_S)
        await assert_replays(run)


async def test_what_an_executor_raises_is_its_receipt(tmp_path: Path, kind: type[BaseException]) -> None:
    engine = make(tmp_path)
    engine.deploy(rx.App("stops", [reacts]))
    async with engine:
        await engine.publish(Go("a"))
        async with asyncio.timeout(SOON_S):
            with engine.watch("") as watch:
                while not (said := await _said(engine)):
                    await watch.changed(poll_s=0.02)
        assert said == f"error {kind.__name__}: mine"
        await assert_replays(engine)


async def _said(engine: Engine) -> str:
    cell = await engine.cell(reacts, "a")
    return str((await cell.show())["state"]["said"]) if cell is not None else ""


async def test_what_a_tool_of_an_agent_raises_is_told_to_the_model(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    engine = make(tmp_path)
    skill = Skill("odd")
    skill.tool("bad")(lambda input, ctx: bad())
    skill.tool("abad")(abad)
    engine.register(skill)
    (tmp_path / "a.yaml").write_text(
        "id: t\nname: t\nentry: n\nnodes: {n: {name: N, instruction: x, skills: [odd]}}\nedges: []\n"
    )
    calls = [{"tool": tool, "input": {}} for tool in ("bad", "abad")]
    (tmp_path / "s.json").write_text(json.dumps({"run": {"n": [{"tool_calls": calls, "data": {"ok": 1}}]}}))
    engine.deploy(str(tmp_path / "a.yaml"))
    async with engine:
        run = await engine.start("t", {}, model=f"scripted:{tmp_path / 's.json'}")
        await run.result(SOON_S)
        results = [event async for event in run.events(follow=False) if event["type"] == "tool:result"]
        assert [kind.__name__ in str(event) for event in results] == [True, True]
        await assert_replays(engine)


# --- Ctrl-C ---------------------------------------------------------------------------------------


def _caught(code: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as found:
        code()
    return found.value


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_what_code_raises_is_no_stop(kind: type[BaseException]) -> None:
    def raises() -> None:
        try:
            raise kind
        finally:
            [1].copy()

    def again() -> None:
        try:
            raises()
        except BaseException:
            raise

    assert not is_stop(_caught(raises))
    assert not is_stop(_caught(again))


def test_a_signal_is_a_stop() -> None:
    # A suite that is started in the background of a shell ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert is_stop(_caught(lambda: signal.raise_signal(signal.SIGINT)))
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_end_of_a_coroutine_is_a_stop() -> None:
    found: list[BaseException] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        except BaseException as error:
            found.append(error)
            raise

    coroutine = waits()
    coroutine.send(None)
    coroutine.close()
    assert is_stop(found[0])


PROGRAM = """
    import asyncio, signal, sys, time
    from treadle import Engine

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored

    async def main():
        engine = Engine(sys.argv[1])

        @engine.tool("busy")
        async def busy():
            print("busy", flush=True)
            while True:  # it holds the loop: no cancellation reaches it
                time.sleep(0.01)

        engine.deploy(sys.argv[2])
        async with engine:
            await (await engine.start("busy", id="r1")).result()

    if sys.argv[3] == "run":
        asyncio.run(main())
    else:
        asyncio.new_event_loop().run_until_complete(main())
"""


@pytest.mark.parametrize("how", ["run", "loop"])
def test_ctrl_c_inside_a_tool_stops_the_process_and_leaves_the_work_open(tmp_path: Path, how: str) -> None:
    """`asyncio.run` takes the first one for a request, and the second one for an order."""
    file = tmp_path / "busy.yaml"
    file.write_text('metadata: {name: busy, version: "1"}\nworkflow: [{step: a, tool: {kind: busy}}]\n')
    store = tmp_path / "t.db"
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), f"sqlite:///{store}", str(file), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        deadline = time.monotonic() + SOON_S
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0 if how == "run" else SOON_S)
        said = process.communicate()[1]
    assert process.returncode == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said
    reads = read_sqlite(store)
    row = reads.run("r1")
    assert row is not None
    assert row.status == "running", "what was interrupted is done again by the next engine"
    reads.close()
