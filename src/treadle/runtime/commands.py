"""What can be asked of the core, from any thread, and by whom. All that changes something is data: an event for a run (`Deliver`),
an operation by its name (`Operate`), what work has come to (`FrameSent`, `CheckpointSaved`). No code travels, but for a
question (`Inspect`).

Who asked for something is known by its `AuditEntry`: when the command is answered, with success or with a refusal, a row goes
into the batch that holds the answer (`staging.Answers`), so there is no change without its row and no row without its change.

What leaves its process is a message that waits in the inbox table: from other processes, and from runs whose message did not fit
into the batch that sent it. Keyed, so that a message sent twice is one message. Its answer is a row under the same key, written
by the commit that decides it; nobody concludes anything from a row that is not there. Bytes from outside are taken strictly: what
they may not say is refused, not passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from treadle.kernel.errors import InputInvalid, OwnershipLost, TreadleError, ValueRefused
from treadle.kernel.limits import VALUE_DEPTH_MAX
from treadle.kernel.model import (
    EVENT_TYPES,
    Cancel,
    Domain,
    Event,
    Patch,
    Receipt,
    Reset,
    Retry,
    Signal,
    Started,
    event_from_value,
    event_value,
)
from treadle.kernel.run import error_of
from treadle.kernel.values import Value, decode, digest_bytes, encode, to_value
from treadle.lang.duration import instant_text
from treadle.store.rows import GUEST, AuditRow

from .ports import Ack, NewRun

# What became of a command, as its row in the audit log says it.
OK: Final = "ok"
STALE: Final = "stale"
REFUSED: Final = "refused"
AUDIT_KEPT_NS: Final = 365 * 86_400 * 1_000_000_000
# A target may be as long as a run's id; what is longer is cut, not refused.
_CHARS_MAX: Final = 1000


class AuditEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who asks for what, before it is known what becomes of it."""

    user: str
    action: str
    target: str = ""
    token: str = ""
    server: str = ""
    request: str = ""

    def row(self, at_ns: int, status: str, code: str | None = None) -> AuditRow:
        return AuditRow(
            at_ns=at_ns,
            user=_kept(self.user),
            token=self.token,
            action=_kept(self.action),
            target=_kept(self.target),
            status=status,
            code=code,
            server=self.server,
            request=self.request,
        )


def _kept(text: str) -> str:
    """A text as every store can keep it: who was refused is told, whatever they called themselves."""
    return text[:_CHARS_MAX].replace("\0", "\ufffd").encode(errors="replace").decode()


def audit_row(entry: AuditEntry, at_ns: int, value: object, error: TreadleError | None) -> AuditRow:
    """The row of a command that is answered."""
    if error is not None:
        return entry.row(at_ns, REFUSED, error.code)
    stale = isinstance(value, dict) and bool(value.get("stale"))
    return entry.row(at_ns, STALE if stale else OK)


def audit_shown(row: AuditRow) -> dict[str, Value]:
    """A row as people see it."""
    found: dict[str, Value] = {
        "at": instant_text(row.at_ns),
        "user": row.user,
        "token": row.token or None,
        "action": row.action,
        "target": row.target,
        "status": row.status,
        "server": row.server or None,
        "request": row.request or None,
    }
    return found if row.code is None else {**found, "code": row.code}


# The frame by which a worker says that work which was given up has come to its end all the same.
LATE: Final = "work.late"
# Names of operations: who only passes one on, or writes down who asked for it, does not need the code that performs it.
COLLECT: Final = "collect"
FORK: Final = "fork"
REMOVE: Final = "remove"
RETURN: Final = "return"
SCHEDULE: Final = "schedule"
TASK: Final = "task"
# What stands in the key of a message by which an operation tells one of several runs.
SHARED: Final = "shared:"


class FrameSent(msgspec.Struct, frozen=True):
    """Progress of an intent, on its way to being shown."""

    run: str
    intent: str
    seq: int
    type: str
    data: Value


class CheckpointSaved(msgspec.Struct, frozen=True):
    """An intent's new checkpoint, with what happened since the last one."""

    run: str
    intent: str
    body: Value
    events: list[dict[str, Value]]
    blobs: dict[str, bytes]
    ack: Ack | None


class Operate(msgspec.Struct, frozen=True):
    """An operation as data, so that it reaches the owner of the store from any process: claim, deploy,
    apply. `home` is the run at which it is decided (a task's, an application's), "" for what belongs to the
    whole store. `inbox` is the key of the message it came in, which is done when it is decided."""

    home: str
    name: str
    body: dict[str, Value]
    ack: Ack | None = None
    inbox: str | None = None
    entry: AuditEntry | None = None
    # What was loaded for it, or could not be (`fetching.py`): it has not to be tried again.
    fetched: tuple[str, ...] = ()
    # It as a message, where whoever asked has written it: that it can be written is looked at in any case.
    written: bytes = b""


