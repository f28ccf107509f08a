"""Servers on one file: each says who it is, and is known to be gone when it is."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from treadle.store.presence import FORGOTTEN_NS, FilePresence


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "t.db"
    path.touch(0o600)
    return path


def stays(told: Connection) -> None:
    told.send("begun")
    told.recv()


def files(store: Path) -> list[Path]:
    return sorted(store.with_name("t.db-servers").glob("*"))


def test_each_sees_the_others_and_what_they_said_last(store: Path) -> None:
    one, two = FilePresence(store), FilePresence(store)
    one.say({"name": "one", "shards": {"held": 0}})
    two.say({"name": "two"})
    one.say({"name": "one", "shards": {"held": 1}})
    (seen,) = two.others()
    assert (seen.id, seen.is_there, seen.about) == (one.id, True, {"name": "one", "shards": {"held": 1}})
    assert [other.about["name"] for other in one.others()] == ["two"]
    assert {path.stat().st_mode & 0o777 for path in files(store)} == {0o600}, "as the store itself"
    one.leave()
    assert two.others() == []
    two.leave()
    assert not store.with_name("t.db-servers").exists(), "nothing is left beside the store"


def test_nothing_is_written_while_nothing_changes(store: Path) -> None:
    one = FilePresence(store)
    one.say({"name": "one"})
    (path,) = files(store)
    os.utime(path, ns=(1, 1))
    one.say({"name": "one"})
    assert path.stat().st_mtime_ns == 1
    one.leave()


def test_whoever_dies_is_gone_at_once_and_forgotten_after_an_hour(store: Path) -> None:
    one, two = FilePresence(store), FilePresence(store)
    one.say({"name": "one"})
    one.release()  # as the operating system does for the dead
    (seen,) = two.others()
    assert not seen.is_there
    long_ago = time.time_ns() - FORGOTTEN_NS - 1
    os.utime(files(store)[0], ns=(long_ago, long_ago))
    assert two.others() == []
    assert files(store) == []


def test_only_who_is_gone_can_be_dismissed(store: Path) -> None:
    one, two = FilePresence(store), FilePresence(store)
    one.say({"name": "one"})
    two.say({"name": "two"})
    assert two.dismiss(one.id) is False
    assert two.dismiss(two.id) is False
    assert two.dismiss("nobody") is None
    assert two.dismiss("../t.db") is None
    assert store.exists()
    one.release()
    assert two.dismiss(one.id) is True
    assert two.others() == []
    two.leave()


def test_a_forked_child_does_not_keep_its_parent_there(store: Path) -> None:
    one, two = FilePresence(store), FilePresence(store)
    one.say({"name": "one"})
    context = multiprocessing.get_context("fork")
    end, held = context.Pipe()
    child = context.Process(target=stays, args=(held,))
    child.start()
    try:
        assert end.recv() == "begun"
        one.release()
        (seen,) = two.others()
        assert not seen.is_there
    finally:
        end.send(None)
        child.join(30)
