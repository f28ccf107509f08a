"""When another thread is asked to wait for the disk: where that is slow, and nobody takes the interpreter from both."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from treadle.store.commits import SERIALIZED, Committer
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


@pytest.mark.skipif(not SERIALIZED, reason="this SQLite lets no second thread near a connection")
def test_where_there_is_no_thread_to_be_had_nobody_is_asked_to_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the commit would fail on that account, and what it holds be taken for what is wrong."""
    dialect = SqliteDialect(tmp_path / "store.db")
    for _ in range(50):
        dialect.synced(0.01)

    def none_left(thread: Committer) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(Committer, "start", none_left)
        assert not dialect.overlaps
    assert dialect.overlaps
    with contextlib.closing(dialect.connect()) as connection:
        dialect.close(connection)
