"""Stored bytes are checked when they are read: a damaged snapshot is an error, never another state."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from treadle.kernel.errors import JournalCorrupt
from treadle.store.open import open_sqlite
from treadle.store.rows import Batch


def test_a_damaged_snapshot_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    store = open_sqlite(path)
    store.own()
    store.commit(Batch(snapshots=[(1, 4, b"four"), (1, 9, b"nine")]))
    assert store.snapshot(1) == (9, b"nine")
    other = sqlite3.connect(path)
    other.execute("UPDATE snapshots SET body = ? WHERE seq = 9", (b"nime",))
    other.commit()
    other.close()
    with pytest.raises(JournalCorrupt, match="record 9"):
        store.snapshot(1)
    assert store.snapshot(1, until_seq=8) == (4, b"four")
    store.close()
