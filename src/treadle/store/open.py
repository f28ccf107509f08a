"""From a URL to a store: the only place that knows which engine is behind an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.kernel.errors import StoreUnavailable

from .blobs import BlobFiles
from .reads import SqlReads
from .sql import SqlStore
from .sqlite import SqliteDialect


def store_path(url: str) -> Path | None:
    """The file behind `sqlite:///relative.db` or `sqlite:////absolute.db`; None for `memory:`."""
    if url in ("memory:", "memory://", ":memory:"):
        return None
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    raise StoreUnavailable(
        f"cannot open the store {url!r}: write sqlite:///relative.db, sqlite:////absolute.db or memory:"
    )


def has_store(url: str) -> bool:
    """Whether a store is there: one in memory always is, a file with nothing in it is none yet."""
    path = store_path(url)
    return path is None or schema_version(path) > 0


def migrate_store(url: str) -> dict[str, Any]:
    """Brings a store's schema up to date; which one it had and has."""
    path = store_path(url)
    before = 0 if path is None else schema_version(path)
    store = open_sqlite(path)
    after = store.schema_version
    store.close()
    return {"store": url, "schema_before": before, "schema": after}


def open_sqlite(path: Path | None) -> SqlStore:
    """A store in a file, or in memory without a path."""
    return SqlStore(SqliteDialect(path), _files(path))


def read_sqlite(path: Path) -> SqlReads:
    """Reads on a connection of their own, beside the owner's."""
    dialect = SqliteDialect(path)
    return SqlReads(dialect, dialect.connect(readonly=True), _files(path))


def schema_version(path: Path) -> int:
    """The schema of the store at a path, without touching it; 0 if none is there yet."""
    return SqliteDialect(path).found()


def _files(path: Path | None) -> BlobFiles | None:
    return None if path is None else BlobFiles(path.with_name(path.name + "-blobs"))
