"""What every built-in tool does the same way: read its fields, keep its time, name its errors.

A tool implements `perform`; what is around it turns a bad field, a missing credential and a deadline
into outcomes. Aliases of fields (`cmd`, `endpoint`, `query_b64`) are read here and nowhere else.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from treadle.kernel.errors import TreadleError
from treadle.lang.duration import parse_duration
from treadle.work import at_hand

from .protocol import Outcome, ToolCall

# What the result of a task may take, written out.
RESULT_BYTES_MAX: Final = 64 * 1024 * 1024


class BadConfig(Exception):
    """A field of the task is missing or wrong. Becomes an outcome of kind `schema`."""


class CredentialMissing(Exception):
    """The credential that a task names is not there. Becomes an outcome of kind `auth`."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class ToolBase(ABC):
    """The frame of a built-in tool. `times_itself` is for tools that keep what they have at a
    deadline (a command's output); the others are cancelled by it."""

    kind = ""
    idempotent = False
    sync = False
    times_itself = False
    timeout_kind = "timeout"

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        if (job := at_hand.current()) is None or job.span is None:
            return await self._within(config, call)  # nobody traces it
        with at_hand.calling(job.span, self.kind, call.attempt) as span:
            outcome = await self._within(config, call)
            if outcome.error is not None:
                span.failed(str(outcome.error.get("code") or outcome.error["kind"]))
            return outcome

    async def _within(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        try:
            limit_s = time_limit(config, call)
            if self.times_itself or limit_s is None:
                return await self.perform(config, call)
            try:
                async with asyncio.timeout(limit_s) as timer:
                    return await self.perform(config, call)
            except TimeoutError:
                if not timer.expired():
                    raise
                return timed_out(self.timeout_kind, limit_s)
        except BadConfig as error:
            return Outcome.failed("schema", str(error), code="BAD_CONFIG")
        except CredentialMissing as error:
            details = {"name": error.name}
            return Outcome.failed("auth", str(error), code="SECRET_MISSING", details=details)

    @abstractmethod
    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        """Does the work within the frame of `run`."""

    @abstractmethod
    async def close(self) -> None:
        """Frees what the tool holds."""


def timed_out(kind: str, limit_s: float, **more: Any) -> Outcome:
    message = f"not done after {limit_s:g} s; raise the time limit or split the work"
    return Outcome.failed(kind, message, code="TIMEOUT", retryable=True, **more)


def out_of_descriptors(error: OSError) -> Outcome | None:
    """The outcome if this is what the error says: it is the engine's trouble, and it passes."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    message = (
        "this process has no file descriptor left; raise the limit (ulimit -n) or do less at the same time"
    )
    return Outcome.failed("storage_quota", message, code="NO_DESCRIPTORS", retryable=True)


def too_large(size: int, size_max: int) -> Outcome:
    message = (
        f"the result takes {size:,} bytes, more than {size_max:,}; write it to a file, a table or an "
        "artifact, and return where it is"
    )
    return Outcome.failed("storage_quota", message, code="RESULT_TOO_LARGE")


def pick(config: Mapping[str, Any], *names: str) -> Any:
    """The first of several spellings of a field that is set."""
    for name in names:
        if (value := config.get(name)) is not None:
            return value
    return None


def need(config: Mapping[str, Any], *names: str) -> Any:
    if (value := pick(config, *names)) is None:
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        raise BadConfig(f"the field {names[0]!r}{others} is missing")
    return value


def mapping(config: Mapping[str, Any], *names: str) -> dict[str, Any]:
    value = config.get(names[0]) if len(names) == 1 else pick(config, *names)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadConfig(f"the field {names[0]!r} must be a mapping, not {type(value).__name__}")
    return dict(value)


def arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The task's arguments under either spelling."""
    return {**mapping(config, "input"), **mapping(config, "args")}


def spec(config: Mapping[str, Any]) -> dict[str, Any]:
    return mapping(config, "spec")


def seconds(value: Any, field: str) -> float:
    """A duration as people write it; a number, also as text, counts seconds."""
    try:
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return parse_duration(value) / 1e9
        return parse_duration(value) / 1e9
    except TreadleError as error:
        raise BadConfig(f"the field {field!r}: {error.message}") from error


_LIMITS: Final = frozenset({"timeout_seconds", "timeout"})


def time_limit(config: Mapping[str, Any], call: ToolCall) -> float | None:
    """The shortest of the limits that apply to the whole call, in seconds."""
    if call.timeout_s is None and not config.get("spec") and _LIMITS.isdisjoint(config):
        return None
    limits = [] if call.timeout_s is None else [call.timeout_s]
    for field, value in (
        ("timeout_seconds", config.get("timeout_seconds")),
        ("timeout", config.get("timeout")),
        ("spec.timeout", spec(config).get("timeout")),
    ):
        if isinstance(value, Mapping):
            value = value.get("total")
        if value is not None:
            limits.append(seconds(value, field))
    return min(limits, default=None)


def unbase64(value: Any, field: str) -> str:
    try:
        return base64.b64decode(str(value), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise BadConfig(f"the field {field!r} is not the base64 of a text") from error


def local_path(location: str, call: ToolCall) -> Path:
    """A path or file:// address; a relative one starts at the definition's folder."""
    try:
        parts = urlsplit(location)
        path = Path(unquote(parts.netloc + parts.path) if parts.scheme == "file" else location).expanduser()
    except (ValueError, RuntimeError) as error:  # file://[ and ~nobody
        raise BadConfig(f"{location[:200]!r} is no path") from error
    return path if path.is_absolute() or call.base is None else Path(call.base) / path


async def credential(call: ToolCall, name: str) -> str | dict[str, str]:
    """The credential a task names, from the run's keychain."""
    try:
        return await call.secret(name)
    except KeyError as error:
        message = f"no credential named {name!r}; set it with `treadle secret set {name}`"
        raise CredentialMissing(name, message) from error
    except TreadleError as error:
        if error.cls != "authorization":
            raise
        raise CredentialMissing(name, error.message) from error
