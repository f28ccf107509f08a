"""One tree of errors.

Every error has a stable `code`, a class that policies can match on, and a page under docs/errors
that says cause and remedy (tests/tidy holds us to it). The docstring is the default message.
An error travels as data (`to_value`) in journals, receipts, JSON output and HTTP problems alike.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Literal

ErrorClass = Literal[
    "definition", "expression", "transport", "timeout", "authorization", "consistency", "user", "internal"
]


class TreadleError(Exception):
    """An unexpected error inside Treadle."""

    cls: ErrorClass = "internal"
    code: str = "INTERNAL"
    default_code: ClassVar[str] = "INTERNAL"
    _kinds: ClassVar[dict[str, type[TreadleError]]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.default_code = cls.code
        if "__init__" not in cls.__dict__:
            cls._kinds[cls.__name__] = cls

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        cls: ErrorClass | None = None,
        where: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        self.message = message or inspect.cleandoc(type(self).__doc__ or "")
        self.where = where
        self.details = details or {}
        if code is not None:
            self.code = code
        if cls is not None:
            self.cls = cls
        super().__init__(self.message)

    def __str__(self) -> str:
        # A message that begins with its place is not told twice.
        place = f"{self.where}: " if self.where and not self.message.startswith(self.where) else ""
        return f"{place}{self.message} [{self.code}]"

    def to_value(self) -> dict[str, Any]:
        return {
            "class": self.cls,
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "details": self.details,
        }

    @staticmethod
    def from_value(value: dict[str, Any]) -> TreadleError:
        return TreadleError(
            value.get("message") or "",
            code=value.get("code") or "INTERNAL",
            cls=value.get("class") or "internal",
            where=value.get("where"),
            details=value.get("details") or {},
        )

    @staticmethod
    def of_code(value: dict[str, Any]) -> TreadleError:
        """An error that travelled without its kind: of the kind that has its code, if that is known here."""
        code = value.get("code")
        known = (kind for kind in TreadleError._kinds.values() if kind.default_code == code)
        return TreadleError.restored(value, next((kind.__name__ for kind in known), ""))

    @staticmethod
    def restored(value: dict[str, Any], kind: str) -> TreadleError:
        """An error as it was raised in another process: of the same kind, if that is known here."""
        made = TreadleError.from_value(value)
        known = TreadleError._kinds.get(kind, TreadleError)
        return known(made.message, code=made.code, cls=made.cls, where=made.where, details=made.details)


class ValueRefused(TreadleError):
    """A value cannot be stored: only JSON values and bytes can. Convert it first."""

    cls = "user"
    code = "VALUE_REFUSED"


class NotCanonical(TreadleError):
    """Bytes are not canonical CBOR. Encode them with treadle.kernel.encode."""

    cls = "user"
    code = "NOT_CANONICAL"


class DefinitionError(TreadleError):
    """A definition is not valid. Its problems are listed in details["problems"]."""

    cls = "definition"
    code = "DEFINITION_INVALID"


class UnknownWorkflow(TreadleError):
    """No definition goes by this name. Deploy it first, or name a file."""

    cls = "definition"
    code = "UNKNOWN_WORKFLOW"


class VersionTaken(TreadleError):
    """This version is deployed already with other content. Raise the version."""

    cls = "definition"
    code = "VERSION_TAKEN"


class ExpressionError(TreadleError):
    """An expression or template could not be evaluated."""

    cls = "expression"
    code = "EXPRESSION"


class DecisionRefused(TreadleError):
    """A decision breaks a rule of admission; nothing of it was applied."""

    cls = "definition"
    code = "DECISION_REFUSED"


class LimitExceeded(DecisionRefused):
    """A decision is larger than one step may be."""

    code = "LIMIT_EXCEEDED"


class ReplayDiffers(TreadleError):
    """Replaying the journal gives another decision than the one recorded. The run is stopped
    untouched: run it with the code that wrote it, or fork it."""

    cls = "consistency"
    code = "REPLAY_DIFFERS"


class Undecidable(TreadleError):
    """The code at hand cannot take this run on. It is left as it is, stalled, and tried again when other code
    comes: at a deploy, at the next start, by `retry`."""

    cls = "definition"
    code = "UNDECIDABLE"


class RunTooOld(TreadleError):
    """The run was begun by a version of its dialect that this Treadle does not decide any more. It is
    left untouched: finish it with the Treadle that began it."""

    cls = "consistency"
    code = "RUN_TOO_OLD"


class JournalCorrupt(TreadleError):
    """The journal's digest chain is broken: stored bytes are not the bytes that were written."""

    cls = "consistency"
    code = "JOURNAL_CORRUPT"


class DefinitionCorrupt(TreadleError):
    """A stored definition does not match its digest: it is not what was deployed. Its runs are left
    untouched; deploy the same file again to put it right."""

    cls = "consistency"
    code = "DEFINITION_CORRUPT"


class VersionMismatch(TreadleError):
    """The run has moved on since the version you expected. Look at it again, then decide."""

    cls = "consistency"
    code = "VERSION_MISMATCH"


