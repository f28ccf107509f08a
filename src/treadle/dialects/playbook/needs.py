"""What a worker must be told: only what the templates of a step name (KERNEL §9.5).

The names were found by walking each template's syntax tree. A bare name may be a key of args, ctx,
iter or workload, or an earlier step: all that have it are sent, and the worker looks it up in the
same order as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from treadle.kernel.values import Value

from .short_forms import Use

# Names with a meaning of their own; every other name is looked up in the layers.
RESERVED: Final = frozenset(
    [
        "workload",
        "keychain",
        "ctx",
        "args",
        "input",
        "iter",
        "execution_id",
        "_prev",
        "_task",
        "_attempt",
        "outcome",
        "output",
        "event",
        "job",
        "loop",
    ]
)


class Needs(msgspec.Struct):
    """`None` for a scope means all of it, a list means these keys."""

    workload: list[str] | None = msgspec.field(default_factory=list)
    ctx: list[str] | None = msgspec.field(default_factory=list)
    steps: list[str] = msgspec.field(default_factory=list)
    keychain: list[str] | None = msgspec.field(default_factory=list)
    args: bool = False
    tasks: list[str] = msgspec.field(default_factory=list)
    # Whether any of it stands in the run's state.
    of_state: bool = False

    def add_workload(self, keys: list[str] | None) -> None:
        """What somebody else reads of the workload is told with it."""
        own = self.workload
        self.workload = None if own is None or keys is None else list(dict.fromkeys([*own, *keys]))
        self.of_state = self.workload != [] or self.ctx != [] or self.steps != []


def needs_of(uses: Iterable[Use], *, steps: frozenset[str], tasks: Iterable[str]) -> Needs:
    """What templates that read these names need; `tasks` are names of the same pipeline."""
    own_tasks = frozenset(tasks)
    workload: dict[str, None] | None = {}
    ctx: dict[str, None] | None = {}
    entries: dict[str, None] | None = {}
    needs = Needs()
    for name, key in uses:
        if name == "workload":
            workload = _add(workload, key)
        elif name == "ctx":
            ctx = _add(ctx, key)
        elif name == "keychain":
            entries = _add(entries, key)
        elif name in ("args", "input"):
            needs.args = True
        elif name in RESERVED:
            continue
        else:
            needs.args = True
            if name in own_tasks:
                # It is the task's result once it has run; until then the name means what it means elsewhere.
                needs.tasks.append(name)
            workload, ctx = _add(workload, name), _add(ctx, name)
            if name in steps:
                needs.steps.append(name)
    needs.workload = None if workload is None else list(workload)
    needs.ctx = None if ctx is None else list(ctx)
    needs.keychain = None if entries is None else list(entries)
    needs.steps = list(dict.fromkeys(needs.steps))
    needs.tasks = list(dict.fromkeys(needs.tasks))
    needs.of_state = needs.workload != [] or needs.ctx != [] or needs.steps != []
    return needs


def _add(known: dict[str, None] | None, key: str | None) -> dict[str, None] | None:
    if known is None or key is None:
        return None
    known[key] = None
    return known


def pick(source: Mapping[str, Value], keys: list[str] | None) -> dict[str, Value]:
    if keys is None:
        return dict(source)
    return {key: source[key] for key in keys if key in source}


def gather(needs: Needs, state: Mapping[str, Value]) -> dict[str, Value]:
    """The parts of a run's state that a step's templates name."""
    out: dict[str, Value] = {}
    if workload := pick(state["workload"], needs.workload):
        out["workload"] = workload
    if ctx := pick(state["ctx"], needs.ctx):
        out["ctx"] = ctx
    if needs.steps:
        steps = state["steps"]
        out["steps"] = {
            name: {key: steps[name][key] for key in ("status", "result", "error") if key in steps[name]}
            for name in needs.steps
            if name in steps and steps[name]["status"] in ("done", "failed")
        }
    return out
