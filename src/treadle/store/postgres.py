"""PostgreSQL: everything in which it differs from other SQL engines, and nothing else.

A whole batch goes to the server in one pipeline and comes back with one answer: `treadle_hold` stands at its head and
lets nothing through unless this session still is the holder, and still holds every shard the batch touches.

**A commit whose answer was lost** is neither success nor failure. The store connects again under a new session, which
bars whatever the old connection may still have in flight, and reads which commit of its own was the last to be durable.
So `commit` returns only for what is durable and raises only for what is not. Where the server stays away that cannot be
told (`CommitUnknown`): its core is over, and the next one, under the same holder's name, begins with what is there.

**A server that says nothing** (a cut cable, a stalled proxy) is one that is away: an answer that takes longer than any
statement may take is not waited for.

Nothing lives in a session that PgBouncer's transaction mode would lose: no temporary tables, no session locks, no
server-side statement names unless they pay (`?prepare=yes`). Wake-ups by NOTIFY are a luxury; polling is the fallback.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from treadle.kernel.errors import (
    AppendConflict,
    CommitUnknown,
    ConnectionLost,
    OwnershipLost,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
    TreadleError,
    ValueRefused,
)

from .commits import UnderWay
from .dialect import UNFIT, Position, Tended, unfit
from .figures import POSTGRES_BYTES
from .pipelines import Pipelined
from .postgres_columns import Column
from .postgres_link import ANSWER_S, Bounded, PostgresConnection
from .reads import SqlReads
from .rows import Batch, Numbered, asker_of
from .sql import SqlStore

if TYPE_CHECKING:
    from .blobs import BlobPlace
    from .commits import Transaction


MIGRATION_LOCK: Final = 0x54524541
CHANNEL: Final = "treadle"
SHARDS: Final = 64
_STATEMENT_MS_MAX: Final = 30_000
_CONNECT_S: Final = 5
RECONNECT_S: Final = 5.0
_POLL_S: Final = 0.5
# How long a listener waits before it looks whether it should end; how often one that hears nothing looks.
_HEAR_S: Final = 0.5
_DEAF_S: Final = 0.05
_TRY_S: Final = 2.0
_NOTICE_MAX: Final = 7_900
# Something may be there for anybody.
EVERYTHING: Final = "*"

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


class PostgresDialect(Tended):
    """How SqlStore talks to PostgreSQL."""

    name = "postgres"
    shared = True
    overlaps = True
    greatest = "greatest"
    like = "ILIKE"
    now_ns = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    append: str | None = None
    position = Position(
        mark="SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint", column="tx", found=">="
    )

    def __init__(self, url: str, *, reconnect_s: float = RECONNECT_S, answer_s: float = ANSWER_S) -> None:
        # How long a server that went away is waited for, and how long one that says nothing.
        self.reconnect_s, self._answer_s = reconnect_s, answer_s
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._prepare = options.pop("prepare", "no") == "yes"
        self._url = urlunsplit(parts._replace(query=urlencode(options)))
        netloc = parts.netloc.rpartition("@")[2]
        self.place = urlunsplit(parts._replace(netloc=netloc, query=""))

    @property
    def address(self) -> str:
        """The server's own, without what is ours in it."""
        return self._url

    def connect(self, *, readonly: bool = False) -> PostgresConnection:
        """A time-out of statements is asked for with the connection. A pooler that takes no such wishes is asked
        again without; commits bring their own."""
        with self.errors():
            asked = conninfo_to_dict(self._url)
            timeout = f"{asked.get('options') or ''} -c statement_timeout={_STATEMENT_MS_MAX}".strip()
            try:
                return PostgresConnection(self._connected({**asked, "options": timeout}))
            except psycopg.OperationalError as error:
                if "startup parameter" not in str(error):
                    raise
            return PostgresConnection(self._connected(asked))

    def _connected(self, asked: dict[str, Any]) -> psycopg.Connection[Any]:
        return Bounded.within(
            self._answer_s,
            **asked,
            autocommit=True,
            connect_timeout=_CONNECT_S,
            prepare_threshold=5 if self._prepare else None,
            application_name=f"treadle {socket.gethostname()} {os.getpid()}",
        )

    def settle(self, *, log: bool = False) -> None:
        """A server keeps its files to itself."""

    def stay(self, *, log: bool = False) -> None:
        """What the server answers for is there."""

    def close(self, connection: PostgresConnection) -> None:
        connection.close()

    def found(self) -> int:
        """The schema of the store that is there; 0 if none is yet."""
        with contextlib.closing(self.connect()) as connection:
            return self.schema_version(connection)

    def schema_version(self, connection: PostgresConnection) -> int:
        with self.errors():
            # Asked as a query and not of a cache of names: another process may have made it while we waited.
            there = connection.execute(
                "SELECT 1 FROM pg_class WHERE relname = 'meta' AND relnamespace = current_schema()::regnamespace"
            ).fetchone()
            if there is None:
                return 0
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        return int(row[0]) if row else 0

    def migrate(self, connection: PostgresConnection, migrations: list[tuple[int, str]]) -> None:
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

    def _up_to_date(self, connection: PostgresConnection, newest: int) -> bool:
        found = self.schema_version(connection)
        if found > newest:
            raise StoreTooNew.of(found, newest)
        return found == newest

    @contextlib.contextmanager
    def transaction(self, connection: PostgresConnection) -> Iterator[PostgresConnection]:
        with self.errors():
            transaction = self.begin(connection)
            try:
                yield connection
                transaction.send()
            except BaseException:
                transaction.undo()
                raise
            transaction.wait()

    def begin(self, connection: PostgresConnection) -> Transaction:
        return Pipelined(connection, _STATEMENT_MS_MAX)

    def begin_reading(self, connection: PostgresConnection) -> None:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def data_version(self, connection: PostgresConnection) -> int:
        """A server does not count: `PostgresStore.changed` goes by notices, and by the time."""
        return 0

    def checkpoint(self, connection: PostgresConnection) -> None:
        """The server keeps its own log in order."""

    def size(self, connection: PostgresConnection) -> int:
        with self.errors():
            return int(connection.execute(POSTGRES_BYTES).fetchall()[0][0])

    def integrity(self, connection: PostgresConnection) -> list[str]:
        found = connection.execute(
            "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE NOT i.indisvalid"
        ).fetchall()
        return [f"the index {name} is not valid; REINDEX it" for (name,) in found]

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the server's errors into ours."""
        try:
            yield
        except (psycopg.Error, *UNFIT) as error:
            raise (self.translate(error) if isinstance(error, psycopg.Error) else unfit(error)) from error

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


