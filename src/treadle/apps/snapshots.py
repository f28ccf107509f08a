"""Snapshots of an application's cells: which cells there are and which state each is in, as one root a workflow.

Cells are read in pages, each in a change of its own, so that events do not wait while many cells are read. What
changed meanwhile is read again at the end, in the change that writes the roots: they are of one moment all the
same. What has been gathered so far stands in a draft, which pins it; the last snapshot's roots are pinned too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from treadle.dialects.reactive.app import App
from treadle.dialects.reactive.index import EMPTY, CellIndex, Entry
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import decode_trusted, digest_bytes, encode
from treadle.lang.duration import instant_text
from treadle.runtime.finding import Pins
from treadle.store.marks import NOW
from treadle.store.run_rows import RunRow

from .cells import is_cell, queued

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk
    from treadle.store.protocol import Reads


PAGE = 500
SNAPSHOTS = "cells"
_DRAFTS = "cells.draft"


class StoreBlobs:
    """The store's blobs as the index needs them; what is put stands in the batch at hand."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def get(self, digest: str) -> bytes:
        return self._desk.batch.blobs.get(digest) or self._desk.store.blob(digest)

    def put(self, body: bytes) -> str:
        digest = digest_bytes(body)
        if digest not in self._desk.batch.blobs and not self._desk.store.has_blob(digest):
            self._desk.batch.blobs[digest] = body
        return digest


def take(desk: Desk, app: App) -> dict[str, Any]:
    """A whole snapshot in one change, for who has nobody waiting."""
    draft = begin(desk, app)
    while draft["left"]:
        draft = go_on(desk, draft, PAGE)
    return finish(desk, app, draft)


def begin(desk: Desk, app: App) -> dict[str, Any]:
    """A draft: the roots so far (those of the last snapshot), what is left to read, and from when on changes
    have to be looked at again."""
    last = desk.store.document(SNAPSHOTS, app.name) or {"roots": {}}
    mark, _ = desk.store.moved(NOW)
    return {
        "manifest": app.digest,
        "roots": {workflow: last["roots"].get(workflow, EMPTY) for workflow in app.workflows},
        "left": list(app.workflows),
        "before_no": None,
        "mark": list(mark),
    }


def page(desk: Desk, app: App, *, fresh: bool = False, limit: int = PAGE) -> dict[str, Any]:
    """One page of cells into the draft, which is begun if there is none; once all are read, the snapshot."""
    draft = desk.store.document(_DRAFTS, app.name)
    if draft is None or fresh or draft["manifest"] != app.digest:
        draft = begin(desk, app)
    if not draft["left"]:
        if (busy := queued(desk)) != []:
            raise TreadleError(f"{len(busy)} cells have queued events", code="NOT_QUIET", cls="consistency")
        taken = finish(desk, app, draft)
        desk.batch.documents.append((_DRAFTS, app.name, desk.clock.now_ns(), None))
        return {**taken, "done": True}
    draft = go_on(desk, draft, limit)
    desk.batch.documents.append((_DRAFTS, app.name, desk.clock.now_ns(), encode(draft)))
    return {"done": False}


def go_on(desk: Desk, draft: dict[str, Any], limit: int) -> dict[str, Any]:
    """Reads the next page of cells."""
    workflow = draft["left"][0]
    rows = desk.store.runs(workflow=workflow, before_no=draft["before_no"], limit=limit)
    roots = _updated(desk, draft["roots"], rows)
    if len(rows) == limit:
        return {**draft, "roots": roots, "before_no": rows[-1].no}
    return {**draft, "roots": roots, "left": draft["left"][1:], "before_no": None}


def finish(desk: Desk, app: App, draft: dict[str, Any]) -> dict[str, Any]:
    """Reads again what has changed since the draft was begun, and writes the roots. What other members decide
    meanwhile is not seen: all of it is read at one moment."""
    with desk.store.at_one_moment() if desk.held.several else nullcontext():
        _, moved = desk.store.moved((draft["mark"][0], draft["mark"][1]))
        changed = [row for run in moved if (row := desk.store.run(run.id)) is not None]
        roots = _updated(desk, draft["roots"], (row for row in changed if row.workflow in draft["roots"]))
    taken = {"app": app.name, "manifest": app.digest, "roots": roots, "at": instant_text(desk.clock.now_ns())}
    desk.batch.documents.append((SNAPSHOTS, app.name, desk.clock.now_ns(), encode(taken)))
    return taken


def _updated(desk: Desk, roots: dict[str, str], rows: Iterable[RunRow]) -> dict[str, str]:
    """The roots with some cells as they are now."""
    blobs = StoreBlobs(desk)
    index = CellIndex(blobs)
    changes: dict[str, dict[bytes, Entry | None]] = {}
    for row in filter(is_cell, rows):
        hot = desk.hot.get(row.id)
        key = b"" if row.id == row.workflow else encode(row.cell_key)
        now = None
        if hot is not None and hot.state.state is not None:
            body = encode(hot.state.state)
            now = Entry(key, digest_bytes(body), len(body), hot.state.last_ns)
        if index.find(roots[row.workflow], key) != now:
            if now is not None:
                blobs.put(body)
            changes.setdefault(row.workflow, {})[key] = now
        desk.hot.evict()
    return {name: index.update(root, changes.get(name, {})) for name, root in roots.items()}


class _ReadBlobs:
    """The store's blobs for looking only."""

    def __init__(self, reads: Reads) -> None:
        self.get = reads.blob

    def put(self, body: bytes) -> str:
        return digest_bytes(body)


def differences(reads: Reads, before: str, after: str) -> list[dict[str, Any]]:
    """The cells in which two roots differ, with the digests of their states."""
    found = []
    for one, other in CellIndex(_ReadBlobs(reads)).changes(before, after):
        key = (one or other or Entry(b"", "", 0, 0)).key
        states = {"before": one.state if one else None, "after": other.state if other else None}
        found.append({"key": decode_trusted(key) if key else None, **states})
    return found


def pinned(reads: Reads) -> Iterator[str]:
    """Every blob that the snapshots of applications hold on to."""
    index = CellIndex(_ReadBlobs(reads))
    for kind in (SNAPSHOTS, _DRAFTS):
        for _, taken in reads.documents(kind):
            for root in taken["roots"].values():
                if root != EMPTY:
                    yield from index.reachable(root)


PINS = Pins((SNAPSHOTS, _DRAFTS), pinned)
