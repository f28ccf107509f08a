"""Makes a dictionary for packed records (`treadle.store.packing`) out of the journals of stores.

    python benchmarks/dictionary.py src/treadle/store/dictionaries/2.zdict STORE.db…

A dictionary that has shipped is never replaced: stores name it by its number.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from backports import zstd

from treadle.store.packing import unpack

BYTES_MAX = 64 * 1024
# Of a dialect in a store. Few are repeated, so that they are not drowned.
PER_DIALECT = 300
FEW, REPEATED = 100, 5


def samples(path: str) -> list[bytes]:
    """The records of a store, about as many of each dialect."""
    query = "SELECT runs.dialect, journal.body FROM journal JOIN runs ON runs.no = journal.run"
    found: dict[str, list[bytes]] = {}
    for dialect, body in sqlite3.connect(path).execute(query):
        found.setdefault(dialect, []).append(unpack(body))
    return [
        body
        for bodies in found.values()
        for body in (bodies * REPEATED if len(bodies) < FEW else bodies[:PER_DIALECT])
    ]


if __name__ == "__main__":
    target, *stores = sys.argv[1:]
    taken = [body for store in stores for body in samples(store)]
    Path(target).write_bytes(zstd.train_dict(taken, BYTES_MAX).dict_content)