class PostgresReads(SqlReads):
    """Reads that survive their connection: what was cut is made anew, and asked again."""

    _dialect: PostgresDialect
    # Whether a transaction is under way: then an answer from another connection is none.
    _inside = False

    def _all(self, query: str, *parameters: Any) -> list[Any]:
        try:
            return super()._all(query, *parameters)
        except ConnectionLost:
            self._connect_again()
            return super()._all(query, *parameters)

    def _one(self, query: str, *parameters: Any) -> Any:
        try:
            return super()._one(query, *parameters)
        except ConnectionLost:
            self._connect_again()
            return super()._one(query, *parameters)

    @contextlib.contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Another connection would see another moment."""
        self._inside = True
        try:
            with super().at_one_moment():
                yield
        finally:
            self._inside = False

    def _connect_again(self) -> None:
        """Connects, waiting a while for the server."""
        if self._inside:
            raise ConnectionLost(f"{self._dialect.place} went away in the middle of a transaction")
        pause, until = 0.05, time.monotonic() + self._dialect.reconnect_s
        while True:
            with contextlib.suppress(Exception):
                self._connection.close()
            try:
                self._connection = self._dialect.connect()
                return
            except ConnectionLost:
                if time.monotonic() + pause > until:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 1.0)


class PostgresStore(PostgresReads, SqlStore):
    """A store on PostgreSQL, as one of its holders."""

    def __init__(
        self, dialect: PostgresDialect, files: BlobPlace | None = None, *, name: str | None = None
    ) -> None:
        self._name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._session = ""
        self._commit_no = 0
        # The last that is durable, as of the last time we had to ask.
        self._durable_no = -1
        # Whether somebody said that something is there for us, and when we last looked unasked.
        self._noticed = True
        self._polled = 0.0
        SqlStore.__init__(self, dialect, files)

    def own(self) -> int:
        epoch = super().own()
        self._commit_no = self._begin_session()
        return epoch

    def hold(self, shards: Mapping[int, int]) -> None:
        if not self._session:
            # Commits are counted on from where an earlier holder of this name was.
            self._commit_no = self._begin_session()
        super().hold(shards)

    def notice(self) -> None:
        """Somebody said that something is there for us; from any thread."""
        self._noticed = True

    def changed(self) -> bool:
        if not self._noticed and time.monotonic() - self._polled < _POLL_S:
            return False
        self._noticed, self._polled = False, time.monotonic()
        return True

    def _begin_session(self) -> int:
        """Takes the holder's name for this connection, and with it bars every older one; the number of the
        last commit that is durable."""
        self._session = secrets.token_hex(8)
        query = """INSERT INTO holders (name, session, commit_no) VALUES (?, ?, 0)
                   ON CONFLICT (name) DO UPDATE SET session = excluded.session RETURNING commit_no"""
        with self._dialect.errors():
            return int(self._connection.execute(query, (self._name, self._session)).fetchone()[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Any]:
        self._inside = True
        try:
            with super()._transaction() as tx:
                yield tx
        finally:
            self._inside = False

    def _check_epoch(self, tx: Any, shards: Iterable[int]) -> None:
        wanted = {shard: self._held.get(shard, -1) for shard in shards}
        tx.execute(
            "SELECT treadle_hold(?, ?, ?, ?::integer[], ?::bigint[])",
            (
                self._name,
                self._session,
                self._commit_no,
                Column("integer", [*wanted]),
                Column("bigint", [*wanted.values()]),
            ),
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
            if not self._came_to_be():
                raise

    def begin(self, batch: Batch) -> UnderWay:
        self._commit_no += 1
        self._inside = True
        try:
            return super().begin(batch)
        except ConnectionLost:
            if not self._came_to_be():
                raise
            return self._goes_on(lambda: None, lambda: True)
        except BaseException:
            self._inside = False
            raise

    def _finish(self, transaction: Transaction) -> None:
        try:
            super()._finish(transaction)
        except ConnectionLost:
            if not self._came_to_be():
                raise
        finally:
            self._inside = False

    def _came_to_be(self) -> bool:
        """Whether the commit whose answer was lost is durable: whoever bars the old connection is told."""
        self._inside = False
        try:
            self._connect_again()
        except ConnectionLost as away:
            raise CommitUnknown(away.message) from away
        return self._durable_no == self._commit_no

    def _connect_again(self) -> None:
        super()._connect_again()
        if self._session:
            self._durable_no = self._begin_session()

    def _write_waits(self, tx: Any, batch: Batch) -> None:
        super()._write_waits(tx, batch)
        if batch.replies or batch.inbox:
            asked = {f"r{asker_of(key)}" for key, _, _ in batch.replies}
            notify(tx, " ".join(sorted(asked | self._noticed_by(self._addressed(batch.inbox)))))

    def _post(self, tx: Any, rows: list[tuple[str, bytes, int]]) -> None:
        super()._post(tx, rows)
        notify(tx, " ".join(sorted(self._noticed_by(rows))))

    @staticmethod
    def _noticed_by(rows: Iterable[tuple[str, bytes, int]]) -> set[str]:
        return {f"i{shard}" for _, _, shard in rows}

    def close(self) -> None:
        if self._session:
            with contextlib.suppress(psycopg.Error):
                query = "DELETE FROM holders WHERE name = ? AND session = ?"
                self._connection.execute(query, (self._name, self._session))
        super().close()


def notify(tx: Any, what: str) -> None:
    """Tells everybody who listens, with the commit at hand."""
    tx.execute("SELECT pg_notify(?, ?)", (CHANNEL, what[:_NOTICE_MAX]))


class Listener(threading.Thread):
    """Hears what others tell, on a connection that does nothing else. Where none comes through (a pooler gives each
    statement another session), it only counts the time: everything is looked for now and then."""

    def __init__(self, dialect: PostgresDialect, heard: Callable[[set[str]], None]) -> None:
        super().__init__(name="treadle-listener", daemon=True)
        self._dialect = dialect
        self._heard = heard
        self._stopping = threading.Event()
        self.deaf = False

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                with contextlib.closing(self._dialect.connect()) as connection, self._dialect.errors():
                    self._listen(connection.raw)
            except StoreUnavailable:
                self._stopping.wait(_DEAF_S)
            except TreadleError:
                self.deaf = True
            while self.deaf and not self._stopping.wait(_DEAF_S):
                self._heard({EVERYTHING})

    def _listen(self, raw: psycopg.Connection[Any]) -> None:
        raw.execute(f"LISTEN {CHANNEL}")
        # What was told while nobody listened is looked for; and whether anything is heard here is tried.
        word = f"?{secrets.token_hex(8)}"
        raw.execute("SELECT pg_notify(%s, %s)", (CHANNEL, word))
        self._heard({EVERYTHING})
        heard, until = False, time.monotonic() + _TRY_S
        while not self._stopping.is_set():
            told: set[str] = set()
            for notice in raw.notifies(timeout=_HEAR_S, stop_after=1):
                told.update(notice.payload.split())
            heard = heard or word in told
            if not heard and time.monotonic() > until:
                self.deaf = True
                return
            if told := {one for one in told if not one.startswith("?")}:
                self._heard(told)
