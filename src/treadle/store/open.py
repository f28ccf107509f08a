"""From a URL to a store: the only place that knows which engine is behind an address. Whoever has to tell a shared
store from a file asks here (`is_postgres`, `Place`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from treadle.kernel.errors import StoreUnavailable, Unsupported

from .blobs import blobs_at
from .connection import UNFINISHED
from .owner import OwnerLock
from .reads import SqlReads
from .sql import SqlStore, migrations
from .sqlite import SqliteDialect

if TYPE_CHECKING:
    from .blobs import BlobPlace
    from .members import Membership
    from .owner import Tenure
    from .postgres import Listener, PostgresDialect


def store_path(url: str) -> Path | None:
    """The file behind `sqlite:///relative.db` or `sqlite:////absolute.db`; None for `memory:`."""
    if url in ("memory:", "memory://", ":memory:"):
        return None
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    raise _no_address(url)


def is_postgres(url: str) -> bool:
    """Whether an address is one of PostgreSQL; one that begins so and is none is refused."""
    if not url.startswith(("postgresql://", "postgres://")):
        return False
    try:
        urlsplit(url)
    except ValueError as error:
        raise _no_address(url) from error
    return True


def _no_address(url: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot open the store {shown(url)!r}: write sqlite:///relative.db, sqlite:////absolute.db, memory: "
        "or postgresql://user@host/database",
        cls="user",
        code="STORE_URL_INVALID",
    )


def has_host(url: str) -> bool:
    """Whether an address names a machine at all."""
    try:
        return bool(urlsplit(url).hostname)
    except ValueError:
        return False


def shown(url: str) -> str:
    """An address as it may be told: without its password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no address; what it holds is not to be seen
        return f"{url.partition('://')[0]:.20}://…"
    if parts.password is None:
        return url
    user = parts.netloc.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}"))


class Place(msgspec.Struct, frozen=True):
    """Where an engine's store is, and all that differs by that."""

    url: str
    # The file, where it is one.
    path: Path | None

    @staticmethod
    def of(url: str) -> Place:
        return Place(url, None if is_postgres(url) else store_path(url))

    @property
    def shared(self) -> bool:
        """Whether other processes, and other connections of ours, can see it."""
        return self.path is not None or is_postgres(self.url)

    def check(self) -> None:
        """Refuses a place where no store can be, before anything is opened."""
        if self.path is not None and not self.path.parent.is_dir():
            raise StoreUnavailable(
                f"the folder {self.path.parent} does not exist; create it, or choose another --store",
                cls="user",
                code="NO_FOLDER",
            )

    def has_store(self) -> bool:
        return has_store(self.url)

    def open(self, *, holder: str | None = None, crowded: Callable[[], bool] = lambda: False) -> SqlStore:
        """The store, for who decides in it. A `holder` bars whatever an earlier one of its name still has in flight. It is
        `crowded` while other threads take the interpreter from whoever does."""
        return open_store(self.url, holder=holder, crowded=crowded)

    def reader(self) -> SqlReads:
        return read_store(self.url)

    def tenure(self) -> Tenure | None:
        """How a process becomes the one owner of a file; None where there is no file."""
        return None if self.path is None else OwnerLock(self.path)

    def membership(self) -> Membership | None:
        """How a process becomes one of several that share a store; None where there is one owner."""
        if not is_postgres(self.url):
            return None
        dialect = _postgres_dialect(self.url)
        from .members import Membership
        from .postgres import notify

        return Membership(dialect, notify=notify)

    def listener(self, heard: Callable[[set[str]], None]) -> Listener | None:
        """What hears others say that something is there; None where nothing is said."""
        if not is_postgres(self.url):
            return None
        dialect = _postgres_dialect(self.url)
        from .postgres import Listener

        return Listener(dialect, heard)


def newest_schema(url: str) -> int:
    """The schema that this version makes and reads."""
    return migrations("postgres" if is_postgres(url) else "sqlite")[-1][0]


