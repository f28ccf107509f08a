"""Random nets (routes, loops, failures, cycles with bounds) against a reference interpreter.

Same multiset of step-runs, same final status: with the machine alone, in any order of receipts, and
in the simulator under faults (crashes, lost and repeated messages, two owners).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.dialects.playbook import DIALECT
from treadle.dialects.playbook.compile import definition_of, read_playbook
from treadle.kernel.machine import Machine
from treadle.kernel.model import Started
from treadle.lang.definition import Definition
from treadle.lang.text import Document
from treadle.performers.playbook.performer import PipelinePerformer
from treadle.runtime.ports import NewRun
from treadle.testing.sim import Action, SimWorld, simulate
from treadle.work.job import Performer

from .harness import FakeTool, Lab, echo
from .reference import RefArc, RefNet, RefStep, as_playbook, reference_run


def compiled(net: RefNet) -> Definition:
    """Without the analysis, which refuses cycles of unguarded arcs; here tokens have a short life."""
    document = Document(as_playbook(net))
    body, problems, _ = read_playbook(document)
    assert body is not None, list(problems)
    assert not problems.errors, list(problems)
    return definition_of(document, body)


class NetLab(Lab):
    def __init__(self, net: RefNet) -> None:
        super().__init__("workflow: [{step: a, tool: {kind: noop}}]")
        self.definition = compiled(net)
        self.driver = type(self.driver)(DIALECT.machine, self.definition.body)


def random_net(rng: Random) -> RefNet:
    count = rng.randrange(1, 6)
    steps = []
    for _ in range(count):
        arcs = [
            RefArc(rng.randrange(count), rng.choice([None, "any", "ok", "error"]))
            for _ in range(rng.randrange(4))
        ]
        total = rng.randrange(0, 5)
        loop = (rng.randrange(0, total + 1), total) if rng.random() < 0.3 else None
        steps.append(
            RefStep(
                fails=rng.random() < 0.25,
                inclusive=rng.random() < 0.5,
                arcs=arcs,
                loop=loop,
                best_effort=rng.random() < 0.5,
            )
        )
    mode = rng.choice([None, None, "best_effort"])
    return RefNet(steps, life=rng.randrange(0, 4), mode=mode, final=rng.random() < 0.3)


def step_runs(events: list[dict[str, Any]]) -> Counter[str]:
    return Counter(event["step"] for event in events if event["type"] == "step.started")


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_machine_agrees_with_the_reference_in_any_order(rng: Random) -> None:
    net = random_net(rng)
    lab = NetLab(net).start()
    while open_ := lab.driver.open("step"):
        lab.perform(rng.choice(open_))
    runs, status = reference_run(net)
    assert lab.status == status
    assert step_runs(lab.driver.events) == runs
    if len(lab.driver.journal) < 25:
        lab.replays()


class Nets:
    """The simulator's workload: a few random nets, each started once."""

    def __init__(self, rng: Random) -> None:
        self.nets = [random_net(rng) for _ in range(4)]
        self.definitions = [compiled(net) for net in self.nets]
        self.machines: Mapping[str, Machine] = {"playbook": DIALECT.machine}
        self.performers: Mapping[str, Performer] = {
            "step": PipelinePerformer({"echo": FakeTool("echo", echo)})
        }

    def actions(self, rng: Random) -> list[Action]:
        found = []
        for number, definition in enumerate(self.definitions):
            event = Started(definition=definition.digest, input={}, seed=rng.randbytes(16))
            create = NewRun("playbook", definition.name, definition.version, definition.digest)
            found.append(
                Action(f"start {number}", rng.randrange(2_000), f"run-{number}", event, create=create)
            )
        return found

    def endless(self, workflow: str) -> bool:
        return False

    def check(self, world: SimWorld) -> None:
        by_id = {life.id: life for life in world.journals.lives.values()}
        for number, net in enumerate(self.nets):
            records = by_id[f"run-{number}"].records
            runs, status = reference_run(net)
            seen: list[dict[str, Any]] = []
            for record in records:
                seen += record["event"].get("events") or []
                seen += record.get("events") or []
            assert records[-1]["status"] == status
            assert step_runs(seen) == runs


@pytest.mark.parametrize("seed", range(24))
def test_nets_end_right_under_faults(seed: int) -> None:
    assert simulate(seed, Nets).records > 0
