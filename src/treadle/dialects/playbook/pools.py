"""Which workers do a step: `spec.pool` at executor, step, loop or task; the inner one wins.

The tasks of a step are done by one worker, one after another, so a step has one pool.
"""

from __future__ import annotations

from treadle.kernel.values import Value
from treadle.lang.pools import POOL_HINT, is_pool
from treadle.lang.text import Path

from .edition import is_first
from .model import Step
from .reading import Reader

_RULE = "000 §1.2"


def check_pool(reader: Reader, spec: dict[str, Value], path: Path) -> None:
    if "pool" in spec and not is_pool(spec["pool"]):
        message = f"{spec['pool']!r:.40} is no name of a pool"
        reader.error("pool_invalid", (*path, "pool"), message, hint=POOL_HINT, rule=_RULE)


def check_one_pool(reader: Reader, step: dict[str, Value], path: Path) -> None:
    """Tasks of one step that ask for different workers."""
    tasks = [task for task in step.get("tool") or () if isinstance(task, dict)]
    named = [(task.get("spec") or {}).get("pool") for task in tasks]
    for task, at in zip(tasks, range(len(tasks)), strict=True):
        check_pool(reader, task.get("spec") or {}, (*path, "tool", at, "spec"))
    if any(other != named[0] for other in named):
        message = "the tasks of a step are done by one worker, and these name different pools"
        hint = "name the pool in the spec of the step, or make steps of them"
        reader.error("pool_mixed", (*path, "tool"), message, hint=hint, rule=_RULE)


def pool_of(step: Step) -> str:
    """Version 1 knew no pools: a knob of that name meant nothing."""
    return "" if is_first() else step.pool
