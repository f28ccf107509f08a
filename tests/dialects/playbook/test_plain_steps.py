"""A step of one task that nothing looks at is done without a pipeline around it: nobody can tell."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.kernel.model import make_reference
from treadle.kernel.values import digest, to_value
from treadle.performers.playbook.pipeline import PipelineRun
from treadle.tools.functions import FunctionTool
from treadle.work.job import Done

from .harness import Lab

PLAYBOOK = """
workload: {items: [3, 4], name: x}
executor: {spec: {policy: {limits: {max_payload_bytes: 200}}}}
workflow:
  - step: begin
    tool: {kind: f, n: "{{ args.n | default(workload.items[0]) }}", given: "{{ workload.name }}"}
    next:
      arcs:
        - {step: each, when: "{{ event.name == 'step.done' }}", args: {n: 7, got: "{{ event.result }}"}}
        - {step: failed, args: {why: "{{ event.error.kind }}", text: "at {{ begin.error.code }}"}}
  - step: each
    loop: {in: "{{ workload.items }}", iterator: item}
    tool: {kind: f, n: "{{ iter.item }}", given: ["{{ iter.index }}", "{{ args.got }}", "{{ _task.name }}", "{{ _attempt }}"]}
    next: {arcs: [{step: last, args: {n: "{{ iter.index | default(1) }}"}}]}
  - step: last
    args: {n: "{{ event.total }}"}
    tool: {kind: f, n: "{{ args.n }}"}
  - step: failed
    tool: {kind: f, n: 0, given: "{{ workload.absent }}"}
"""


def fails(n: int, given: Any = None) -> Any:
    raise ValueError(f"no {n}")


def says_error(n: int, given: Any = None) -> Any:
    return {"status": "error", "error": {"kind": "auth", "message": "closed", "code": given}}


RESULTS: dict[str, Any] = {
    "a number": lambda n, given=None: n + 1,
    "a truth": lambda n, given=None: n > 3,
    "nothing": lambda n, given=None: None,
    "zero from below": lambda n, given=None: -0.0 * n,
    "a text": lambda n, given=None: f"{n} {given}",
    "a long text": lambda n, given=None: "ä" * 300,
    "a mapping": lambda n, given=None: {"second": n, "first": [given, {"b": 1, "a": None}]},
    "a large mapping": lambda n, given=None: {"rows": [[n, "x" * 20]] * 20},
    "a list": lambda n, given=None: [n, given],
    "what looks like a reference": lambda n, given=None: make_reference(checksum=digest(n), size=1),
    "a number beyond all": lambda n, given=None: 2**70,
    "no value": lambda n, given=None: object(),
    "an exception": fails,
    "a result that says error": says_error,
}


# Floats, what is stored, and what goes through a pipeline after all.
COPIED = {
    "zero from below",
    "a long text",
    "a large mapping",
    "what looks like a reference",
    "no value",
    "an exception",
    "a result that says error",
}


class Watched(Lab):
    """Keeps what the performer returned."""

    receipts: list[Done]

    def done(self, intent: Any) -> Done:
        self.receipts.append(done := super().done(intent))
        return done


def ran(function: Callable[..., Any], *, plainly: bool) -> Watched:
    lab = Watched(PLAYBOOK)
    lab.receipts = []
    tool = FunctionTool("f", function, idempotent=True)
    # A function that looks at its call has a pipeline around it.
    tool.takes_call = not plainly
    lab.tools["f"] = tool  # type: ignore[assignment]  # the lab's own tools are fakes
    return lab.run().replays()  # type: ignore[return-value]  # it is the same lab


@pytest.mark.parametrize("name", RESULTS)
def test_the_journal_is_the_same(name: str) -> None:
    plain, piped = (ran(RESULTS[name], plainly=plainly) for plainly in (True, False))
    assert [stored.body for stored in plain.driver.journal] == [
        stored.body for stored in piped.driver.journal
    ]
    assert plain.driver.blobs == piped.driver.blobs


@pytest.mark.parametrize("name", RESULTS)
def test_what_is_said_to_be_canonical_is(name: str) -> None:
    receipts = ran(RESULTS[name], plainly=True).receipts
    told = [done for done in receipts if done.is_canonical]
    for done in told:
        assert repr([done.value, done.events]) == repr(to_value([done.value, done.events]))
    assert bool(told) == (name not in COPIED)


LONG = """
metadata: {name: long}
workflow:
  - step: a
    tool: {kind: hold, name: hold, step: a}
    next: {arcs: [{step: b}]}
  - step: b
    tool: [{kind: noop}, {kind: hold, name: hold, step: b}]
"""


@pytest.mark.house
async def test_a_task_that_takes_long_is_seen_to_have_begun(tmp_path: Path) -> None:
    file, released = tmp_path / "long.yaml", {"a": asyncio.Event(), "b": asyncio.Event()}
    file.write_text(LONG)
    told: list[dict[str, Any]] = []
    async with Engine("memory:") as engine, asyncio.timeout(30):

        @engine.tool("hold", idempotent=True)
        async def hold(step: str) -> str:
            await released[step].wait()
            return step

        run = await engine.start(engine.load(str(file))[0])
        async for event in run.events():
            told.append(event)
            if event["type"] == "task.started" and event["task"] == "hold":
                released[event["step"]].set()
        assert await run.result() == "b"
        assert (await engine.replay(run.id))["equal"]
    of_a = [event["type"] for event in told if event.get("step") == "a"]
    assert of_a[1:5] == ["step.started", "task.started", "task.done", "step.done"]
    assert [event["type"] for event in told].count("task.started") == 3


async def test_a_step_run_is_let_go_when_it_ends(tmp_path: Path) -> None:
    """Thousands of short ones may come until it is seen which of them take long."""
    (tmp_path / "short.yaml").write_text(
        "metadata: {name: short}\nworkflow: [{step: a, tool: {kind: short}}]\n"
    )
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:

        @engine.tool("short")
        async def short() -> int:
            return 1

        engine.deploy(tmp_path / "short.yaml")
        gc.collect()  # those of other tests
        for _ in range(3):
            assert await (await engine.start("short")).result() == 1
        for _ in range(20):  # a result is told before the job that brought it is quite over
            if not (left := [found for found in gc.get_objects() if isinstance(found, PipelineRun)]):
                break
            del left
            await asyncio.sleep(0.005)
        assert not [found for found in gc.get_objects() if isinstance(found, PipelineRun)]
