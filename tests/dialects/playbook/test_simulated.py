"""One playbook with everything that suspends, under the simulator's faults.

Retries with delays, timers, children, non-idempotent tasks with durable checkpoints, a gate that
another branch opens, chunks of loop results: whatever dies, the run ends as if nothing had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from treadle.dialects.playbook import DIALECT
from treadle.kernel.machine import Machine
from treadle.kernel.model import Started
from treadle.performers.playbook.performer import PipelinePerformer
from treadle.runtime.ports import NewRun
from treadle.testing.sim import Action, SimWorld, simulate
from treadle.tools.protocol import Outcome, ToolCall
from treadle.work.job import Performer

from .harness import FakeTool, compile_text, echo

ERRAND = """
metadata: {name: errand}
executor: {spec: {final_step: report}}
workflow:
  - {step: fork, next: {spec: {mode: inclusive}, arcs: [{step: each}, {step: gated}, {step: opener}]}}
  - step: each
    loop: {in: "{{ range(4) }}", iterator: n, spec: {mode: parallel, max_in_flight: 3, policy: {exec: EXEC}}}
    tool:
      - name: flaky
        kind: flaky
        n: "{{ n }}"
        spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 4, delay: 3, backoff: linear}}]}}
      - {name: careful, kind: careful, n: "{{ flaky.n }}"}
      - {name: nap, kind: wait, seconds: 5}
      - {name: sub, kind: workflow, workflow: helper, args: {n: "{{ careful }}"}}
      - {name: out, kind: echo, value: "{{ sub.twice }}"}
    next: {arcs: [{step: joined, args: {sum: "{{ event.result.results | sum }}"}}]}
  - step: gated
    spec: {policy: {admit: {rules: [{when: "{{ ctx.open }}", then: {allow: true}}, {else: {then: {allow: false}}}]}}}
    tool: {kind: echo, value: through}
    next: {arcs: [{step: joined, args: {said: "{{ event.result }}"}}]}
  - step: opener
    tool: [{kind: wait, seconds: 2}, {kind: noop, name: open, spec: {policy: {rules: [{else: {then: {do: continue, set_ctx: {open: true}}}}]}}}]
  - step: joined
    spec: {policy: {admit: {join: {from: [each, gated], mode: all}}}}
    tool: {kind: echo, value: "{{ args.tokens }}"}
  - {step: report, tool: {kind: echo, value: ["{{ args.status }}", "{{ joined }}"]}}
"""
HELPER = """
metadata: {name: helper}
workflow:
  - {step: double, tool: {kind: echo, value: {twice: "{{ workload.n * 2 }}"}}}
"""


def flaky(config: dict[str, Any], call: ToolCall) -> Any:
    if call.attempt <= config["n"]:
        return Outcome.failed("connection", "not yet")
    return {"n": config["n"]}


class Errands:
    exec = "distributed"

    def __init__(self, rng: Random) -> None:
        self.keys: Counter[str] = Counter()
        self.definitions = [compile_text(ERRAND.replace("EXEC", self.exec)), compile_text(HELPER)]
        self.machines: Mapping[str, Machine] = {"playbook": DIALECT.machine}
        tools = {
            "echo": FakeTool("echo", echo),
            "flaky": FakeTool("flaky", flaky),
            "careful": FakeTool("careful", self.careful, idempotent=False),
        }
        self.performers: Mapping[str, Performer] = {"step": PipelinePerformer(tools)}

    def careful(self, config: dict[str, Any], call: ToolCall) -> Any:
        self.keys[call.idempotency_key] += 1
        return config["n"]

    def actions(self, rng: Random) -> list[Action]:
        errand = self.definitions[0]
        create = NewRun("playbook", errand.name, errand.version, errand.digest)
        return [
            Action(
                f"start {n}",
                rng.randrange(3_000),
                f"run-{n}",
                Started(definition=errand.digest, input={}, seed=rng.randbytes(16)),
                create=create,
            )
            for n in range(2)
        ]

    def endless(self, workflow: str) -> bool:
        return False

    def check(self, world: SimWorld) -> None:
        by_id = {life.id: life for life in world.journals.lives.values()}
        for n in range(2):
            last = by_id[f"run-{n}"].records[-1]
            assert last["status"] == "completed", last.get("error")
            assert last["result"] == ["completed", [{"sum": 12}, {"said": "through"}]]
        # However often a task was repeated, it was one piece of work: four items, two runs.
        assert len(self.keys) == 8


class LocalErrands(Errands):
    exec = "local"


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("errands", [Errands, LocalErrands])
def test_everything_that_suspends_ends_right_under_faults(errands: type[Errands], seed: int) -> None:
    assert simulate(seed, errands).records > 0
