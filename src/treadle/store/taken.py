"""Numbers that were given stay taken, also when what had them is removed.

A file gives a new row the number after the highest that is there. Once its newest rows are removed, it would give theirs
again, and whoever had seen those would take what is new for what they know. So whoever removes rows notes how far their
tables were, and the first that come after it are put behind that. Nobody else pays for it.
"""

from __future__ import annotations

from typing import Any, Final

JOURNAL: Final = "journal"
FRAMES: Final = "frames"
# Tables whose rows are found by their places in the file.
PLACED: Final = frozenset((JOURNAL, FRAMES))

# What is noted, and of which column of which table.
_COUNTED: Final = {
    "last_run": ("runs", "no"),
    "last_task": ("tasks", "no"),
    **{f"last_{table}": (table, "rowid") for table in sorted(PLACED)},
}
_NOTE: Final = """INSERT INTO meta (key, value) SELECT ?, coalesce(max({column}), 0) FROM {table} WHERE true
                  ON CONFLICT (key) DO UPDATE SET value = excluded.value
                  WHERE CAST(excluded.value AS INTEGER) > CAST(meta.value AS INTEGER)"""
# Rows of nobody, who has the number 0: they stand where the last one stood, until others have been put behind them.
_HELD: Final = {
    JOURNAL: ("run, seq, event_no, digest, body", "0, 0, 0, x'', x''"),
    FRAMES: ("run, event_no, at_ns, body", "0, 0, 0, x''"),
}


def note(tx: Any) -> None:
    """Before rows are removed."""
    for key, (table, column) in _COUNTED.items():
        tx.execute(_NOTE.format(table=table, column=column), (key,))


def hold(tx: Any, table: str) -> bool:
    """Has the next rows of a table come behind all that there ever were; whether that had to be done, and is to be
    undone once they are there."""
    columns, values = _HELD[table]
    query = f"""INSERT INTO {table} (rowid, {columns}) SELECT CAST(value AS INTEGER), {values} FROM meta
                WHERE key = ? AND CAST(value AS INTEGER) > (SELECT coalesce(max(rowid), 0) FROM {table})"""
    return bool(tx.execute(query, (f"last_{table}",)).rowcount)


def release(tx: Any, table: str) -> None:
    tx.execute(f"DELETE FROM {table} WHERE run = 0")
