"""When another thread is asked to wait for the disk: where that is slow, and nobody takes the interpreter from both."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.store.commits import SERIALIZED
from treadle.store.sqlite import SqliteDialect


@pytest.mark.skipif(not SERIALIZED, reason="this SQLite lets no second thread near a connection")
def test_a_slow_disk_is_waited_for_by_another_thread_but_not_in_a_crowd(tmp_path: Path) -> None:
    crowded = False
    dialect = SqliteDialect(tmp_path / "store.db", lambda: crowded)
    for _ in range(50):
        dialect.synced(0.0001)
    assert not dialect.overlaps
    for _ in range(50):
        dialect.synced(0.01)
    assert dialect.overlaps
    crowded = True
    assert not dialect.overlaps
    crowded = False
    assert dialect.overlaps
