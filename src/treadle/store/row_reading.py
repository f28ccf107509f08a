"""Runs and records as the columns of their tables, and back: `reads.py` asks for one of them, `many.py` for many."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from treadle.kernel.history import Stored
from treadle.kernel.values import decode_trusted

from .packing import unpack
from .run_rows import RunRow

RUN_COLUMNS: Final = (
    "no, id, dialect, workflow, version, definition, cell_key, parent, parent_intent, continued_from, reference, "
    "status, working, started_ns, updated_ns, ended_ns, retain_ns, seq, error"
)
STORED_COLUMNS: Final = "seq, body, digest, opens, closes"


def run_of(row: Sequence[Any]) -> RunRow:
    return RunRow(
        no=row[0],
        id=row[1],
        dialect=row[2],
        workflow=row[3],
        version=row[4],
        definition=row[5],
        cell_key=None if row[6] is None else decode_trusted(row[6]),
        parent=row[7],
        parent_intent=row[8],
        continued_from=row[9],
        reference=row[10],
        status=row[11],
        working=bool(row[12]),
        started_ns=row[13],
        updated_ns=row[14],
        ended_ns=row[15],
        retain_ns=row[16],
        seq=row[17],
        error=None if row[18] is None else decode_trusted(row[18]),
    )


def stored_of(row: Sequence[Any]) -> Stored:
    return Stored(row[0], unpack(row[1], row[3], row[4]), row[2])


def is_whole(body: bytes, digest: bytes) -> bool:
    """Whether a snapshot is the one that was written."""
    return sha256(body).digest() == digest
