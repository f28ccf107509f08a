"""What a collection looks for: runs past their date, payloads that outlive their run or do not live as long, what nobody
refers to. It is only read, so it is read beside the core, however long that takes; `collecting.py` makes sure that what was
found is still so, where it is decided."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from treadle.kernel.errors import PASSING, BlobMissing, TreadleError
from treadle.kernel.model import TERMINAL, is_reference
from treadle.kernel.roles import FOREVER_NS, KeepingMachine
from treadle.kernel.values import Value, decode_trusted, digest
from treadle.store.loose import LOOSE_AT_ONCE, Orphans
from treadle.store.run_rows import RunRow

from . import retention
from .registry import Registry

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


# Loose payloads that are read at once.
LOOSE_PAGE: Final = 50 * LOOSE_AT_ONCE


class Found(NamedTuple):
    """A run as it was when it was looked at, and those of its payloads that it was looked at for."""

    no: int
    id: str
    seq: int
    digests: list[str]


class PastWhen(TypedDict):
    """Which runs are collected: those past their date at an instant (None: now), of all or of those operators spoke of."""

    now_ns: int | None
    ruled: bool


class Pins(NamedTuple):
    """Payloads that stay although no run holds them: all that is reached from documents of some kinds."""

    kinds: Sequence[str]
    reached: Callable[[Reads], Iterable[str]]


NO_PINS: Final = Pins((), lambda reads: ())


class Loose(NamedTuple):
    """A page of what nobody refers to; what was pinned then was pinned by documents with these digests."""

    digests: list[str]
    pinned_by: dict[str, str]
    # Where the next page begins; None if this is the last one.
    last: str | None


def past_rows(
    reads: Reads,
    which: PastWhen,
    now_ns: int,
    limit: int,
    *,
    shards: Collection[int] | None = None,
    among: Collection[int] | None = None,
) -> list[RunRow]:
    """Runs that are past their date, at the instant that was asked for or now."""
    at_ns = now_ns if which["now_ns"] is None else which["now_ns"]
    rules = retention.rules(reads, at_ns)
    return reads.retained(at_ns, limit, shards, rules, stated=not which["ruled"], among=among)


def past(reads: Reads, registry: Registry, which: PastWhen, now_ns: int, limit: int) -> list[Found]:
    """Runs to be removed, each with the payloads that it keeps for ever."""
    rows = past_rows(reads, which, now_ns, limit)
    return [Found(row.no, row.id, row.seq, lasting(reads, registry, row)) for row in rows]


def lasting(reads: Reads, registry: Registry, row: RunRow) -> list[str]:
    """The payloads that a run keeps for ever."""
    return [found for found, lives in _lifetimes(reads, registry, row).items() if lives == FOREVER_NS]


def expired(
    reads: Reads, registry: Registry, now_ns: int, before_no: int | None, limit: int
) -> tuple[list[Found], int]:
    """Payloads past their date, of one page of ended runs; then where the next page begins, or 0."""
    rows = reads.runs(status=sorted(TERMINAL), before_no=before_no, limit=limit)
    found: list[Found] = []
    for row in rows:
        ended_ns = now_ns if row.ended_ns is None else row.ended_ns
        lives = _lifetimes(reads, registry, row)
        held = set(reads.blobs_of(row.no)) if lives else set()
        over = [
            one
            for one, lifetime in lives.items()
            if lifetime is not None and ended_ns + lifetime <= now_ns and one in held
        ]
        if over:
            found.append(Found(row.no, row.id, row.seq, over))
    return found, rows[-1].no if len(rows) == limit else 0


def loose(reads: Reads, registry: Registry, pins: Callable[[], Pins], before_ns: int, after: str) -> Loose:
    """A page of the payloads that nobody refers to."""
    kinds, reached = pins()
    pinned_by = pinning(reads, kinds)
    page = reads.loose(before_ns, after, LOOSE_PAGE)
    kept = set(reached(reads)) if page else set()
    left = [one for one in page if one not in kept]
    return Loose(left, pinned_by, page[-1] if len(page) == LOOSE_PAGE else None)


def pinning(reads: Reads, kinds: Iterable[str]) -> dict[str, str]:
    """What documents of these kinds say, by kind: the same digest, the same pinned payloads."""
    return {kind: digest([[id, body] for id, body in reads.documents(kind)]) for kind in kinds}


def strays(reads: Reads, registry: Registry) -> tuple[Orphans, list[str], int]:
    """Rows whose run is gone, files without a row, and how many of these are removed at once."""
    return reads.orphans(), reads.stray_files(), reads.files_at_once


def _lifetimes(reads: Reads, registry: Registry, row: RunRow) -> dict[str, int | None]:
    """How long after a run's end each of its payloads lives; None: as long as the run. Of several
    references to one payload the longest counts."""
    try:
        loaded = registry.load(row.definition)
    except PASSING:
        raise  # it will be at hand
    except TreadleError:
        return {}  # its code is not at hand: what it stored stays with it
    machine = loaded.machine
    if not isinstance(machine, KeepingMachine) or not machine.has_lifetimes(loaded.definition):
        return {}
    found: dict[str, int | None] = {}
    looked_into: set[str] = set()
    queue: list[Value] = [record.record() for record in reads.journal(row.no) if b"checksum" in record.body]
    while queue:
        for reference in _references(queue.pop()):
            checksum = str(reference["checksum"])
            if "scope" in reference:
                lifetime = machine.lifetime_ns(reference)
                known = found.get(checksum, 0)
                found[checksum] = None if lifetime is None or known is None else max(known, lifetime)
                continue
            found[checksum] = None
            if checksum not in looked_into:
                # A large report, or a chunk of results: references stand in it too.
                looked_into.add(checksum)
                queue += _payload(reads, checksum)
    return found


def _payload(reads: Reads, checksum: str) -> list[Value]:
    """What is stored under a digest, if anything is: another collection may take it away just now."""
    if not reads.has_blob(checksum):
        return []
    try:
        return [decode_trusted(reads.blob(checksum))]
    except BlobMissing:
        if reads.has_blob(checksum):
            raise
        return []


def _references(value: Value) -> Iterator[dict[str, Value]]:
    """References to whole payloads; one with a path is an address inside another's payload."""
    if isinstance(value, dict):
        if is_reference(value):
            if "path" not in value:
                yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
