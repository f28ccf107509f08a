"""How long ended runs are kept, as operators say it: of one workflow, or of all of which nobody says more.

What they say wins over what a definition says, from the moment on that they say it: the date of a run is made of its end
and of what is said when it is asked for. Servers collect by themselves what operators spoke of, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import Unsupported
from treadle.kernel.values import Value, encode
from treadle.lang.retention import NEVER_NS, Retention
from treadle.store.ages import RETURNED
from treadle.store.rows import AgeRule
from treadle.store.run_rows import RunRow

from .registry import kept_until

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


KIND: Final = "retention"
# The name under which all other workflows are spoken of.
ALL: Final = "*"
_NAME_CHARS_MAX: Final = 200


def said(reads: Reads) -> dict[str, Retention]:
    """What operators have said, by workflow."""
    return {name: Retention.of(value) for name, value in reads.documents(KIND)}


def rules(reads: Reads, now_ns: int) -> list[AgeRule]:
    """Which runs are past their date at an instant, as operators see it."""
    spoken = said(reads)
    found: list[AgeRule] = []
    for name, told in spoken.items():
        for status, age_ns in told.ages_ns.items():
            others = [other for other in spoken if other != ALL and status in spoken[other].ages]
            ended_by = None if age_ns == NEVER_NS else now_ns - age_ns
            rule = AgeRule(status, ended_by, but=others) if name == ALL else AgeRule(status, ended_by, name)
            found.append(rule)
    return found


def kept_until_ns(reads: Reads, row: RunRow) -> int | None:
    """The date of a run that has ended; None where it has none: it goes on, is kept for ever, or was put back
    from an archive."""
    if row.retain_ns is None or row.ended_ns is None or reads.document(RETURNED, row.id) is not None:
        return None
    until_ns = row.retain_ns
    spoken = said(reads)
    for name in (ALL, row.workflow):
        age_ns = spoken[name].ages_ns.get(row.status) if name in spoken else None
        if age_ns is not None:
            until_ns = kept_until(row.ended_ns, age_ns)
    return None if until_ns == NEVER_NS else until_ns


def perform(desk: Desk, body: dict[str, Value]) -> None:
    """One operation on what is said of one workflow, as data."""
    name = checked_name(body["name"])
    desk.belongs("")
    value: bytes | None = None
    match body["do"]:
        case "set":
            value = encode(Retention.read(body["keep"]).to_value())
        case "remove":
            if desk.store.document(KIND, name) is None:
                raise not_said(name)
        case other:
            raise Unsupported(f"{other!r:.40} is not an operation on retention")
    desk.batch.documents.append((KIND, name, desk.clock.now_ns(), value))


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME_CHARS_MAX:
        raise Unsupported(f"retention is set for a workflow by its name, or for all others as {ALL!r}")
    return name


def not_said(name: str) -> Unsupported:
    return Unsupported(
        f"nobody has said how long runs of {name!r:.80} are kept; `treadle retention list` shows what is said",
        code="RETENTION_NOT_FOUND",
    )


def listed(reads: Reads) -> list[dict[str, Value]]:
    """What operators have said, by workflow; what counts for all others last."""
    spoken = said(reads)
    return [shown(name, spoken[name]) for name in sorted(spoken, key=lambda name: (name == ALL, name))]


def shown(name: str, told: Retention | None) -> dict[str, Value]:
    return {"workflow": name, "keep": None if told is None else told.to_value()}
