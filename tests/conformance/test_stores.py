"""Every check on every backend, and random histories on all of them at once.

This is the only place where backends are enumerated: another one is one more entry of BACKENDS.
"""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fast_paths import WAYS
from tests.pooling import Pooler

from treadle.kernel.errors import AppendConflict
from treadle.kernel.values import encode
from treadle.store.open import open_sqlite, open_store, read_sqlite, read_store
from treadle.store.protocol import Reads, Store
from treadle.store.reads import SqlReads
from treadle.store.rows import Batch, TimerRow
from treadle.store.sql import SqlStore
from treadle.testing import conformance
from treadle.testing.conformance import Check, MakePlace, StoragePlace
from treadle.testing.rows import record, run_row


class SqlitePlace:
    """A database file, or memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.shared = path is not None
        self._opened: list[SqlStore] = []

    def open(self) -> Store:
        self._opened.append(open_sqlite(self._path))
        return self._opened[-1]

    def reader(self) -> Reads:
        assert self._path is not None
        return read_sqlite(self._path)

    def damage(self, digest: str) -> None:
        hexes = digest.removeprefix("sha256:")
        file = (
            None
            if self._path is None
            else self._path.with_name(self._path.name + "-blobs") / hexes[:2] / hexes[2:]
        )
        if file is not None and file.exists():
            file.write_bytes(_flipped(file.read_bytes()))
            return
        connection: sqlite3.Connection = self._opened[0]._connection
        (body,) = connection.execute("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
        connection.execute("UPDATE blobs SET body = ? WHERE digest = ?", (_flipped(body), digest))

    def close(self) -> None:
        for store in self._opened:
            store.close()


def _flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


@contextmanager
def memory() -> Iterator[StoragePlace]:
    place = SqlitePlace(None)
    yield place
    place.close()


@contextmanager
def sqlite() -> Iterator[StoragePlace]:
    with tempfile.TemporaryDirectory() as folder:
        place = SqlitePlace(Path(folder) / "treadle.db")
        yield place
        place.close()


class PostgresPlace:
    """A database, or a schema of one."""

    shared = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[SqlReads] = []

    def open(self) -> Store:
        store = open_store(self.url)
        self._opened.append(store)
        return store

    def reader(self) -> Reads:
        return read_store(self.url)

    def damage(self, digest: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute("SELECT body FROM blobs WHERE digest = %s", (digest,)).fetchone()
            assert found is not None
            connection.execute(
                "UPDATE blobs SET body = %s WHERE digest = %s", (_flipped(bytes(found[0])), digest)
            )

    def close(self) -> None:
        for store in self._opened:
            store.close()


BACKENDS = ("memory", "sqlite", "postgres")


@pytest.fixture(scope="session")
def backends(pg_uri: str) -> dict[str, MakePlace]:
    @contextmanager
    def postgres() -> Iterator[StoragePlace]:
        schema = f"place_{secrets.token_hex(6)}"
        with psycopg.connect(pg_uri, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")
        place = PostgresPlace(f"{pg_uri}&options=-csearch_path%3D{schema}")
        yield place
        place.close()
        with psycopg.connect(pg_uri, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA {schema} CASCADE")

    return {"memory": memory, "sqlite": sqlite, "postgres": postgres}


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_store_behind_a_pooler(check: Check, pooler: Pooler) -> None:
    @contextmanager
    def pooled() -> Iterator[StoragePlace]:
        with pooler.database() as url:
            place = PostgresPlace(url)
            yield place
            place.close()

    check(pooled)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_store(check: Check, backend: str, backends: dict[str, MakePlace]) -> None:
    check(backends[backend])


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_a_file_keeps_its_promises_without_a_short_way(check: Check, ways: str) -> None:
    with WAYS[ways]():
        check(sqlite)


def test_the_suite_is_not_empty() -> None:
    assert len(conformance.CHECKS) >= 20


# --- a model: all backends against a dictionary ------------------------------------------------------


class Model:
    """What a store must hold after a history, in the plainest words."""

    def __init__(self) -> None:
        self.journal: dict[int, dict[int, bytes]] = {1: {}, 2: {}}
        self.inbox: dict[str, bytes] = {}
        self.timers: dict[str, int] = {}
        self.checkpoints: dict[str, Any] = {}
        self.documents: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        return {
            "journal": {run: sorted(rows.items()) for run, rows in self.journal.items()},
            "inbox": list(self.inbox.items()),
            "timers": sorted((due, name) for name, due in self.timers.items()),
            "next": min(self.timers.values(), default=None),
            "checkpoints": self.checkpoints,
            "documents": sorted(self.documents.items()),
        }


def state_of(store: Store) -> dict[str, Any]:
    return {
        "journal": {run: [(s.seq, s.body) for s in store.journal(run)] for run in (1, 2)},
        "inbox": [(key, body) for key, body in store.inbox(1000)],
        "timers": [(timer.due_ns, timer.intent) for timer in store.timers_due(2**62, 1000)],
        "next": store.timer_next(),
        "checkpoints": store.checkpoints(1),
        "documents": store.documents("k"),
    }


NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(0, 5)
CHANGES = st.one_of(
    st.tuples(st.just("append"), st.sampled_from([1, 2]), st.integers(1, 4)),
    st.tuples(st.just("post"), NAMES, NUMBERS),
    st.tuples(st.just("read"), NAMES, NUMBERS),
    st.tuples(st.just("arm"), NAMES, NUMBERS),
    st.tuples(st.just("disarm"), NAMES, NUMBERS),
    st.tuples(st.just("save"), NAMES, NUMBERS),
    st.tuples(st.just("unsave"), NAMES, NUMBERS),
    st.tuples(st.just("document"), NAMES, NUMBERS),
    st.tuples(st.just("remove"), NAMES, NUMBERS),
)


def batch_of(changes: list[tuple[str, Any, int]], model: Model) -> tuple[Batch, bool]:
    """One commit of several changes; told to the model too, unless one of them must be refused."""
    batch, refused = Batch(), False
    for what, name, number in changes:
        match what:
            case "append":
                row: Any = record(name, number, body=encode([name, number]))
                batch.records.append(row)
                refused = refused or number in model.journal[name]
                model.journal[name].setdefault(number, encode([name, number]))
            case "read":
                batch.inbox_done.append(name)
                model.inbox.pop(name, None)
            case "arm" if name not in model.timers and name not in batch.timers_done:
                batch.timers[name] = TimerRow(name, 1, number, True)
                model.timers[name] = number
            case "disarm" if name not in batch.timers:
                batch.timers_done[name] = 1
                model.timers.pop(name, None)
            case "save" if name not in batch.checkpoints_done:
                batch.checkpoints[name] = (1, encode(number))
                model.checkpoints[name] = number
            case "unsave" if name not in batch.checkpoints:
                batch.checkpoints_done.append(name)
                model.checkpoints.pop(name, None)
            case "document":
                batch.documents.append(("k", name, 0, encode(number)))
                model.documents[name] = number
            case "remove":
                batch.documents.append(("k", name, 0, None))
                model.documents.pop(name, None)
    return batch, refused


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.lists(CHANGES, min_size=1, max_size=4), max_size=8))
def test_every_backend_agrees_with_a_model(
    backends: dict[str, MakePlace], history: list[list[tuple[str, Any, int]]]
) -> None:
    with ExitStack() as stack:
        stores = {name: stack.enter_context(make()).open() for name, make in backends.items()}
        for store in stores.values():
            store.own()
            store.commit(Batch(runs_new={1: run_row(1), 2: run_row(2)}))
        model = Model()
        for changes in history:
            kept = _copy(model)
            posts = [(name, encode(number)) for what, name, number in changes if what == "post"]
            batch, refused = batch_of(changes, model)
            for store in stores.values():
                if refused:
                    with pytest.raises(AppendConflict):
                        store.commit(batch)
                else:
                    store.commit(batch)
                store.post(posts)
            if refused:
                model = kept
            for key, body in posts:
                model.inbox.setdefault(key, body)
            for name, store in stores.items():
                assert state_of(store) == model.state(), name


def _copy(model: Model) -> Model:
    copy = Model()
    copy.journal = {run: dict(rows) for run, rows in model.journal.items()}
    for name in ("inbox", "timers", "checkpoints", "documents"):
        setattr(copy, name, dict(getattr(model, name)))
    return copy
