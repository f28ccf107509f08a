"""What can be seen of a run in memory, from beside the core: enough to know that there is nothing to look up yet.

The core goes on meanwhile. Whatever is seen here was so a moment ago.
"""

from __future__ import annotations

from typing import Any

from treadle.kernel.model import ENGINE_KINDS, TERMINAL
from treadle.kernel.values import copied, to_value
from treadle.runtime.core import Core
from treadle.runtime.payloads import may_refer


def is_going_on(core: Core | None, run: str) -> bool:
    hot = core.hot.peek(run) if core is not None and isinstance(run, str) else None
    return hot is not None and hot.state.status not in TERMINAL


def work_of(core: Core | None, run: str) -> list[str]:
    """The intents of a run that somebody has to work for."""
    hot = core.hot.peek(run) if core is not None else None
    if hot is None or hot.state.status in TERMINAL:
        return []
    intents = list(hot.state.open.values())  # in one go: it changes
    return [intent.id for intent in intents if intent.kind not in ENGINE_KINDS]


def outcome(core: Core | None, run: str) -> dict[str, Any] | None:
    """How a run ended, if it is in memory; asked by those who were told of its end."""
    hot = core.hot.peek(run) if core is not None else None
    if hot is None or hot.state.status not in TERMINAL:
        return None
    result, body = copied(hot.state.result)
    if may_refer(body):
        return None
    error = hot.state.error
    return {"status": hot.state.status, "result": result, "error": None if error is None else to_value(error)}
