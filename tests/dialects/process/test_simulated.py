"""Processes in the simulator: crashes, torn commits, lost and repeated messages, two owners, clock
jumps. Whatever the weather, each run ends with the result and the state of an undisturbed one.

`TREADLE_SIM_SEEDS=500 pytest tests/dialects/process/test_simulated.py` runs more of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from treadle.dialects.process import DIALECT
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Signal, Started
from treadle.lang.definition import Definition
from treadle.lang.text import parse
from treadle.runtime.ports import NewRun
from treadle.testing.sim import Action, simulate
from treadle.testing.sim.workers import SimJob
from treadle.work.job import Done, Performer

SEEDS = int(os.environ.get("TREADLE_SIM_SEEDS", "12"))

SUB = """
dialect: process
name: Sub
version: 1.0.0
steps:
  - call: {transport: work, payload: {$: start.n}, into: r}
  - if: {$: start.n > 2}
    then: [{wait: 200ms}]
  - complete: {$: result.r * 10}
"""

MAIN = """
dialect: process
name: Main
version: 1.0.0
tasks: {approve: {roles: [clerk], payload: {sum: {$: state.sum}}}}
steps:
  - set: {state.sum: 0, state.subs: 0, state.ticks: 0, state.rounds: ''}
  - reference: {$: start.ref}
  - repeat:
      each: i
      in: {$: start.items}
      do:
        - call: {transport: flaky, payload: {$: i}, into: r, retry: {attempts: 3, delay: 500ms, backoff: exponential}}
        - set: {state.sum: {$: state.sum + result.r}, state.rounds: {$: "concat(state.rounds, i_index, ';')"}}
        - if: {$: i % 2 == 0}
          then: [{wait: 300ms}]
          else:
            - child: {workflow: Sub, input: {n: {$: i}}, into: sub}
            - set: {state.subs: {$: state.subs + result.sub}}
  - repeat:
      while: {$: state.ticks < 2}
      max: 5
      do:
        - await: {signal: tick, into: t}
        - set: {state.ticks: {$: state.ticks + result.t.by}}
  - fork:
      left:
        - task: approve
        - set: {state.approved: {$: "payload.by in ['ann', 'bob']"}}
      middle:
        - call: {transport: never, timeout: 1s, on_timeout: [{set: {state.late: {$: error.class}}}]}
        - child: {workflow: Sub, input: {n: 5}, into: five}
      right:
        - repeat: {each: j, in: [1, 2], do: [{wait: 400ms}, {call: {transport: work, payload: {$: j}, into: last}}]}
  - continue_with: {workflow: Sub, input: {n: 1}}
  - complete: {sum: {$: state.sum}, subs: {$: state.subs}, rounds: {$: state.rounds}, ticks: {$: state.ticks}, approved: {$: state.approved},
               late: {$: state.late}, five: {$: result.five}, last: {$: result.last}, ref: {$: run.reference}}
"""


def definition(text: str) -> Definition:
    found, problems = DIALECT.compile(parse(text), transports=["work", "flaky", "never"])
    assert found is not None, list(map(str, problems))
    return found


def expected(items: list[int], ref: str) -> dict[str, Any]:
    return {
        "sum": sum(items),
        "subs": sum(item * 10 for item in items if item % 2),
        "rounds": "".join(f"{index};" for index in range(len(items))),
        "ticks": 2,
        "approved": True,
        "late": "timeout",
        "five": 50,
        "last": 2,
        "ref": ref,
    }


async def perform(job: Any) -> Done:
    assert isinstance(job, SimJob)
    transport = job.intent.params["transport"]
    if transport == "never":
        await job.never()
    # Only a first attempt has no key of an earlier one.
    if transport == "flaky" and job.intent.idempotency_key is None:
        raise TreadleError("try again", cls="transport", code="FLAKY")
    return Done(value=job.intent.params["payload"])


class Processes:
    """Several runs at once, their signals early, late and in any order."""

    def __init__(self, rng: Random) -> None:
        self.machines = {"process": DIALECT.machine}
        self._main, self._sub = definition(MAIN), definition(SUB)
        self.definitions = [self._main, self._sub]
        self.performers: Mapping[str, Performer] = {"call": perform}
        self._expected: dict[str, Any] = {}

    def endless(self, workflow: str) -> bool:
        return False

    def actions(self, rng: Random) -> list[Action]:
        found = []
        for number in range(rng.randrange(1, 4)):
            run, at_ms = f"run-{number}", rng.randrange(3_000)
            items = [rng.randrange(1, 6) for _ in range(rng.randrange(0, 4))]
            given = {"items": items, "ref": f"R{number}"}
            self._expected[run] = expected(items, f"R{number}")
            event = Started(definition=self._main.digest, input=given, seed=rng.randbytes(16))
            create = NewRun("process", "Main", "1.0.0", self._main.digest)
            found.append(Action(f"start {run}", at_ms, run, event, create=create))
            for tick in range(2):
                signal = Signal(name="tick", data={"by": 1, "token": tick})
                key = (f"run:{run}", f"signal:{tick}")
                when = at_ms + rng.randrange(8_000)
                found.append(
                    Action(f"tick {run} {tick}", when, run, signal, submission=key, after=f"start {run}")
                )
        return found

    def check(self, world: Any) -> None:
        by_id = {life.id: life for life in world.journals.lives.values()}
        for run, result in self._expected.items():
            last = by_id[run].records[-1]
            assert last["status"] == "completed", f"{run} is {last['status']}: {last.get('error')}"
            assert last["result"] == result, run
            started = [life for life in by_id if life.startswith(f"{run}.")]
            odd = result["subs"] // 10
            assert len(started) >= (2 if odd == 0 else 3)
            for child in started:
                assert by_id[child].records[-1]["status"] == "completed"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_processes_survive_any_weather(seed: int) -> None:
    # Clock jumps can add up to a quarter of an hour back; timers then take that long to be due again.
    simulate(seed, Processes, patience=400_000)
