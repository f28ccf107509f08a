"""The log of who did what, as it is asked for and as refusals get into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from treadle.runtime.commands import REFUSED, AuditEntry, audit_shown

from .tokens import AccessHome

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk
    from treadle.store.protocol import Reads


async def listed(home: AccessHome, **asked: Any) -> list[dict[str, Any]]:
    """Rows of the log, newest first; filters as `Reads.audit` takes them."""
    return await home.read(lambda reads: rows(reads, **asked)[0])


def rows(reads: Reads, **asked: Any) -> tuple[list[dict[str, Any]], list[int]]:
    """Rows as people see them, and their numbers."""
    found = reads.audit(**asked)
    return [audit_shown(row) for row in found], [row.no for row in found]


async def refused(home: AccessHome, entry: AuditEntry, code: str) -> None:
    """Writes down a request that was turned away before it came to a change."""
    await home.operate("audit", {"entry": msgspec.to_builtins(entry), "code": code})


def perform(desk: Desk, body: dict[str, Any]) -> None:
    entry = msgspec.convert(body["entry"], AuditEntry)
    desk.batch.audit.append(entry.row(desk.clock.now_ns(), REFUSED, str(body["code"])))
