"""Who acts: known where a request or a command comes in, needed where its commit is made.

It travels beside the call, not through every signature: whoever takes a request says once for whom it is done
(`acting`), and every command that is handed to the core from there carries it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Cancel, Domain, Event, Patch, Reset, Retry, Signal, Started
from treadle.kernel.values import encode, is_modest
from treadle.lang.handed import check_written
from treadle.runtime import commands, payloads, traced
from treadle.runtime.commands import AuditEntry, Command, Deliver, Operate, Own, check_entry, message_to_bytes


class Origin(msgspec.Struct, frozen=True):
    """For whom something is done, and through which door it came."""

    user: str
    token: str = ""
    server: str = ""
    request: str = ""

    def entry(self, action: str, target: str) -> AuditEntry:
        return AuditEntry(self.user, action, target, self.token, self.server, self.request)


_ORIGIN: Final[ContextVar[Origin | None]] = ContextVar("treadle_origin", default=None)
_EVENTS: Final[dict[type[Event], str]] = {
    Started: "run.start",
    Signal: "run.signal",
    Cancel: "run.cancel",
    Patch: "run.patch",
    Retry: "run.retry",
    Reset: "cell.reset",
    Domain: "event.publish",
}
# Who starts a run or publishes an event is not named by it: where nobody is known to act, there is nothing to say.
NAMELESS: Final = frozenset({Started, Domain})
# What changes nothing that anybody would ask about.
_SILENT: Final = frozenset(
    {
        *("audit", "bulk.advance", "bulk.take", "help", "learn", "offer", "pool", "token.used", traced.KIND),
        *(payloads.KEEP, "deadletter.keep", "deadletter.note"),
        *("barrier.close", "barrier.open", "barrier.settle"),
    }
)


# For whom something is done here, if anybody is known.
origin: Final = _ORIGIN.get


@contextmanager
def acting(origin: Origin | None) -> Iterator[None]:
    """What is asked for in here is done for somebody; None: for nobody, as a server acts by itself."""
    token = _ORIGIN.set(origin)
    try:
        yield
    finally:
        _ORIGIN.reset(token)


def stamped(command: Command) -> Command:
    """A command with who asks for it, if anybody does. An operation that is no value, or that somebody asks for under
    a name of the engine's own, is refused here with the same words, whoever would decide it."""
    if isinstance(command, Deliver):
        if command.entry is None and type(command) is not Own and command.event is not None:
            command.entry = _of_event(command.run, command.event)
        return command
    if isinstance(command, Operate):
        if not is_modest(command.body):  # nearly all are
            check_written(command.body)
        try:
            check_entry(entry := command.entry or _of_operation(command))
        except TreadleError:
            raise
        except Exception:  # what cannot be named is no value either, and is refused as such
            encode([command.home, command.body])
            raise
        signed = replace(command, entry=entry)
        return replace(signed, written=message_to_bytes(signed))
    return command


def _of_event(run: str, event: Event) -> AuditEntry | None:
    action = _EVENTS.get(type(event))
    if action is None:
        return None
    said = event.by if isinstance(event, Signal | Cancel | Patch | Retry | Reset) else None
    return _entry(said, action, run)


def _of_operation(asked: Operate) -> AuditEntry | None:
    body = asked.body
    match asked.name:
        case "deploy":
            row = body["row"]
            version = f"@{row['version']}" if row.get("version") else ""
            return _entry(body.get("by"), "definition.deploy", f"{row['name']}{version}")
        case commands.FORK:
            return _entry(body["by"], "run.fork", str(body["new_id"]))
        case commands.REMOVE:
            return _entry(body["by"], "run.delete", str(body["id"]))
        case commands.COLLECT:
            return _entry(body["by"], "store.collect", "") if body["step"] == "last" else None
        case commands.RETURN:
            return _entry(body["by"], "run.restore", str(body["id"])) if body["step"] == "run" else None
        case commands.TASK:
            return _entry(body.get("user"), f"task.{body['name']}", str(body["task"]))
        case "govern":
            data = body["data"]
            return None if data is None else _entry(None, f"app.{data['op']}", str(body["app"]))
        case "publish":
            return _entry(None, "event.publish", str(body["app"]))
        case "apply" | "snapshot":
            return _entry(None, f"app.{asked.name}", str(body["app"]))
        case name:
            what = body.get("op") or body.get("do")
            action = f"{name}.{what}" if what else name
            if action in _SILENT:
                return None
            about = body.get("target") or body.get("id") or body.get("name") or asked.home
            return _entry(body.get("by"), action, str(about))


def _entry(said: object, action: str, target: str) -> AuditEntry | None:
    """Where nobody is known to act, who is named as the doer did."""
    origin = _ORIGIN.get()
    if origin is None:
        return AuditEntry(said, action, target) if isinstance(said, str) else None
    return origin.entry(action, target)
