"""What an operator watches of a store: how much there is of everything that should not pile up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

# The kind of documents that hold what workers sent back and nobody could use.
DEAD_LETTER: Final = "deadletter"
# What our tables have on disk; the database may be others' too.
POSTGRES_BYTES: Final = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = current_schema()"""


class StoreNumbers(msgspec.Struct, frozen=True):
    runs: dict[str, int]
    # Open tasks of people; timers and deadlines that are armed, and those of them that are due.
    tasks: int
    timers: int
    timers_due: int
    # What workers sent back and nobody could use.
    dead_letters: int
    # Messages that no owner has read yet.
    inbox: int
    bytes: int


def numbers_of(one: Callable[..., Any], runs: dict[str, int], size: int, now_ns: int) -> StoreNumbers:
    """`one` asks for a row."""

    def count(what: str, *parameters: Any) -> int:
        return int(one(f"SELECT count(*) FROM {what}", *parameters)[0])

    return StoreNumbers(
        runs=runs,
        tasks=count("tasks WHERE status IN ('open', 'claimed')"),
        timers=count("timers"),
        timers_due=count("timers WHERE due_ns <= ?", now_ns),
        dead_letters=count("documents WHERE kind = ?", DEAD_LETTER),
        inbox=count("inbox"),
        bytes=size,
    )
