"""Makes a dictionary for the packed records of a dialect (`treadle.store.packing`) out of records that its runs left.

    TREADLE_SAMPLES=/tmp/samples PYTHONPATH=benchmarks python -m pytest -p dictionary tests/dialects/playbook
    python benchmarks/dictionary.py playbook 3 /tmp/samples STORE.db…

The first line has the tests write down every record that they commit; the second makes `3-playbook.zdict` of a choice of
them and of the stores' records, and says what it does for those that it was not made of. No workflow may fill the
dictionary: of those that occur often, a few records are taken.

A dictionary that has shipped is never replaced: stores name it by its number.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from backports import zstd

from treadle.store import packing, sql
from treadle.store.rows import Batch

FOLDER = Path(packing.__file__).parent / "dictionaries"
BYTES_MAX = 48 * 1024
# Records that differ only in numbers and ids are one shape, of which so many are taken.
PER_SHAPE = 12
LONG = 6_000


def pytest_configure() -> None:
    """As a plug-in of pytest: what is committed is written down."""
    folder = Path(os.environ["TREADLE_SAMPLES"])
    folder.mkdir(parents=True, exist_ok=True)
    values = sql.record_values

    def noted(batch: Batch) -> list[tuple[Any, ...]]:
        for run, _, _, opens, closes, _, body in batch.records:
            note(folder, batch.dialects.get(run, ""), packing.without_ids(body, opens, closes))
        return values(batch)

    sql.record_values = noted


def note(folder: Path, dialect: str, body: bytes | None) -> None:
    if body is not None and dialect:
        with (folder / dialect).open("ab") as file:
            file.write(len(body).to_bytes(4, "big") + body)


def noted_in(file: Path) -> Iterator[bytes]:
    read = file.read_bytes()
    at = 0
    while at < len(read):
        size = int.from_bytes(read[at : at + 4], "big")
        yield read[at + 4 : at + 4 + size]
        at += 4 + size


def stored_in(path: Path, dialect: str) -> Iterator[bytes]:
    query = (
        "SELECT body, opens, closes FROM journal JOIN runs ON runs.no = journal.run WHERE runs.dialect = ?"
    )
    for body, opens, closes in sqlite3.connect(path).execute(query, (dialect,)):
        cut = packing.without_ids(packing.unpack(body, opens, closes), opens, closes)
        if cut is not None:
            yield cut


def shape_of(body: bytes) -> bytes:
    return re.sub(rb"[^a-zA-Z_.]+", b"", body)[:400]


def chosen(bodies: Iterator[bytes], rng: Random) -> list[bytes]:
    """A few of each shape, in the order of chance."""
    shapes: dict[bytes, list[bytes]] = defaultdict(list)
    for body in bodies:
        if len(body) <= LONG and len(same := shapes[shape_of(body)]) < PER_SHAPE:
            same.append(body)
    found = [body for same in shapes.values() for body in same]
    rng.shuffle(found)
    return found


def packed_bytes(dictionary: zstd.ZstdDict, bodies: list[bytes]) -> float:
    options = {zstd.CompressionParameter.compression_level: 3, zstd.CompressionParameter.dict_id_flag: 0}
    codec = zstd.ZstdCompressor(options=options, zstd_dict=dictionary.as_digested_dict)
    return sum(len(codec.compress(body, codec.FLUSH_FRAME)) - 2 for body in bodies) / len(bodies)


def main(dialect: str, number: str, folder: str, *stores: str) -> None:
    target = FOLDER / f"{number}-{dialect}.zdict"
    if target.exists():
        raise SystemExit(f"{target} has shipped; take the next number")

    def bodies() -> Iterator[bytes]:
        yield from noted_in(Path(folder) / dialect)
        for store in stores:
            yield from stored_in(Path(store), dialect)

    taken = chosen(bodies(), Random(number))
    aside, used = taken[: len(taken) // 5], taken[len(taken) // 5 :]
    trial = zstd.train_dict(used, BYTES_MAX)
    plain = sum(map(len, aside)) / len(aside)
    print(
        f"{len(taken)} records; those set aside: {plain:.0f} bytes, packed {packed_bytes(trial, aside):.0f}"
    )
    target.write_bytes(zstd.train_dict(taken, BYTES_MAX).dict_content)


if __name__ == "__main__":
    main(*sys.argv[1:])
