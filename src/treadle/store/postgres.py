"""PostgreSQL: everything in which it differs from other SQL engines, and nothing else.

A whole batch goes to the server in one pipeline and comes back with one answer: `treadle_hold` stands at its head and
lets nothing through unless this session still is the holder, and still holds every shard the batch touches.

**A commit whose answer was lost** is neither success nor failure. The store connects again under a new session, which
bars whatever the old connection may still have in flight, and reads which commit of its own was the last to be durable.
So `commit` returns only for what is durable and raises only for what is not; nobody above needs a third word.

Nothing lives in a session that PgBouncer's transaction mode would lose: no temporary tables, no session locks, no
server-side statement names unless they pay (`?prepare=yes`). Wake-ups by NOTIFY are a luxury; polling is the fallback.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import errors as pg

from treadle.kernel.errors import (
    AppendConflict,
    OwnershipLost,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    TreadleError,
    ValueRefused,
)

from .dialect import Position
from .protocol import Batch, Numbered
from .sql import SqlStore

MIGRATION_LOCK: Final = 0x54524541
CHANNEL: Final = "treadle"
SHARDS: Final = 64
CLAIM_LOCK: Final = MIGRATION_LOCK + 1
# How long an owner that is silent stays the owner; it says that it is there well before.
LEASE_NS: Final = 5_000_000_000
_RENEW_S: Final = 1.5
# How often a process that waits for its turn asks.
_ASK_S: Final = 0.2
_ALONE: Final = " alone"
_NOW_NS: Final = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"
_STATEMENT_MS_MAX: Final = 30_000
_CONNECT_S: Final = 5
_RECONNECT_S_MAX: Final = 30.0
_POLL_S: Final = 0.5

_BY_STATE: Final[dict[str, type[TreadleError]]] = {
    "53100": StoreFull,
    "25006": StoreReadOnly,
    "42501": StoreReadOnly,
    "40001": StoreBusy,
    "40P01": StoreBusy,
    "55P03": StoreBusy,
    "57014": StoreBusy,
    "22P02": ValueRefused,
    "22P05": ValueRefused,
    "22021": ValueRefused,
    "22003": ValueRefused,
    "TR001": OwnershipLost,
    "TR002": OwnershipLost,
}


class ConnectionLost(StoreUnavailable):
    """The server went away, or the way to it did."""


@lru_cache(maxsize=1024)
def _spelled(query: str) -> str:
    """A shared statement in this driver's spelling."""
    return query.replace("%", "%%").replace("?", "%s")


