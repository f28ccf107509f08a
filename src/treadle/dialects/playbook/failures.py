"""What went wrong, as policies, arcs and people see it: in one form, whoever says so."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.kernel.errors import ExpressionError
from treadle.kernel.values import Value


def failure(kind: str, message: str, *, code: str | None = None, **more: Value) -> dict[str, Value]:
    return {"kind": kind, "retryable": False, "code": code, "message": message, "details": {}, **more}


def worker_failure(status: str, error: Mapping[str, Value]) -> dict[str, Value]:
    """The error of a pipeline whose worker failed outside any task."""
    kind = {"timeout": "timeout", "cancelled": "cancelled"}.get(status, "unknown")
    if error.get("class") == "authorization":
        kind = "auth"
    message = str(error.get("message") or f"the worker's receipt has status {status}")
    return failure(kind, message, code=error.get("code"), details=error.get("details") or {})


def template_failure(error: ExpressionError) -> dict[str, Value]:
    return failure("template", error.message, code=error.code, details=error.details)
