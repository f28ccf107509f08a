"""The outcome of a tool as the policies of its task see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treadle.dialects.playbook.failures import failure
from treadle.dialects.playbook.model import Task
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value
from treadle.tools.functions import exception_outcome
from treadle.tools.protocol import Outcome


def timeout_s(config: Mapping[str, Any]) -> float | None:
    limit = config.get("timeout", (config.get("spec") or {}).get("timeout"))
    return float(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def envelope_of(outcome: Outcome, task: Task, attempt: int, duration_s: float) -> dict[str, Any]:
    """The outcome as policies see it: absent parts are undefined, not null."""
    status, error = outcome.status, outcome.error
    result = outcome.result
    if status == "ok" and says_error(result, task):
        status, error = "error", _error_in(result)
    meta = {"attempt": attempt, "duration_ms": round(duration_s * 1000, 3), **outcome.meta}
    envelope: dict[str, Any] = {"status": status, "meta": meta}
    if result is not None or status == "ok":
        envelope["result"] = result
    if error is not None:
        envelope["error"] = error
    if outcome.http is not None:
        envelope["http"] = outcome.http
    if outcome.pg is not None:
        envelope["pg"] = outcome.pg
    if outcome.py is not None:
        envelope["py"] = outcome.py
    return envelope


def says_error(result: Value, task: Task) -> bool:
    """Whether a result tells of a failure, and its task lets it."""
    if not isinstance(result, dict) or result.get("status") != "error":
        return False
    return bool((task.spec.get("result") or {}).get("error_status") != "ignore")


def raised(error: BaseException) -> Outcome:
    """What a tool raised, as the outcome it should have given."""
    if isinstance(error, TreadleError):
        kind = {"authorization": "auth", "timeout": "timeout", "transport": "connection"}.get(
            error.cls, "unknown"
        )
        return Outcome.failed(kind, error.message, code=error.code, details=error.details)
    outcome = exception_outcome(error)
    assert outcome.error is not None
    outcome.error["kind"] = "unknown"
    return outcome


def _error_in(result: Mapping[str, Any]) -> dict[str, Any]:
    given = result.get("error")
    if isinstance(given, dict):
        return {**failure("unknown", str(given.get("message", given))), **given}
    return failure("unknown", str(given or result.get("message") or "the result says status: error"))
