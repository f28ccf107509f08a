"""Whether stored bytes are the bytes that were written: what was damaged meanwhile is an error, and never taken for what it was.

When all is quiet one bit after another is turned over on the disk, in records, snapshots, payloads and definitions, and
whoever reads that is refused, or reads what was written (there is an older snapshot, or none is needed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import TreadleError
from treadle.runtime import document
from treadle.runtime.hot import BlobCache, load_state
from treadle.runtime.registry import Registry, machines_of

if TYPE_CHECKING:
    from .world import SimWorld

# How many rows of each table are damaged.
EACH: Final = 2
Read = Callable[[], Any]


def check_bytes(world: SimWorld) -> None:
    rng = Random(world.seed)
    for where, read, damage in _rows(world, rng):
        before = read()
        mend = damage()
        try:
            found = read()
        except TreadleError:
            continue
        finally:
            mend()
        assert found == before, f"{where} is damaged, and is taken for what it was"


def _rows(world: SimWorld, rng: Random) -> Iterator[tuple[str, Read, Callable[[], Read]]]:
    readers: list[tuple[str, str, Callable[[Any], Any]]] = [
        ("journal", "run", partial(_events, world)),
        ("journal", "run", partial(_state, world)),
        ("snapshots", "run", partial(_state, world)),
        ("blobs", "digest", world.store.blob),
        ("definitions", "digest", world.store.definition),
    ]
    for table, key, read in readers:
        query = f"SELECT rowid, {key}, body FROM {table} WHERE body IS NOT NULL ORDER BY rowid"
        rows = world.disk.live.execute(query).fetchall()
        for rowid, named, body in rng.sample(rows, min(EACH, len(rows))):
            write = _writer(world, table, rowid, body, _turned(rng, body))
            yield f"{table} {named}", partial(read, named), write


def _writer(world: SimWorld, table: str, rowid: int, body: bytes, other: bytes) -> Callable[[], Read]:
    def put(what: bytes) -> None:
        world.disk.live.execute(f"UPDATE {table} SET body = ? WHERE rowid = ?", (what, rowid))

    def damage() -> Read:
        put(other)
        return lambda: put(body)

    return damage


def _turned(rng: Random, body: bytes) -> bytes:
    at = rng.randrange(len(body))
    return body[:at] + bytes([body[at] ^ (1 << rng.randrange(8))]) + body[at + 1 :]


def _events(world: SimWorld, no: int) -> Any:
    """What somebody is shown of it."""
    row = world.store.run_by_no(no)
    assert row is not None
    return [*document.events(world.store, row, world.workload.machines[row.dialect])]


def _state(world: SimWorld, no: int) -> Any:
    """A run as whoever reads it next would have it."""
    row, store = world.store.run_by_no(no), world.store
    assert row is not None
    registry = Registry(machines_of(world.workload.machines), store)
    found = load_state(row, store, registry, BlobCache(store))
    return found.seq, found.digest, found.state, sorted(found.open)
