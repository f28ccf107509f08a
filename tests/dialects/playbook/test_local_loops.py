"""`loop.spec.policy.exec: local`: one lease for many iterations, the same outcome as `distributed`.

PLAYBOOK §4: only who runs the iterations differs; events, results, counts, failure modes, ctx
rules and isolation do not, and a killed worker's lease goes on after the last finished task.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle import Engine
from treadle.tools.protocol import Outcome, ToolCall
from treadle.work.job import StaysOpen

from .harness import Lab

BEST = "spec: {policy: {failure: {mode: best_effort}}}"
SETTER = """
        tool:
          - {kind: noop, name: a, spec: {policy: {rules: [{else: {then: {do: continue, set_iter: {was: "{{ ctx.k }}"}, set_ctx: {k: "{{ iter.item }}"}}}}]}}}
          - {kind: echo, name: b, value: ["{{ iter.item }}", "{{ iter.was }}", "{{ ctx.k }}", "{{ loop.index }}"]}"""
ECHO = """
        tool: {kind: echo, value: "{{ iter.item }}", fail: "{{ 'schema' if iter.item == 'bad' else none }}"}"""
BREAK = """
        tool:
          - {kind: echo, name: one, value: "{{ item }}", spec: {policy: {rules: [{when: "{{ item == 1 }}", then: {do: break}}]}}}
          - {kind: echo, name: two, value: ["{{ one }}", "{{ _prev }}", "{{ iter.index }}"]}"""
NAP = """
        tool: [{kind: wait, name: nap, seconds: "{{ item }}"}, {kind: echo, name: out, value: "{{ item }}"}]"""
RETRY = """
        tool: {kind: flaky, name: f, n: "{{ iter.index }}", spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 3, delay: 2}}]}}}"""
BIG = """
        tool: {kind: echo, value: "{{ 'x' * 70000 }}"}"""


def flaky(config: dict[str, Any], call: ToolCall) -> Any:
    if call.attempt <= config["n"]:
        return Outcome.failed("connection", "not yet")
    return call.attempt


def text(items: str, body: str, mode: str, exec: str, policy: str = "", spec: str = "") -> str:
    return f"""
    workflow:
      - step: each
        {spec}
        loop:
          in: {items}
          iterator: item
          spec: {{mode: {mode}, max_in_flight: 3, policy: {{exec: {exec} {policy}}}}}{body}
        next:
          arcs:
            - {{step: after, when: "{{{{ event.name == 'loop.done' }}}}", args: {{all: "{{{{ event }}}}"}}}}
            - {{step: broken, when: "{{{{ event.name == 'step.failed' }}}}"}}
      - {{step: after, tool: {{kind: echo, value: ["{{{{ args.all.total }}}}", "{{{{ args.all.failed }}}}"]}}}}
      - {{step: broken, tool: {{kind: echo, value: broken}}}}
    """


def outcome(playbook: str) -> dict[str, Any]:
    """Everything a user can see, but for the order of events of different iterations, for addresses
    of stored payloads, and for times."""
    lab = Lab(playbook, {"flaky": flaky}).run({"n": 200})
    for _ in range(20):
        if lab.status == "waiting":
            lab.advance(2)
    lab.replays()
    each = lab.steps["each"]
    seen = Counter(
        (e["type"], e.get("step"), e.get("task"), e.get("iteration"), (e.get("error") or {}).get("kind"))
        for e in lab.driver.events
    )
    return {
        "status": lab.status,
        "result": lab.result,
        "ctx": lab.ctx,
        "stats": each["result"]["stats"] if each["result"] else None,
        "results": _plain(each["result"]["results"]) if each["result"] else None,
        "error": (each.get("error") or {}).get("kind"),
        "events": seen,
    }


def _plain(results: Any) -> Any:
    return [r.get("checksum", r) if isinstance(r, dict) else r for r in results]


SEQUENTIAL = [
    ("[c, a, b]", ECHO, "", ""),
    ("[]", ECHO, "", ""),
    ("{a: 1, b: 2}", ECHO, "", ""),
    ('"{{ range(workload.n) }}"', ECHO, "", ""),
    ('"{{ workload.n }}"', ECHO, "", ""),
    ("[a, bad, c, bad]", ECHO, "", ""),
    ("[a, bad, c, bad]", ECHO, "", BEST),
    ("[1, 1, 2]", SETTER, "", ""),
    ("[1, 2, 3]", SETTER, ", ctx: append", ""),
    ("[2, 1, 3]", BREAK, "", ""),
    ("[4, 2, 6]", NAP, "", ""),
    ("[0, 0, 0, 0]", RETRY, "", BEST),
    ("[1, 2, 3]", ECHO, ", reduce: sum", ""),
    ("[1, 2, 3]", BIG, "", ""),
]
PARALLEL = [
    ('"{{ range(workload.n) }}"', ECHO, "", ""),
    ("[]", ECHO, "", ""),
    ("[a, bad, c, bad]", ECHO, "", BEST),
    ("[1, 1, 2, 1]", SETTER, "", BEST),
    ("[1, 2, 3]", SETTER, ", ctx: last_write", ""),
    ("[3, 2, 1]", BREAK, "", ""),
    ("[4, 2, 6, 2, 2]", NAP, "", ""),
    ("[0, 0, 0, 0]", RETRY, "", BEST),
    ("[1, 2, 3]", BIG, ", reduce: collect", ""),
]


@pytest.mark.parametrize(("items", "body", "policy", "spec"), SEQUENTIAL)
def test_sequential_is_the_same(items: str, body: str, policy: str, spec: str) -> None:
    local, distributed = (
        outcome(text(items, body, "sequential", exec, policy, spec)) for exec in ("local", "distributed")
    )
    assert local == distributed


@pytest.mark.parametrize(("items", "body", "policy", "spec"), PARALLEL)
def test_parallel_is_the_same(items: str, body: str, policy: str, spec: str) -> None:
    local, distributed = (
        outcome(text(items, body, "parallel", exec, policy, spec)) for exec in ("local", "distributed")
    )
    if body is SETTER:
        # What a sibling had written when an iteration began depends on who was first, in both modes.
        local["results"] = [r and [r[0], r[2:]] for r in local["results"]]
        distributed["results"] = [r and [r[0], r[2:]] for r in distributed["results"]]
    assert local == distributed


@settings(max_examples=40, deadline=None)
@given(
    items=st.lists(st.sampled_from(["a", "b", "bad"]), max_size=12),
    mode=st.sampled_from(["sequential", "parallel"]),
    best=st.booleans(),
)
def test_any_list_ends_the_same(items: list[str], mode: str, best: bool) -> None:
    local, distributed = (
        outcome(text(str(items), ECHO, mode, exec, "", BEST if best else ""))
        for exec in ("local", "distributed")
    )
    if mode == "parallel" and not best and "bad" in items:
        # Which siblings were under way when one failed is a matter of time.
        for seen in (local, distributed):
            first = items.index("bad")
            assert seen["results"][: first + 1] == [*items[:first], None]
            assert (seen["status"], seen["error"], seen["result"]) == ("completed", "schema", "broken")
        return
    assert local == distributed


def test_one_lease_holds_many_iterations_and_large_loops_take_several() -> None:
    lab = Lab(text('"{{ range(200) }}"', ECHO, "sequential", "local")).start()
    opened = []
    while open_ := lab.driver.open("step"):
        assert len(open_) == 1
        opened.append(open_[0].params.get("lease", {}).get("first"))
        lab.perform(open_[0])
    assert opened == [0, 64, 128, 192, None]
    assert lab.steps["each"]["result"]["results"] == list(range(200))


def test_iteration_events_stand_in_order_around_their_tasks() -> None:
    lab = Lab(text("[a, b]", ECHO, "sequential", "local")).run()
    mine = [e["type"] for e in lab.driver.events if e.get("iteration") == 1]
    assert mine == ["loop.iteration.started", "task.started", "task.done", "loop.iteration.done"]


class Killed(StaysOpen):
    """What a worker dies of; no handler may take it for an error of a tool."""


@pytest.mark.parametrize("at", range(8))
def test_a_killed_worker_s_lease_goes_on_after_the_last_finished_task(at: int) -> None:
    calls: list[tuple[str, int]] = []

    def deadly(config: dict[str, Any], call: ToolCall) -> Any:
        if len(calls) == at and "killed" not in keys:
            keys["killed"] = "yes"
            raise Killed
        calls.append((config["part"], config["n"]))
        assert keys.setdefault(call.idempotency_key, str(calls[-1])) == str(calls[-1])
        return config["n"]

    keys: dict[str, str] = {}
    body = """
        tool:
          - {kind: deadly, name: one, part: one, n: "{{ iter.item }}"}
          - {kind: deadly, name: two, part: two, n: "{{ one * 10 }}"}"""
    lab = Lab(text("[1, 2, 3, 4]", body, "sequential", "local"), {"deadly": deadly})
    lab.tools["deadly"].idempotent = False
    lab.start()
    (lease,) = lab.driver.open("step")
    with pytest.raises(Killed):
        lab.perform(lease)
    lab.work().replays()
    assert lab.steps["each"]["result"]["results"] == [10, 20, 30, 40]
    assert calls == [
        (part, n * (1 if part == "one" else 10)) for n in (1, 2, 3, 4) for part in ("one", "two")
    ]
    started = [e["iteration"] for e in lab.events("loop.iteration.started")]
    assert sorted(started) == [0, 1, 2, 3]


def test_what_no_worker_here_can_do_stays_open_with_what_was_done() -> None:
    body = "\n        tool: [{kind: echo, name: a, value: 1}, {kind: teleport, name: b}]"
    lab = Lab(text("[1, 2]", body, "sequential", "local")).start()
    (lease,) = lab.driver.open("step")
    with pytest.raises(StaysOpen):
        lab.perform(lease)
    assert lab.checkpoints[lease.id]["frames"][0][1]["pc"] == 1


class Gauge:
    """An asynchronous tool that knows how many of its calls run at once."""

    kind = "gauge"
    idempotent = True

    def __init__(self) -> None:
        self.now = self.most = self.cancelled = 0
        self.full = asyncio.Event()

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == 3:
            self.full.set()
        try:
            if config["n"] == "bad":
                await self.full.wait()
                return Outcome.failed("schema", "bad")
            if config["n"] == "forever":
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            return Outcome(result=config["n"])
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1

    async def close(self) -> None: ...


GAUGE = """
        tool: {kind: gauge, n: "{{ iter.item }}"}"""


async def finished(tmp_path: Path, items: str, gauge: Gauge) -> dict[str, Any]:
    file = tmp_path / "pb.yaml"
    file.write_text(text(items, GAUGE, "parallel", "local"))
    async with Engine("memory:") as engine:
        engine.register(gauge)
        (definition,) = engine.load(str(file))
        run = await engine.start(definition)
        shown = await run.settled(timeout=20)
        assert (await engine.replay(run.id))["equal"]
        return shown


@pytest.mark.house
async def test_parallel_iterations_run_side_by_side_up_to_the_limit(tmp_path: Path) -> None:
    gauge = Gauge()
    shown = await finished(tmp_path, '"{{ range(100) }}"', gauge)
    assert shown["state"]["steps"]["each"]["result"]["results"] == list(range(100))
    assert gauge.most == 3


@pytest.mark.house
async def test_a_failed_iteration_cancels_its_siblings(tmp_path: Path) -> None:
    gauge = Gauge()
    shown = await finished(tmp_path, "[bad, forever, forever, 1, 2]", gauge)
    each = shown["state"]["steps"]["each"]
    assert each["result"] == {
        "results": [None, None, None],
        "stats": {"total": 5, "success": 0, "failed": 3},
    }
    assert (each["error"]["kind"], gauge.cancelled) == ("schema", 2)


def test_a_time_limit_takes_the_lease_back() -> None:
    spec = "spec: {policy: {lifecycle: {timeout_s: 5}}}"
    lab = Lab(text("[1, 2, 3]", ECHO, "sequential", "local", spec=spec)).start()
    lab.driver.advance(5)
    lab.work().replays()
    each = lab.steps["each"]
    assert (each["error"]["kind"], each["result"]["stats"]) == (
        "timeout",
        {"total": 3, "success": 0, "failed": 1},
    )
    assert lab.result == "broken"