def only_hands_on(asked: Operate) -> bool:
    """Whether an operation changes no row itself: whoever completes a task sends a receipt, or is refused."""
    return asked.name == TASK and asked.body.get("name") == "complete"


class Sent(msgspec.Struct, kw_only=True):
    """An event, with all that is said of it beside it. This is what a message holds, and all that it can."""

    run: str
    event: Event | None
    create: NewRun | None = None
    expected_version: int | None = None
    submission: tuple[str, str] | None = None
    # Where a start that fails reports.
    reply: tuple[str, str] | None = None
    # Payloads that the event refers to, by their digests.
    blobs: dict[str, bytes] = {}
    # Who asked for it, if somebody did: written down with the decision.
    entry: AuditEntry | None = None


class Deliver(Sent):
    """One event on its way to a run. What is here besides what is sent belongs to this process, and comes from no message.

    `derived` ones were made by a step of the batch at hand: if that commit fails they are made
    again by the retried step, so they are dropped. `inbox` is the key of the message it came in, which is done when it is
    decided.
    """

    # Named once more: these come by position, all else of what is sent by name.
    run: str
    event: Event | None
    ack: Ack | None = None
    inbox: str | None = None
    derived: bool = False
    # The key of the message that it becomes if it does not fit into the batch that made it.
    message: str | None = None
    # The operation that left its answer to this event: where the event would go elsewhere, it does. Whether it may still be is
    # asked again when the event has its turn, if something was changed in between.
    asked: Operate | None = None
    # How many changes had been made when that was found to be allowed (`Staging.changes`).
    changes: int = 0


class Own(Deliver):
    """What the core tells a run by itself: its time is up, look what you owe yourself. It has no byte
    form and cannot be handed in, so it needs nobody's signature."""


class View(msgspec.Struct, frozen=True):
    """What somebody may look at on the core's thread: the store as the last commit left it, and whether the core is at
    rest."""

    store: Reads
    # Whether something waits to be decided now, or for code that is on its way.
    busy: Callable[[], bool]
    # When time brings something next: a timer, a tick; None if never.
    next_due_ns: Callable[[], int | None]


class Inspect(msgspec.Struct, frozen=True):
    """A question between two commits, where nobody else can read the store (`memory:`), or about the core itself. It
    changes nothing, is committed with nothing, and nobody is written down for it."""

    question: Callable[[View], object]
    ack: Ack


Progress = FrameSent | CheckpointSaved
Command = Deliver | Operate | FrameSent | CheckpointSaved | Inspect


if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    class Elsewhere(Protocol):
        """Those who hold the other shards, as the core sees them."""

        @property
        def asker(self) -> str:
            """Under which name the answers to messages from here are looked for; "" if that is no matter."""
            ...

        def await_replies(self, asked: list[tuple[str, Ack]]) -> None:
            """Messages with these keys are in the inboxes of others: somebody waits for their answers."""
            ...

        def forward(self, commands: list[Deliver | Operate]) -> None:
            """What is decided elsewhere: it is to be left there as a message."""
            ...


class Nowhere:
    """For a core that has all there is: what it has lost is decided by whoever took it."""

    asker = ""

    def await_replies(self, asked: list[tuple[str, Ack]]) -> None:
        raise AssertionError("nothing leaves a core that has all there is")

    def forward(self, commands: list[Deliver | Operate]) -> None:
        for command in commands:
            if command.ack is not None:
                command.ack(None, OwnershipLost("it is decided by another process now"))


# Values keep to their levels where they are handed in; a message stands around one.
_LEVELS_MAX: Final = VALUE_DEPTH_MAX + 16
# How names begin that only the engine itself acts under.
OWN_NAMES: Final = "treadle:"
# What another process may tell a run; the rest is between a run and its own engine.
_FROM_OUTSIDE: Final = (Started, Receipt, Signal, Domain, Cancel, Patch, Retry, Reset)


class _Delivery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    run: str
    event: dict[str, Value]
    create: tuple[str, str, str | None, str, Value] | None = None
    expected_version: int | None = None
    submission: tuple[str, str] | None = None
    reply: tuple[str, str] | None = None
    blobs: dict[str, bytes] = {}
    entry: AuditEntry | None = None


class _Operation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    body: dict[str, Value]
    home: str = ""
    entry: AuditEntry | None = None


# --- messages ---------------------------------------------------------------------------------------


