"""Arcs without `when`, and what happens to them when their step fails.

By the seed such an arc matches on failure too (000 §4.2), so a chain of plain arcs goes on after a
refused payment. Few people expect it: `check` names each place where it would happen, unless the
step cannot fail, the failure takes another way, or the target is plainly meant for it.
"""

from __future__ import annotations

import re
from typing import Final

from treadle.kernel.values import Value

from .net import Net, always
from .reading import Reader

# Patterns are texts: compiled when the first arc is looked at, not at every start of a process.
_MEANT: Final = (
    r"(?i)fail|error|err\b|catch|clean|rollback|roll_back|undo|compensat|revert|abort|cancel|notif|alert|alarm|report"
    r"|final|always|dead_?letter|fallback|recover|retry|teardown|release|unlock|close"
)
_ENDS: Final = r"(?i)(end|finish|stop|exit|quit)(ed)?"
_ON_FAILURE: Final = r"(?i)step\.failed|call\.error|\berror\b|\bfailed\b"
_CANNOT_FAIL: Final = frozenset({"noop"})


def arcs_on_failure(reader: Reader, net: Net) -> None:
    for name, step in net.steps.items():
        if not _may_fail(net, step):
            continue
        caught = False
        for index, arc in enumerate(net.arcs(name)):
            if "when" not in arc and not caught and not _meant(net, arc["step"]):
                done = "loop.done" if "loop" in step else "step.done"
                reader.warning(
                    "arc_on_failure",
                    net.path(name, "next", "arcs", index),
                    f"the arc to {arc['step']!r} has no when, so it is taken when {name!r} fails, too",
                    hint=f"after success only: when: \"{{{{ event.name == '{done}' }}}}\"; "
                    "whatever happened, the failure being dealt with: when: true",
                    rule="000 §4.2",
                )
            # Behind an arc that takes the failure, the others of an exclusive router never see it.
            caught = caught or (not net.inclusive(name) and (always(arc) or _takes_failure(arc)))


def _may_fail(net: Net, step: dict[str, Value]) -> bool:
    """Whether a failure of this step reaches its arcs."""
    policy = (step.get("spec") or {}).get("policy") or {}
    own = None if "loop" in step else (policy.get("failure") or {}).get("mode")
    whole = ((net.executor.get("policy") or {}).get("failure") or {}).get("mode")
    if (own or whole) == "fail_fast":
        return False
    return any(task["kind"] not in _CANNOT_FAIL for task in step.get("tool") or ())


def _takes_failure(arc: dict[str, Value]) -> bool:
    when = arc.get("when")
    return isinstance(when, str) and re.search(_ON_FAILURE, when) is not None


def _meant(net: Net, name: str) -> bool:
    """Whether a step is plainly for failures, or does nothing at all."""
    step = net.steps[name]
    if re.search(_MEANT, name):
        return True
    tasks = step.get("tool") or ()
    idle = all(task["kind"] == "noop" for task in tasks) and "next" not in step
    return idle and (not tasks or re.fullmatch(_ENDS, name) is not None)
