"""Where a store is: its address, the file behind it, and the schema that file has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treadle.kernel.errors import StoreUnavailable
from treadle.store.sql import open_sqlite, schema_version


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
