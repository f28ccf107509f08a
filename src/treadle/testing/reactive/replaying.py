"""Whether a world's records, decided again, give what is there: from their beginning, and from every snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.kernel.errors import ReplayDiffers
from treadle.kernel.history import replay, restore, snapshot_of
from treadle.kernel.state import RunState
from treadle.runtime.hot import BlobCache, fresh_state, load_state
from treadle.store.run_rows import RunRow

from .host import WorldHost


def rows_of(host: WorldHost) -> list[RunRow]:
    """All runs, oldest first."""
    found: list[RunRow] = []
    before: int | None = None
    while page := host.store.runs(before_no=before, limit=1_000):
        found += page
        before = page[-1].no
    return found[::-1]


def state_from(host: WorldHost, row: RunRow, cut_seq: int) -> RunState:
    """A run as its records make it, from the last snapshot that is not after `cut_seq` (0: from none)."""
    cut = host.store.snapshot(row.no, until_seq=cut_seq) if cut_seq else None
    records = host.store.journal(row.no, after_seq=cut[0] if cut else 0)
    if cut is not None:
        state = restore(cut[1])
    else:
        state = fresh_state(row)
        state.move(records[0].record()["event"]["definition"])
    replay(
        state,
        host.machine,
        lambda digest: host.registry.load(digest).definition,
        records,
        blobs=BlobCache(host.store),
    )
    return state


def open_all(host: WorldHost, cut: dict[str, int] | None) -> None:
    """Loads every run from its last snapshot, or from that of a cut, and the records after it. What is decided
    otherwise now is refused."""
    for row in rows_of(host):
        if cut is None:
            load_state(row, host.store, host.registry, BlobCache(host.store))
        else:
            state_from(host, row, cut.get(row.id, 0))


def differences(host: WorldHost) -> Iterator[tuple[str, int]]:
    """Runs that come out otherwise, and the record from which they do."""
    for row in rows_of(host):
        now = snapshot_of(load_state(row, host.store, host.registry, BlobCache(host.store)))
        for cut in (0, *host.store.snapshot_seqs(row.no)):
            try:
                got = state_from(host, row, cut)
            except ReplayDiffers:
                yield row.id, cut
                continue
            if snapshot_of(got) != now or {*got.open} != {
                id for id, run in host.store.open.items() if run == row.no
            }:
                yield row.id, cut