def message_to_bytes(command: Deliver | Operate) -> bytes:
    if isinstance(command, Operate):
        operation: dict[str, Value] = {"home": command.home, "name": command.name, "body": command.body}
        return encode({"operate": operation | _signed(command.entry)})
    item = command
    assert item.event is not None, "only events travel"
    value: dict[str, Value] = {"run": item.run, "event": {"kind": item.event.kind, **event_value(item.event)}}
    if item.create is not None:
        new = item.create
        value["create"] = [new.dialect, new.workflow, new.version, new.definition, new.key]
    if item.expected_version is not None:
        value["expected_version"] = item.expected_version
    if item.submission is not None:
        value["submission"] = list(item.submission)
    if item.reply is not None:
        value["reply"] = list(item.reply)
    if item.blobs:
        value["blobs"] = item.blobs
    return encode(value | _signed(item.entry))


def _signed(entry: AuditEntry | None) -> dict[str, Value]:
    """Who asks, where somebody does: other messages stay as they were."""
    return {} if entry is None else {"entry": msgspec.to_builtins(entry)}


def message_from_bytes(body: bytes, key: str) -> Deliver | Operate:
    """Raises a TreadleError for anything that is no message."""
    try:
        value = decode(body, levels=_LEVELS_MAX)
        if not isinstance(value, dict):
            raise InputInvalid("a message is a mapping")
        if "operate" in value or "op" in value:  # `op`, beside a run without a name, is how 0.1.0 wrote it
            asked = value.pop("operate" if "operate" in value else "op")
            if value not in ({}, {"run": ""}):
                raise InputInvalid("an operation says nothing beside it")
            operation = msgspec.convert(asked, _Operation)
            check_entry(operation.entry)
            return Operate(operation.home, operation.name, operation.body, inbox=key, entry=operation.entry)
        delivery = msgspec.convert(value, _Delivery, builtin_types=(bytes,))
        item = _item(delivery, key)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputInvalid(f"the message {key} cannot be read: {error}") from error
    if key.startswith(GUEST):
        _check_foreign(item)
    return item


def _item(delivery: _Delivery, key: str) -> Deliver:
    fields = dict(delivery.event)
    kind = fields.pop("kind")
    made = EVENT_TYPES[kind]
    if unknown := fields.keys() - set(made.__struct_fields__):
        raise ValueError(f"{kind} has no {sorted(unknown)[0]!r}")
    # Looked at by the rules of its type, but made as it is: nested values must stay what they are.
    msgspec.convert(fields, made, builtin_types=(bytes,))
    for digest, payload in delivery.blobs.items():
        if digest_bytes(payload) != digest:
            raise ValueError(f"the payload {digest} is another one")
    return Deliver(
        delivery.run,
        event_from_value(kind, fields),
        create=NewRun(*delivery.create) if delivery.create is not None else None,
        expected_version=delivery.expected_version,
        submission=delivery.submission,
        reply=delivery.reply,
        inbox=key,
        blobs=delivery.blobs,
        entry=delivery.entry,
    )


def _check_foreign(item: Deliver) -> None:
    """Nothing in a message from another process may pass for the engine's own."""
    if not isinstance(item.event, _FROM_OUTSIDE) or item.reply is not None:
        raise InputInvalid(f"{item.inbox}: this is said only between a run and its engine")
    if isinstance(item.event, Started | Retry) and item.event.place:
        raise InputInvalid(f"{item.inbox}: a place is given by the engine, and not asked for")
    check_name(item.event)
    check_entry(item.entry)


def check_entry(entry: AuditEntry | None) -> None:
    if entry is not None and entry.user.startswith(OWN_NAMES):
        raise ValueRefused(f"an actor whose name begins with {OWN_NAMES}, as only Treadle's own names do")


def check_name(event: Event) -> None:
    """Refuses an event from outside under a name that is the engine's own."""
    if str(getattr(event, "by", None)).startswith(OWN_NAMES):
        raise ValueRefused(f"{event.kind}: `by` begins with {OWN_NAMES}, as only Treadle's own names do")


# --- answers ----------------------------------------------------------------------------------------


def reply_to_bytes(value: Value, error: TreadleError | None) -> bytes:
    if error is None:
        try:
            return encode({"value": value})
        except ValueRefused:
            return encode({"value": to_value(value)})  # tuples and such
    return encode({"error": error_of(error), "kind": type(error).__name__})


def reply_from_bytes(body: bytes) -> tuple[Value, TreadleError | None]:
    found: dict[str, Value] = decode(body, levels=_LEVELS_MAX)
    if "error" in found:
        return None, TreadleError.restored(found["error"], found["kind"])
    return found["value"], None
