"""What the tool of a task is given: the names that its templates see, and its fields rendered with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from treadle.kernel.values import Value

from .handles import StepResults, TemplateScope
from .model import Step, Task
from .outcomes import loop_view, with_bodies

# Kinds whose `args` are handed on to code or to a child: those of the step are among them.
_TAKE_ARGS: Final = frozenset({"python", "playbook", "workflow"})
_NOTHING: Final[dict[str, Value]] = {}


def scope_of(
    step: Step, inputs: Mapping[str, Value], ctx: dict[str, Value], iteration: dict[str, Value], *, run: str
) -> TemplateScope:
    """The names that the templates of a step's tasks see; `iteration` is what stands under `iter`."""
    args, workload = inputs.get("args") or {}, inputs.get("workload") or {}
    names: dict[str, Value] = {
        "workload": workload,
        "ctx": ctx,
        "args": args,
        "input": args,
        "iter": iteration,
        "execution_id": run,
        "job": {"uuid": run, "execution_id": run},
        "keychain": _NOTHING,
        "_prev": None,
    }
    if (index := inputs.get("iteration")) is not None and (total := inputs.get("total")) is not None:
        names["loop"] = loop_view(index, total)
    layers = (args, ctx, iteration, workload, StepResults(inputs.get("steps") or _NOTHING))
    return TemplateScope(names, layers, step.later)


def config_of(step: Step, task: Task, scope: TemplateScope, *, load: bool = True) -> dict[str, Value]:
    """A task's fields rendered for its tool."""
    more = task.verbatim
    if task.called_with is not None:
        given = {**scope.names["args"], **task.called_with.arguments(scope, load=load)}
        scope = TemplateScope(
            {**scope.names, "args": given, "input": given}, (given, *scope.layers), scope.later
        )
        more = {**more, "args": given}
    # What a noop gives is a value that its author writes, and may be nothing.
    render = task.config.render if task.kind == "noop" else task.config.arguments
    # A copy: a tool may do as it likes with what it is given, and constants are the definition's.
    config: dict[str, Value] = copied(render(scope, load=load))
    if task.kind in _TAKE_ARGS and (given := _handed_on(step, scope)):
        own = config.get("args")
        config["args"] = {**copied(given), **(own if isinstance(own, dict) else {})}
    if task.kind == "python" and "args" in config:
        config["args"] = with_bodies(config["args"])
    return {**config, **more} if more else config


def _handed_on(step: Step, scope: TemplateScope) -> dict[str, Value]:
    """What a step itself hands to its tasks' code."""
    args = scope.names["args"]
    own = step.args.value_if_constant if step.args is not None else {}
    return {key: args[key] for key in own if key in args}


_NESTS: Final = frozenset({dict, list})


def copied(value: Value) -> Value:
    """The same with mappings and lists of its own; keys stand where they stood."""
    if type(value) is list:
        return [copied(item) if type(item) in _NESTS else item for item in value]
    out = value.copy()
    for key, item in value.items():
        if type(item) in _NESTS:
            out[key] = copied(item) if item else type(item)()
    return out