class Connection:
    """A connection with the few calls that the shared store makes of one."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def execute(self, query: str, parameters: Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        return self.raw.execute(_spelled(query), parameters or None)

    def executemany(self, query: str, rows: Iterable[Sequence[Any]]) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(_spelled(query), rows)

    def close(self) -> None:
        self.raw.close()


class PostgresDialect:
    """How SqlStore talks to PostgreSQL."""

    name = "postgres"
    shared = True
    greatest = "greatest"
    like = "ILIKE"
    append: str | None = None
    position = Position(
        mark="SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint", column="tx", found=">="
    )

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._prepare = options.pop("prepare", "no") == "yes"
        self._url = urlunsplit(parts._replace(query=urlencode(options)))
        netloc = parts.netloc.rpartition("@")[2]
        self.place = urlunsplit(parts._replace(netloc=netloc, query=""))
        self._noticed = 0
        self._polled = 0.0

    def connect(self, *, readonly: bool = False) -> Connection:
        with self.errors():
            raw = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                prepare_threshold=5 if self._prepare else None,
                application_name=f"treadle {socket.gethostname()} {os.getpid()}",
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
            )
            raw.execute(f"SET statement_timeout = {_STATEMENT_MS_MAX}")
            if readonly:
                raw.execute("SET default_transaction_read_only = on")
            else:
                with contextlib.suppress(psycopg.Error):
                    raw.execute(f"LISTEN {CHANNEL}")
        return Connection(raw)

    def settle(self, *, log: bool = False) -> None:
        """A server keeps its files to itself."""

    def stay(self, *, log: bool = False) -> None:
        """What the server answers for is there."""

    def close(self, connection: Connection) -> None:
        connection.close()

    def found(self) -> int:
        """The schema of the store that is there; 0 if none is yet."""
        with contextlib.closing(self.connect()) as connection:
            return self.schema_version(connection)

    def schema_version(self, connection: Connection) -> int:
        with self.errors():
            # Asked as a query and not of a cache of names: another process may have made it while we waited.
            there = connection.execute(
                "SELECT 1 FROM pg_class WHERE relname = 'meta' AND relnamespace = current_schema()::regnamespace"
            ).fetchone()
            if there is None:
                return 0
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        return int(row[0]) if row else 0

    def migrate(self, connection: Connection, migrations: list[tuple[int, str]]) -> None:
        """Runs what is missing, one process at a time, all of it or nothing."""
        newest = migrations[-1][0]
        if self._up_to_date(connection, newest):
            return
        with self.errors(), connection.raw.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
            found = self.schema_version(connection)
            for number, script in migrations:
                if number > found:
                    connection.raw.execute(script)
            if found == 0:
                rows = [(shard,) for shard in range(SHARDS)]
                connection.executemany("INSERT INTO shards (shard, epoch) VALUES (?, 0)", rows)
            connection.execute(
                "INSERT INTO meta (key, value) VALUES ('schema', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                (str(newest),),
            )

    def _up_to_date(self, connection: Connection, newest: int) -> bool:
        found = self.schema_version(connection)
        if found > newest:
            raise StoreTooNew(f"schema {found}; this Treadle knows up to {newest}")
        return found == newest

    @contextlib.contextmanager
    def transaction(self, connection: Connection) -> Iterator[Connection]:
        """One pipeline: the statements go out together, the first error undoes all of them."""
        failed: BaseException | None = None
        with connection.raw.pipeline() as pipeline:
            connection.execute("BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
                pipeline.sync()
            except BaseException as error:
                failed = error
                with contextlib.suppress(
                    psycopg.Error
                ):  # what is still on its way meets an aborted transaction
                    pipeline.sync()
        if failed is not None:
            with contextlib.suppress(psycopg.Error):
                connection.raw.rollback()
            raise failed

    def data_version(self, connection: Connection) -> int:
        """Moves when others have written: told by a notice, or assumed now and then where none comes."""
        own = connection.raw.info.backend_pid
        if any(notice.pid != own for notice in connection.raw.notifies(timeout=0)):
            self._noticed += 1
        elif time.monotonic() - self._polled > _POLL_S:
            self._polled = time.monotonic()
            self._noticed += 1
        return self._noticed

    def checkpoint(self, connection: Connection) -> None:
        """The server keeps its own log in order."""

    def integrity(self, connection: Connection) -> list[str]:
        found = connection.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE NOT i.indisvalid"
        ).fetchall()
        return [f"the index {name} is not valid; REINDEX it" for (name,) in found]

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the server's errors into ours."""
        try:
            yield
        except psycopg.Error as error:
            raise self.translate(error) from error

    def translate(self, error: psycopg.Error) -> TreadleError:
        state = error.sqlstate or ""
        if isinstance(error, pg.UniqueViolation):
            return AppendConflict(f"{error.diag.constraint_name or 'a key'} is taken")
        if state in _BY_STATE:
            return _BY_STATE[state](f"{self.place}: {_first_line(error)}")
        if isinstance(error, psycopg.DataError):
            return ValueRefused(f"the store cannot hold a value: {_first_line(error)}")
        if not state or state.startswith(("08", "57P")):
            return ConnectionLost(
                f"{self.place} does not answer: {_first_line(error)}. Check that the server runs and the address is right"
            )
        return StoreUnavailable(f"{self.place}: {_first_line(error)} ({state})")


def _first_line(error: psycopg.Error) -> str:
    return str(error).strip().partition("\n")[0]