class AppendConflict(TreadleError):
    """Another owner appended to this run first. Reload and decide again."""

    cls = "consistency"
    code = "APPEND_CONFLICT"


class OwnershipLost(TreadleError):
    """Another process owns this store now; this engine has stopped."""

    cls = "consistency"
    code = "OWNERSHIP_LOST"


class StoreGone(OwnershipLost):
    """The store's file was deleted, moved or replaced while it was open. Nothing is acknowledged that
    would be lost with it: the engine has stopped."""

    code = "STORE_GONE"


class RunNotFound(TreadleError):
    """There is no run with this id."""

    cls = "user"
    code = "RUN_NOT_FOUND"


class NoSuchRecord(TreadleError):
    """The run has no record of this number."""

    cls = "user"
    code = "NO_SUCH_RECORD"


class RunExists(TreadleError):
    """A run with this id exists already, with another definition or input. Choose another id."""

    cls = "user"
    code = "RUN_EXISTS"


class RunEnded(TreadleError):
    """The run has ended; nothing more can be done to it."""

    cls = "user"
    code = "RUN_ENDED"


class RunQueued(TreadleError):
    """The run waits for its place in line and has not begun."""

    cls = "user"
    code = "RUN_QUEUED"


class QueueFull(TreadleError):
    """The line of this workflow is full; start it again later."""

    cls = "user"
    code = "QUEUE_FULL"


class NotWaiting(TreadleError):
    """No run waits for this."""

    cls = "user"
    code = "NOT_WAITING"


class InputInvalid(TreadleError):
    """The input does not fit what the workflow declares. details["errors"] lists all of it."""

    cls = "user"
    code = "INPUT_INVALID"


class Forbidden(TreadleError):
    """You do not hold a role that may do this."""

    cls = "authorization"
    code = "FORBIDDEN"


class SecretMissing(TreadleError):
    """A secret is named but no provider has it. Set it with `treadle secret set`, an environment
    variable TREADLE_SECRET_<NAME>, or --secrets FILE."""

    cls = "authorization"
    code = "SECRET_MISSING"


class BlobMissing(TreadleError):
    """A stored payload is gone: it expired, or its file was removed."""

    cls = "consistency"
    code = "BLOB_MISSING"


class BlobCorrupt(TreadleError):
    """A stored payload does not match its digest."""

    cls = "consistency"
    code = "BLOB_CORRUPT"


class StoreBusy(TreadleError):
    """Another process kept the store locked for more than 30 seconds. Try again, or find it with
    `treadle doctor`."""

    code = "STORE_BUSY"


class StoreFull(TreadleError):
    """The disk is full. Nothing was lost; make room and the engine goes on."""

    code = "STORE_FULL"


class StoreReadOnly(TreadleError):
    """The store cannot be written: the file or its folder is read-only."""

    code = "STORE_READ_ONLY"


class StoreCorrupt(TreadleError):
    """The file is not a Treadle store, or it is damaged. It was not touched."""

    code = "STORE_CORRUPT"


class StoreTooNew(TreadleError):
    """The store was written by a newer Treadle. Upgrade this one; it was not touched."""

    code = "STORE_TOO_NEW"

    @staticmethod
    def of(found: int, newest: int, *, what: str = "the store") -> StoreTooNew:
        """`what` has a schema beyond the newest that this Treadle knows."""
        return StoreTooNew(
            f"{what} has schema {found}; this Treadle knows up to {newest}: use the newer Treadle that wrote it"
        )


class StoreUnavailable(TreadleError):
    """The store cannot be opened or does not answer."""

    code = "STORE_UNAVAILABLE"


class ConnectionLost(StoreUnavailable):
    """The store's server went away, or the way to it did."""


class CommitUnknown(StoreUnavailable):
    """Whether a commit is durable cannot be known now: its answer was lost, and the store does not answer.
    Nobody may go on from what it remembers; whoever begins anew reads what is there."""


# The store did not answer: nothing is wrong with what was asked, it is tried again.
PASSING: tuple[type[TreadleError], ...] = (StoreFull, StoreBusy, StoreUnavailable)


class EngineStopped(TreadleError):
    """The engine is not running: use it inside `async with`."""

    cls = "user"
    code = "ENGINE_STOPPED"


class RunFailed(TreadleError):
    """The run did not complete; `.error` and `.result` say how it ended."""

    cls = "user"
    code = "RUN_FAILED"

    def __init__(
        self, message: str = "", *, error: dict[str, Any] | None, result: Any = None, **kw: Any
    ) -> None:
        super().__init__(message, **kw)
        self.error = error
        self.result = result


class ToolError(TreadleError):
    """A tool did not do its work."""

    cls = "transport"
    code = "TOOL_FAILED"


class Unsupported(TreadleError):
    """This is not possible here."""

    cls = "user"
    code = "UNSUPPORTED"


class KernelBug(BaseException):
    """An invariant is broken. Deliberately not an Exception: no retry policy may swallow it."""
