"""The tool protocol: one small class per tool, one registry, one outcome envelope.

A tool gets a rendered configuration and a `ToolCall`; it returns an `Outcome` and raises nothing
for what the outside did wrong: an outcome with status `error` says it, in one vocabulary of kinds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from treadle.kernel.values import Value
from treadle.lang.fields import Fields

ERROR_KINDS: frozenset[str] = frozenset(
    [
        "connection",
        "timeout",
        "rate_limit",
        "auth",
        "not_found",
        "client_error",
        "server_error",
        "schema",
        "parse",
        "transform",
        "db_connection",
        "db_constraint",
        "db_deadlock",
        "db_timeout",
        "storage_quota",
        "storage_access",
        "unknown",
        "ctx_conflict",
        "child_failed",
        "exit_code",
        "template",
        "cancelled",
        "python",
    ]
)


class Outcome(msgspec.Struct, kw_only=True):
    """How one tool call went. `http`, `pg`, `py` are helpers of the tools that have them."""

    status: Literal["ok", "error"] = "ok"
    result: Value = None
    error: dict[str, Any] | None = None
    meta: dict[str, Any] = {}
    http: dict[str, Any] | None = None
    pg: dict[str, Any] | None = None
    py: dict[str, Any] | None = None

    @staticmethod
    def failed(
        kind: str,
        message: str,
        *,
        code: str | None = None,
        retryable: bool = False,
        details: dict[str, Any] | None = None,
        **more: Any,
    ) -> Outcome:
        assert kind in ERROR_KINDS, kind
        error = {
            "kind": kind,
            "retryable": retryable,
            "code": code,
            "message": message,
            "details": details or {},
        }
        return Outcome(status="error", error=error, **more)


async def _silent(type: str, **data: Value) -> None:
    return None


async def _no_secret(name: str) -> str | dict[str, str]:
    raise KeyError(name)


async def _no_store(value: Any, **options: Any) -> Any:
    raise KeyError("there is no store of results here")


class ToolCall(msgspec.Struct, kw_only=True):
    """What a tool may know besides its configuration."""

    run: str = ""
    idempotency_key: str = ""
    attempt: int = 1
    timeout_s: float | None = None
    # Folder that relative paths of the definition start from, if it came from a file.
    base: str | None = None
    progress: Callable[..., Awaitable[None]] = _silent
    secret: Callable[[str], Awaitable[str | dict[str, str]]] = _no_secret
    # The engine's own store of payloads (`Job.load_blob`, `Job.store_blob`); KeyError: not there.
    load_blob: Callable[[Mapping[str, Any]], Awaitable[Value]] = _no_store
    store_blob: Callable[..., Awaitable[dict[str, Any]]] = _no_store
    options: Mapping[str, Any] = {}


@runtime_checkable
class Declares(Protocol):
    """A tool that says which fields its tasks have. One that does not is given whatever they hold."""

    fields: Fields


class Tool(Protocol):
    """One kind of outside work."""

    kind: str
    # Whether repeating a call that may have happened does no harm.
    idempotent: bool

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome: ...

    async def close(self) -> None:
        """Frees connections and processes."""
        ...


def is_sync(tool: Tool) -> bool:
    """Whether its `run` never suspends, so that a worker thread may drive it (`sync = True`). Ours all say; one from
    outside need not."""
    return bool(getattr(tool, "sync", False))