class PostgresStore(SqlStore):
    """A store on PostgreSQL, as one of its holders."""

    def __init__(self, dialect: PostgresDialect, *, name: str | None = None) -> None:
        self._name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._session = ""
        self._commit_no = 0
        self._postgres = dialect
        super().__init__(dialect, None)

    def own(self) -> int:
        epoch = super().own()
        self._begin_session()
        return epoch

    def _begin_session(self) -> int:
        """Takes the holder's name for this connection, and with it bars every older one; the number of the
        last commit that is durable."""
        self._session = secrets.token_hex(8)
        query = """INSERT INTO holders (name, session, commit_no) VALUES (?, ?, 0)
                   ON CONFLICT (name) DO UPDATE SET session = excluded.session RETURNING commit_no"""
        return int(self._one(query, self._name, self._session)[0])

    def _check_epoch(self, tx: Any, shards: Iterable[int]) -> None:
        wanted = {shard: self._held.get(shard, -1) for shard in shards}
        tx.execute(
            "SELECT treadle_hold(?, ?, ?, ?::integer[], ?::bigint[])",
            (self._name, self._session, self._commit_no, list(wanted), list(wanted.values())),
        )

    def reserve(self, kind: Numbered, count: int) -> range:
        """From a row of the store's own, so that several holders are never given the same ones."""
        table = "runs" if kind == "run" else "tasks"
        query = f"""INSERT INTO meta (key, value) VALUES (?, (SELECT coalesce(max(no), 0) + ? FROM {table})::text)
                    ON CONFLICT (key) DO UPDATE SET value =
                    (greatest(meta.value::bigint, (SELECT coalesce(max(no), 0) FROM {table})) + ?)::text RETURNING value"""
        with self._dialect.errors():
            last = int(self._one(query, f"last_{kind}", count, count)[0])
        return range(last - count + 1, last + 1)

    def commit(self, batch: Batch) -> None:
        self._commit_no += 1
        try:
            super().commit(batch)
        except ConnectionLost:
            if self._reconnected() != self._commit_no:
                raise

    def _reconnected(self) -> int:
        """Connects again, waiting a while for the server; the last commit that is durable."""
        pause, until = 0.05, time.monotonic() + _RECONNECT_S_MAX
        while True:
            with contextlib.suppress(Exception):
                self._connection.close()
            try:
                self._connection = self._postgres.connect()
                return self._begin_session()
            except ConnectionLost:
                if time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

    def _write_waits(self, tx: Any, batch: Batch) -> None:
        super()._write_waits(tx, batch)
        if batch.replies or batch.inbox:
            tx.execute(f"NOTIFY {CHANNEL}")

    def post(self, messages: Iterable[tuple[str, bytes]]) -> None:
        super().post(messages)
        with self._dialect.errors():
            self._connection.execute(f"NOTIFY {CHANNEL}")


class Lease:
    """The ownership of a store on a server: rows with an end, by the database's clock.

    It is for speed and good manners, as the lock of a file is: what protects the data is the epoch inside every commit.
    An owner that was silent for longer than its lease finds that out at its next commit, if not before.
    """

    alone = False

    def __init__(self, dialect: PostgresDialect) -> None:
        self._dialect = dialect
        self._connection: Connection | None = None
        self._name = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(4)}"
        self._holds = False
        self._asked = self._renewed = 0.0

    def acquire(self) -> bool:
        if self._holds:
            return True
        if time.monotonic() - self._asked < _ASK_S:
            return False
        self._asked = time.monotonic()
        with self._dialect.errors(), self._connected().raw.transaction():
            connection = self._connected()
            # One at a time, so that two that claim the same rows never wait for one another.
            connection.execute("SELECT pg_advisory_xact_lock(?)", (CLAIM_LOCK,))
            free = connection.execute(
                f"SELECT count(*) FROM shards WHERE until_ns >= {_NOW_NS} AND owner <> ?", (self._owner(),)
            ).fetchone()
            if free is not None and free[0] == 0:
                connection.execute(
                    f"UPDATE shards SET owner = ?, until_ns = {_NOW_NS} + ?", (self._owner(), LEASE_NS)
                )
                self._holds = True
        self._renewed = time.monotonic()
        return self._holds

    def renew(self) -> None:
        if time.monotonic() - self._renewed < _RENEW_S:
            return
        try:
            with self._dialect.errors():
                done = self._connected().execute(
                    f"UPDATE shards SET until_ns = {_NOW_NS} + ? WHERE owner = ?", (LEASE_NS, self._owner())
                )
        except ConnectionLost:
            self._close()
            if time.monotonic() - self._renewed > LEASE_NS / 1e9:
                raise OwnershipLost(
                    f"{self._dialect.place} did not answer for as long as a lease lasts"
                ) from None
            return
        if done.rowcount == 0:
            raise OwnershipLost("another process took this store over")
        self._renewed = time.monotonic()

    def helps(self) -> None:
        before = self._owner()
        self.alone = False
        if self._holds:
            with self._dialect.errors():
                self._connected().execute(
                    "UPDATE shards SET owner = ? WHERE owner = ?", (self._owner(), before)
                )

    def works_alone(self) -> str | None:
        owner = self._holder()
        return owner if owner is not None and owner.endswith(_ALONE) else None

    def waits_for(self) -> str:
        return f"{self._holder() or 'nobody'} owns this store and has not answered yet; if it hangs, stop it"

    def release(self) -> None:
        if self._holds:
            with contextlib.suppress(StoreUnavailable), self._dialect.errors():
                self._connected().execute("UPDATE shards SET until_ns = 0 WHERE owner = ?", (self._owner(),))
        self._holds = False
        self._close()

    def _owner(self) -> str:
        return self._name + _ALONE if self.alone else self._name

    def _holder(self) -> str | None:
        with self._dialect.errors():
            row = self._connected().execute("SELECT owner FROM shards WHERE shard = 0").fetchone()
        return None if row is None else row[0]

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.raw.closed:
            self._connection = self._dialect.connect()
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
