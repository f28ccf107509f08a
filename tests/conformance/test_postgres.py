"""What only a store on a server can meet: answers that get lost, a server that goes away, two processes that make it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import psycopg
import pytest
from tests.server.cable import Cable

from treadle.kernel.errors import (
    AppendConflict,
    CommitUnknown,
    ConnectionLost,
    OwnershipLost,
    StoreBusy,
    StoreTooNew,
    StoreUnavailable,
    ValueRefused,
)
from treadle.store.open import has_store, migrate_store, open_store, shown
from treadle.store.pipelines import Pipelined
from treadle.store.postgres import PostgresDialect, PostgresStore
from treadle.store.postgres_columns import Column
from treadle.store.postgres_link import PostgresConnection
from treadle.store.rows import Batch
from treadle.testing.rows import record, run_row


@pytest.fixture
def url(pg_store: str) -> str:
    return pg_store


class Cut(PostgresDialect):
    """A way to the server that is cut around the commit: before it was sent, or after it was done."""

    cut: str | None = None

    @contextlib.contextmanager
    def transaction(self, connection: PostgresConnection) -> Iterator[PostgresConnection]:
        cut, self.cut = self.cut, None
        with self.errors():
            with super().transaction(connection) as tx:
                yield tx
                if cut == "before":
                    connection.raw.close()
                    raise psycopg.OperationalError("the connection is lost")
            if cut == "after":
                connection.raw.close()
                raise psycopg.OperationalError("the connection is lost")


class CutOff(Pipelined):
    """A commit that goes on while its owner does, and whose way to the server is cut: before it was sent, or after it
    was done."""

    cut: str | None = None

    def send(self) -> None:
        if self.cut == "before":
            self._lose()
        super().send()

    def wait(self) -> None:
        super().wait()
        if self.cut == "after":
            self._lose()

    def _lose(self) -> None:
        self.tx.raw.close()
        raise psycopg.OperationalError("the connection is lost")


class CutBesides(PostgresDialect):
    cut: str | None = None

    def begin(self, connection: PostgresConnection) -> Pipelined:
        transaction = CutOff(connection, 30_000)
        transaction.cut, self.cut = self.cut, None
        return transaction


class StaysCut(PostgresDialect):
    """A way to the server that is cut, and stays cut."""

    gone = False

    def connect(self, *, readonly: bool = False) -> PostgresConnection:
        if self.gone:
            raise ConnectionLost("nobody there")
        return super().connect(readonly=readonly)


class Gone(StaysCut, Cut): ...


class GoneBesides(StaysCut, CutBesides): ...


def _owner(dialect: PostgresDialect) -> PostgresStore:
    store = PostgresStore(dialect)
    store.own()
    store.commit(Batch(runs_new={1: run_row(1)}))
    return store


def test_a_commit_whose_answer_was_lost_is_a_success_if_it_is_durable(url: str) -> None:
    dialect = Cut(url)
    with contextlib.closing(_owner(dialect)) as store:
        dialect.cut = "after"
        store.commit(Batch(records=[record(1, 1)]))
        assert [stored.seq for stored in store.journal(1)] == [1]
        store.commit(Batch(records=[record(1, 2)]))
        assert [stored.seq for stored in store.journal(1)] == [1, 2]


def test_a_commit_that_was_never_done_fails_and_can_be_made_again(url: str) -> None:
    dialect = Cut(url)
    with contextlib.closing(_owner(dialect)) as store:
        dialect.cut = "before"
        batch = Batch(records=[record(1, 1)])
        with pytest.raises(StoreUnavailable):
            store.commit(batch)
        assert store.journal(1) == []
        store.commit(batch)
        assert [stored.seq for stored in store.journal(1)] == [1]


def test_what_a_commit_asks_for_is_read_on_its_own_connection_or_not_at_all(url: str) -> None:
    answered: list[Any] = []

    class Asks(PostgresStore):
        """Loses its connection in the middle of a commit, and asks for something."""

        cut = False

        def _write_rows(self, tx: Any, batch: Batch) -> None:
            super()._write_rows(tx, batch)
            if self.cut:
                self.cut = False
                self._connection.raw.close()
                answered.append(self._one("SELECT 1"))

    with contextlib.closing(Asks(PostgresDialect(url))) as store:
        store.own()
        store.commit(Batch(runs_new={1: run_row(1)}))
        store.cut = True
        batch = Batch(records=[record(1, 1)])
        with pytest.raises(StoreUnavailable, match="in the middle of a transaction"):
            store.commit(batch)
        assert not answered
        store.commit(batch)
        assert [stored.seq for stored in store.journal(1)] == [1]


def test_a_commit_of_which_nothing_can_be_known_is_neither_done_nor_failed(
    url: str,
) -> None:
    dialect = Gone(url, reconnect_s=0.1)
    store = _owner(dialect)
    dialect.cut, dialect.gone = "after", True
    with pytest.raises(CommitUnknown):
        store.commit(Batch(records=[record(1, 1)]))
    with contextlib.closing(PostgresStore(PostgresDialect(url), name=store._name)) as anew:
        anew.own()
        assert [stored.seq for stored in anew.journal(1)] == [1], "it was durable"


def test_whoever_begins_anew_under_a_name_does_not_take_an_earlier_commit_for_its_own(url: str) -> None:
    with contextlib.closing(_owner(PostgresDialect(url))) as first:
        dialect = Cut(url)
        with contextlib.closing(PostgresStore(dialect, name=first._name)) as second:
            second.own()
            dialect.cut = "before"
            with pytest.raises(StoreUnavailable):
                second.commit(Batch(records=[record(1, 1)]))
            assert second.journal(1) == []
            second.commit(Batch(records=[record(1, 1)]))
        with pytest.raises(OwnershipLost):
            first.commit(Batch(records=[record(1, 2)]))


def test_an_answer_that_does_not_come_is_not_waited_for(pg_uri: str) -> None:
    folder = parse_qs(urlsplit(pg_uri).query)["host"][0]
    with contextlib.closing(Cable(f"{folder}/.s.PGSQL.5432")) as cable:
        way = PostgresDialect(f"postgresql://postgres@127.0.0.1:{cable.port}/postgres", answer_s=1.0)
        with contextlib.closing(way.connect()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
            cable.mute()
            with pytest.raises(psycopg.OperationalError, match="no answer"):
                connection.execute("SELECT 1")
            assert connection.raw.closed


def test_a_commit_that_goes_on_and_whose_answer_is_lost_is_a_success_if_it_is_durable(url: str) -> None:
    dialect = CutBesides(url)
    with contextlib.closing(_owner(dialect)) as store:
        for seq in (1, 3):
            dialect.cut = "after"
            commit = store.begin(Batch(records=[record(1, seq)]))
            if seq == 3:
                assert [stored.seq for stored in store.journal(1)] == [1, 2, 3], "whoever reads finds out"
            commit.finish()
            store.begin(Batch(records=[record(1, seq + 1)])).finish()
        assert [stored.seq for stored in store.journal(1)] == [1, 2, 3, 4]


def test_a_commit_that_goes_on_and_of_which_nothing_can_be_known_is_neither_done_nor_failed(
    url: str,
) -> None:
    dialect = GoneBesides(url, reconnect_s=0.1)
    store = _owner(dialect)
    dialect.cut, dialect.gone = "after", True
    commit = store.begin(Batch(records=[record(1, 1)]))
    with pytest.raises(StoreBusy):
        store.journal(1)
    with pytest.raises(CommitUnknown):
        commit.finish()


def test_a_commit_that_should_go_on_and_was_never_done_fails_and_can_be_made_again(url: str) -> None:
    dialect = CutBesides(url)
    with contextlib.closing(_owner(dialect)) as store:
        dialect.cut = "before"
        batch = Batch(records=[record(1, 1)])
        with pytest.raises(StoreUnavailable):
            store.begin(batch)
        assert store.journal(1) == []
        store.begin(batch).finish()
        assert [stored.seq for stored in store.journal(1)] == [1]


def test_what_an_old_connection_still_has_in_flight_is_barred_once_the_store_connected_again(
    url: str,
) -> None:
    with contextlib.closing(_owner(PostgresDialect(url))) as store:
        old, session = store._connection, store._session
        store._connection = PostgresDialect(url).connect()
        store._begin_session()
        held = list(store._held.items())
        with pytest.raises(psycopg.DatabaseError) as barred:
            old.execute(
                "SELECT treadle_hold(?, ?, ?, ?::integer[], ?::bigint[])",
                (store._name, session, 99, [s for s, _ in held], [e for _, e in held]),
            )
        assert barred.value.sqlstate == "TR002"
        old.close()


def test_a_connection_that_the_server_ends_is_made_anew(url: str) -> None:
    with contextlib.closing(_owner(PostgresDialect(url))) as store:
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", (store._connection.raw.info.backend_pid,))
        batch = Batch(records=[record(1, 1)])
        with contextlib.suppress(StoreUnavailable):
            store.commit(batch)
        if not store.journal(1):
            store.commit(batch)
        assert [stored.seq for stored in store.journal(1)] == [1]


def test_an_owner_that_was_replaced_commits_nothing_more(url: str) -> None:
    with contextlib.closing(_owner(PostgresDialect(url))) as old, contextlib.closing(open_store(url)) as new:
        new.own()
        with pytest.raises(OwnershipLost):
            old.commit(Batch(records=[record(1, 1)]))
        assert new.journal(1) == []


def test_processes_that_make_one_store_at_once_make_it_once(url: str) -> None:
    failed: list[BaseException] = []

    def make() -> None:
        try:
            open_store(url).close()
        except BaseException as error:
            failed.append(error)

    makers = [threading.Thread(target=make) for _ in range(4)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(60)
    assert failed == []
    assert has_store(url)


def test_a_store_that_is_newer_is_left_alone(url: str) -> None:
    open_store(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")
    with pytest.raises(StoreTooNew):
        open_store(url)


def test_migrate_says_what_was_and_what_is(url: str) -> None:
    assert not has_store(url)
    said = migrate_store(url)
    assert said["schema_before"] == 0
    assert said["schema"] > 0
    assert migrate_store(url)["schema_before"] == said["schema"]


def test_a_server_that_does_not_answer_is_said_with_its_address_and_without_the_password() -> None:
    with pytest.raises(StoreUnavailable) as refused:
        open_store("postgresql://ann:hunter2hunter2@127.0.0.1:1/orders")
    assert "127.0.0.1:1/orders" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://ann:secret@db/orders", "postgresql://ann@db/orders"),
        ("postgresql://ann@db/orders", "postgresql://ann@db/orders"),
        ("sqlite:///treadle.db", "sqlite:///treadle.db"),
    ],
)
def test_an_address_is_told_without_its_password(url: str, told: str) -> None:
    assert shown(url) == told


def test_two_holders_are_never_given_the_same_numbers(url: str) -> None:
    first, second = PostgresStore(PostgresDialect(url)), PostgresStore(PostgresDialect(url))
    with contextlib.closing(first), contextlib.closing(second):
        first.own()
        blocks = [store.reserve("run", 5) for _ in range(3) for store in (first, second)]
        given = [number for block in blocks for number in block]
        assert len(set(given)) == len(given) == 30


def test_a_lost_shard_is_told_from_those_that_are_still_held(url: str) -> None:
    with contextlib.closing(_owner(PostgresDialect(url))) as store:
        assert store.shards == len(store.held) == 64
        with psycopg.connect(url, autocommit=True) as rival:
            rival.execute("UPDATE shards SET epoch = epoch + 1 WHERE shard = 7")
        store.commit(Batch(records=[record(1, 1)], shards={6, 8}))
        with pytest.raises(OwnershipLost):
            store.commit(Batch(records=[record(1, 2)], shards={6, 7}))
        assert store.lost() == [7]
        store.commit(Batch(records=[record(1, 2)]))
        assert 7 not in store.held


def test_many_rows_in_one_statement_are_what_each_would_be_alone(url: str) -> None:
    runs = {no: run_row(no) for no in range(1, 6)}
    more = {
        "cell_key": b"\x00k",
        "version": "1",
        "parent": "r",
        "ended_ns": 2**62,
        "error": {"code": "X"},
        "reference": "é%",
    }
    runs[3] = msgspec.structs.replace(runs[3], **more)
    with contextlib.closing(PostgresStore(PostgresDialect(url))) as store:
        store.own()
        rows = [record(no, seq) for no in runs for seq in (1, 2)]
        store.commit(Batch(runs_new=runs, records=rows))
        assert [store.run_by_no(no) for no in runs] == list(runs.values())
        for no in runs:
            assert [stored.seq for stored in store.journal(no)] == [1, 2]
        # One that stays as it is, one that gets what the others have not, one that loses it.
        changed = {
            2: runs[2],
            4: msgspec.structs.replace(runs[4], error={"code": "Y"}, ended_ns=7),
            3: msgspec.structs.replace(runs[3], error=None, ended_ns=None, reference=None),
        }
        store.commit(Batch(runs_changed=changed))
        assert [store.run_by_no(no) for no in changed] == list(changed.values())
        with pytest.raises(AppendConflict):
            store.commit(Batch(records=[record(1, 3), record(5, 2)]))
        assert [stored.seq for stored in store.journal(1)] == [1, 2], "all of it or nothing"


@pytest.mark.parametrize(
    ("type", "values"),
    [
        ("bigint", [0, -1, 2**63 - 1, -(2**63), None]),
        ("integer", [0, -1, 2**31 - 1, -(2**31), None]),
        ("bytea", [b"", b"\x00\xff", None, bytes(70_000)]),
        ("text", ["", 'é%{}",', None, "NULL", "\N{GRINNING FACE}"]),
        ("text", []),
    ],
)
def test_a_column_in_the_servers_bytes_is_what_the_driver_would_send(
    url: str, type: str, values: list[object]
) -> None:
    with contextlib.closing(PostgresDialect(url).connect()) as connection:
        given = (Column(type, values), values)
        found = connection.execute(f"SELECT ?::{type}[] a, ?::{type}[] b", given).fetchone()
    assert list(found) == [values, values]


@pytest.mark.parametrize("odd", [{"reference": "a\x00b"}, {"reference": "\ud800"}, {"started_ns": 2**64}])
def test_a_value_among_many_that_the_server_does_not_take_is_refused(
    url: str, odd: dict[str, object]
) -> None:
    runs = {no: run_row(no) for no in range(1, 4)}
    runs[2] = msgspec.structs.replace(runs[2], **odd)
    with contextlib.closing(_owner(PostgresDialect(url))) as store:
        before = store.last_run_no()
        with pytest.raises(ValueRefused):
            store.commit(Batch(runs_new={no + 10: run for no, run in runs.items()}))
        assert store.last_run_no() == before
        store.commit(Batch(records=[record(1, 1)]))
