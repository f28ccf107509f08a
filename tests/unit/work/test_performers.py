"""Who performs what: found out once, and again when that changes."""

from __future__ import annotations

from treadle.work.job import Done, Job
from treadle.work.performers import ANY, PerformerTable, Performs


async def perform(job: Job) -> Done:
    return Done()


def test_a_dialect_that_is_not_ready_has_nobody_and_is_asked_again_when_it_is() -> None:
    row = Performs("work", perform)
    table = PerformerTable(lambda dialect: [row])
    assert table["toy", "work"] is None
    table.prepare("toy")
    assert table["toy", "work"] is row


def test_who_is_registered_later_counts_for_what_was_asked_before() -> None:
    first, own, other = Performs("work", perform), Performs("work", perform), Performs(ANY, perform)
    table = PerformerTable()
    table.prepare("toy")
    assert table["toy", "work"] is None
    table.register(first)
    assert table["toy", "work"] is first, "of any dialect"
    table.register(own, dialect="toy")
    assert table["toy", "work"] is own, "its own comes first"
    assert table["toy", "else"] is None
    table.register(other, dialect="toy")
    assert table["toy", "else"] is other, "whoever does every other kind"
