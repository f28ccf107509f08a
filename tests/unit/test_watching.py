"""Observers get each event once and in order, whatever the news that reach them leave out or repeat."""

from __future__ import annotations

from typing import Any

from treadle.runtime.ports import News
from treadle.watching import Watching


class Stored:
    """A run of `last` events, as the store has them."""

    def __init__(self, last: int) -> None:
        self.last = last

    async def after(self, run: str, after: int) -> list[dict[str, Any]]:
        return [{"seq": seq} for seq in range(after + 1, self.last + 1)]


def news(*seqs: int, ended: bool = False) -> News:
    return News("r", "completed" if ended else "running", ended, [{"seq": seq} for seq in seqs])


async def told(*found: News, after: int = 0, last: int = 99) -> list[int]:
    seen: list[int] = []
    watching = Watching(Stored(last).after)
    watching.observe(lambda event: seen.append(event["seq"]), after=after)
    for item in found:
        watching.tell([item])
        await watching.drain()
    return seen


async def test_the_first_news_is_completed_from_the_store() -> None:
    assert await told(news(4, 5), news(6)) == [1, 2, 3, 4, 5, 6]
    assert await told(news(4, 5), after=2) == [3, 4, 5]
    assert await told(news(1, 2, 3), after=2) == [3]


async def test_news_without_events_do_not_hide_a_gap() -> None:
    assert await told(news(), news(2, 3)) == [1, 2, 3]


async def test_a_gap_later_on_is_filled_too() -> None:
    assert await told(news(1), news(3)) == [1, 2, 3]


async def test_what_comes_after_the_end_does_not_repeat_the_run() -> None:
    assert await told(news(1, 2), news(3, ended=True), news(4, ended=True)) == [1, 2, 3, 4]
