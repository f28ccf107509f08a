"""The states of a workflow's cells, in three layers.

- base: the CellIndex of the last snapshot, in content-addressed storage;
- hot: recently used clean states, bounded by count;
- delta: what has changed since the snapshot (a state, or a deletion).

Reads go delta, hot, base. Writes touch only the delta, until `materialise` puts it into the base. A large
state, or an old one when the delta holds too many bytes, is spilled: its bytes move to storage, the entry
stays in the delta. Nothing but residency changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from treadle.kernel.errors import BlobCorrupt
from treadle.kernel.values import digest_bytes

from .index import EMPTY, Blobs, CellIndex, Entry

CACHE_ENTRIES: Final = 4096
SPILL_STATE_BYTES: Final = 64 * 1024
SPILL_DELTA_BYTES: Final = 16 * 1024 * 1024


@dataclass(slots=True)
class _Dirty:
    """A change since the snapshot. `entry` is None for a deletion; `body` is None once spilled."""

    entry: Entry | None
    body: bytes | None


class Cells:
    """The live head of one workflow's cells."""

    def __init__(
        self,
        blobs: Blobs,
        *,
        root: str = EMPTY,
        cache: int = CACHE_ENTRIES,
        spill_state: int = SPILL_STATE_BYTES,
        spill_delta: int = SPILL_DELTA_BYTES,
    ) -> None:
        self.root = root
        self._blobs, self._index = blobs, CellIndex(blobs)
        self._cache, self._spill_state, self._spill_delta = cache, spill_state, spill_delta
        self._hot: OrderedDict[bytes, bytes] = OrderedDict()
        self._delta: OrderedDict[bytes, _Dirty] = OrderedDict()
        self._resident = 0

    @property
    def hot_count(self) -> int:
        return len(self._hot)

    @property
    def dirty_count(self) -> int:
        return len(self._delta)

    @property
    def resident_bytes(self) -> int:
        return self._resident

    def read(self, key: bytes) -> bytes | None:
        """The bytes of a cell's state; None if there is no such cell."""
        if (dirty := self._delta.get(key)) is not None:
            if dirty.entry is None:
                return None
            return dirty.body if dirty.body is not None else self._fetch(dirty.entry)
        if (body := self._hot.get(key)) is not None:
            self._hot.move_to_end(key)
            return body
        entry = self._index.find(self.root, key)
        if entry is None:
            return None
        body = self._fetch(entry)
        self._keep_hot(key, body)
        return body

    def write(self, key: bytes, body: bytes | None, *, at_ns: int) -> None:
        """Sets a cell's state, or deletes the cell with None."""
        self._hot.pop(key, None)
        before = self._delta.pop(key, None)
        if before is not None and before.body is not None:
            self._resident -= len(before.body)
        if body is None:
            self._delta[key] = _Dirty(None, None)
            return
        entry = Entry(key, digest_bytes(body), len(body), at_ns)
        self._delta[key] = _Dirty(entry, body)
        self._resident += len(body)
        if len(body) >= self._spill_state:
            self._spill(self._delta[key])
        elif self._resident > self._spill_delta:
            self._spill_oldest()

    def entries(self) -> Iterator[Entry]:
        """All cells as they are now: the base with the delta over it."""
        for entry in self._index.entries(self.root):
            if entry.key not in self._delta:
                yield entry
        for dirty in self._delta.values():
            if dirty.entry is not None:
                yield dirty.entry

    def materialise(self) -> str:
        """Puts the delta into the base and returns the new root."""
        for dirty in self._delta.values():
            self._spill(dirty, keep=True)
        changes = {key: dirty.entry for key, dirty in self._delta.items()}
        self.root = self._index.update(self.root, changes)
        for key, dirty in self._delta.items():
            if dirty.body is not None:
                self._keep_hot(key, dirty.body)
        self._delta.clear()
        self._resident = 0
        return self.root

    def preview(self) -> str:
        """The root that `materialise` would give, without changing anything."""
        changes = {key: dirty.entry for key, dirty in self._delta.items()}
        return CellIndex(_Overlay(self._blobs)).update(self.root, changes)

    def _spill(self, dirty: _Dirty, *, keep: bool = False) -> None:
        if dirty.body is not None and dirty.entry is not None:
            self._blobs.put(dirty.body)
            if not keep:
                self._resident -= len(dirty.body)
                dirty.body = None

    def _spill_oldest(self) -> None:
        for dirty in self._delta.values():
            if self._resident <= self._spill_delta // 2:
                return
            self._spill(dirty)

    def _keep_hot(self, key: bytes, body: bytes) -> None:
        self._hot[key] = body
        self._hot.move_to_end(key)
        while len(self._hot) > self._cache:
            self._hot.popitem(last=False)

    def _fetch(self, entry: Entry) -> bytes:
        body = self._blobs.get(entry.state)
        if digest_bytes(body) != entry.state:
            raise BlobCorrupt(f"the state {entry.state} does not match its digest")
        return body


class _Overlay:
    """Blobs that are put here stay here."""

    def __init__(self, base: Blobs) -> None:
        self._base = base
        self._own: dict[str, bytes] = {}

    def get(self, digest: str) -> bytes:
        return self._own[digest] if digest in self._own else self._base.get(digest)

    def put(self, body: bytes) -> str:
        digest = digest_bytes(body)
        self._own[digest] = body
        return digest
