"""Who did what: one row a change, written by the commit that makes the change.

A command that somebody asked for carries an `AuditEntry`. When it is answered, with success or with a refusal, its row
goes into the batch that holds the answer (`staging.Answers`), so there is no change without its row and no row without its
change. What the engine does by itself (timers, receipts, children) has no entry.
"""

from __future__ import annotations

from typing import Final

import msgspec

from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value
from treadle.lang.duration import instant_text
from treadle.store.protocol import AuditRow

OK: Final = "ok"
STALE: Final = "stale"
REFUSED: Final = "refused"
KEPT_NS: Final = 365 * 86_400 * 1_000_000_000
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


def outcome(entry: AuditEntry, at_ns: int, value: object, error: TreadleError | None) -> AuditRow:
    """The row of a command that is answered."""
    if error is not None:
        return entry.row(at_ns, REFUSED, error.code)
    stale = isinstance(value, dict) and bool(value.get("stale"))
    return entry.row(at_ns, STALE if stale else OK)


def shown(row: AuditRow) -> dict[str, Value]:
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