def open_store(
    url: str, *, holder: str | None = None, crowded: Callable[[], bool] = lambda: False
) -> SqlStore:
    """The store at an address, with the right to write; it is made, or brought up to date, where it has to be."""
    return _postgres(url, holder) if is_postgres(url) else open_sqlite(store_path(url), crowded)


def read_store(url: str) -> SqlReads:
    """Reads on a connection of their own, beside whoever writes."""
    if is_postgres(url):
        dialect = _postgres_dialect(url)
        from .postgres import PostgresReads

        return PostgresReads(dialect, dialect.connect(readonly=True), _files(None))
    path = store_path(url)
    if path is None:
        raise StoreUnavailable("a store in memory has no second connection")
    return read_sqlite(path)


def has_store(url: str) -> bool:
    """Whether a store is there: one in memory always is, a file with nothing in it is none yet."""
    if is_postgres(url):
        return _postgres_dialect(url).found() > 0
    path = store_path(url)
    return path is None or schema_version(path) > 0


def migrate_store(url: str) -> dict[str, Any]:
    """Brings a store's schema up to date; which one it had and has."""
    if is_postgres(url):
        before = _postgres_dialect(url).found()
    else:
        path = store_path(url)
        before = 0 if path is None else schema_version(path)
    store = open_store(url)
    after = store.schema_version
    store.close()
    return {"store": shown(url), "schema_before": before, "schema": after}


def copy_store(source: str, target: str) -> dict[str, Any]:
    """Copies a whole store to a place where none is yet, and checks every digest; how many rows of each kind."""
    from . import copying  # no engine copies its store

    place = Place.of(source)
    if not place.has_store():
        raise StoreUnavailable(f"there is no store at {shown(source)}")
    if place.path is not None and store_path_or_none(target) == place.path:
        raise Unsupported("a store is not copied onto itself", code="STORE_NOT_EMPTY")
    tenure = place.tenure()
    if tenure is not None and not tenure.acquire():
        raise Unsupported(
            f"{tenure.waits_for()}; a store is copied while nobody works on it", code="STORE_OWNED"
        )
    try:
        with contextlib.closing(open_store(source)) as there, contextlib.closing(open_store(target)) as here:
            copied = copying.copy(there, here)
            here.keep_key(there.work_key())
            here.note_of_store(UNFINISHED, None)
    finally:
        if tenure is not None:
            tenure.release()
    return {"from": shown(source), "to": shown(target), "verified": True, **copied.counts}


def store_path_or_none(url: str) -> Path | None:
    return None if is_postgres(url) else store_path(url)


def open_sqlite(path: Path | None, crowded: Callable[[], bool] = lambda: False) -> SqlStore:
    """A store in a file, or in memory without a path."""
    store = SqlStore(SqliteDialect(path, crowded), None if path is None else _files(path))
    if path is None:
        store.end_with_its_holder()
    return store


def read_sqlite(path: Path) -> SqlReads:
    """Reads on a connection of their own, beside the owner's."""
    dialect = SqliteDialect(path)
    return SqlReads(dialect, dialect.connect(readonly=True), _files(path))


def schema_version(path: Path) -> int:
    """The schema of the store at a path, without touching it; 0 if none is there yet."""
    return SqliteDialect(path).found()


def _files(path: Path | None) -> BlobPlace | None:
    return blobs_at(os.environ.get("TREADLE_BLOBS"), path)


def _postgres_dialect(url: str) -> PostgresDialect:
    try:
        from .postgres import PostgresDialect
    except ModuleNotFoundError as error:
        raise StoreUnavailable("PostgreSQL needs a driver: pip install 'treadle[postgres]'") from error
    return PostgresDialect(url)


def _postgres(url: str, holder: str | None) -> SqlStore:
    dialect = _postgres_dialect(url)
    from .postgres import PostgresStore

    return PostgresStore(dialect, _files(None), name=holder)
