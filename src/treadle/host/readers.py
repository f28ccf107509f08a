"""Reads beside the core: each on a connection of its own, on threads of their own.

Two lanes. Most questions are short (a list, a document, a payload) and must not wait for the few that
go through a whole history (a replay, the doctor): those have threads of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.kernel.errors import ConnectionLost, StoreGone
from treadle.runtime.registry import Registry
from treadle.store.open import Place, open_sqlite
from treadle.store.reads import SqlReads

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    Ask = Callable[[Callable[[Reads], list[dict[str, Any]]]], Awaitable[list[dict[str, Any]]]]

T = TypeVar("T")

SHORT_THREADS = 3
LONG_THREADS = 2
EVENTS_PER_READ = 500
# A store's server that did not answer is not asked again for so long. Each question would wait for it on one of few threads,
# and those behind it for that.
AWAY_S = 0.5


class Readers:
    """The readers of one engine. To an onlooker a store that is not there yet is an empty one, and
    stays away; one that was replaced is read in its new form. To everybody else it is an error."""

    def __init__(self, place: Place, *, onlooker: bool, away_s: float = AWAY_S) -> None:
        self._place = place
        self._away_s = away_s
        self._onlooker = onlooker
        self._short = concurrent.futures.ThreadPoolExecutor(
            SHORT_THREADS, thread_name_prefix="treadle-reader"
        )
        self._long = concurrent.futures.ThreadPoolExecutor(
            LONG_THREADS, thread_name_prefix="treadle-long-reader"
        )
        self._idle: deque[SqlReads] = deque()
        # What coroutines ask, and how many threads are at it; what they are answered, on its way to their loop.
        self._asked: deque[tuple[Callable[[Reads], Any], asyncio.Future[Any]]] = deque()
        self._asking, self._guard = 0, threading.Lock()
        self._answers: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_on_its_way = False
        # What was said when the store last did not answer, and until when that holds.
        self._away, self._away_until = "", 0.0

    def submit(self, question: Callable[[Reads], T], *, long: bool = False) -> concurrent.futures.Future[T]:
        return (self._long if long else self._short).submit(self._answer, question)

    def ask(self, question: Callable[[Reads], T]) -> asyncio.Future[T]:
        """A short question of a coroutine. A thread goes on from one to the next, and answers that are there at the same
        time travel to the loop together: where many ask at once, hops between threads would cost more than reading."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._guard:
            self._asked.append((question, answer))
            if self._asking == SHORT_THREADS:
                return answer
            self._asking += 1
        try:
            self._short.submit(self._answer_all)
        except BaseException:
            with self._guard:
                self._asking -= 1
            raise
        return answer

    def _answer_all(self) -> None:
        while True:
            with self._guard:
                if not self._asked:
                    self._asking -= 1
                    return
                question, answer = self._asked.popleft()
            if answer.cancelled():
                continue
            try:
                told: tuple[asyncio.Future[Any], Any, BaseException | None]
                told = (answer, self._answer(question), None)
            except BaseException as error:  # whoever asks is told
                told = (answer, None, error)
            self._answers.append(told)
            if not self._is_on_its_way:
                self._is_on_its_way = True
                with suppress(RuntimeError):  # the loop is closing: nobody is left to be told
                    answer.get_loop().call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._is_on_its_way = False
        while self._answers:
            answer, value, error = self._answers.popleft()
            if answer.done():
                continue  # who asked does not wait any more
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

    def close(self) -> None:
        """Waits for what is being read."""
        for lane in (self._short, self._long):
            lane.shutdown()
        while self._idle:
            self._idle.pop().close()

    def _answer(self, question: Callable[[Reads], T]) -> T:
        if time.monotonic() < self._away_until:
            raise ConnectionLost(self._away)
        try:
            return self._ask(question)
        except ConnectionLost as error:
            self._away, self._away_until = error.message, time.monotonic() + self._away_s
            raise

    def _ask(self, question: Callable[[Reads], T]) -> T:
        reads = self._taken()
        if reads is None:
            empty = open_sqlite(None)
            try:
                return question(empty)
            finally:
                empty.close()
        try:
            return question(reads)
        finally:
            self._idle.append(reads)

    def _taken(self) -> SqlReads | None:
        """A connection that nobody uses; None if there is nothing to connect to."""
        assert self._place.shared or self._onlooker, "a store in memory is read on the core thread"
        with suppress(IndexError):
            reads = self._idle.pop()
            try:
                reads.stay()
                return reads
            except StoreGone:
                reads.close()
                if not self._onlooker:
                    raise
        if not self._place.shared or (self._onlooker and not self._place.has_store()):
            return None
        return self._place.reader()


async def events_after(
    read: Ask, registry_of: Callable[[Reads], Registry], run: str, after: int, record: int
) -> list[dict[str, Any]]:
    """Page by page, so that a long history holds nobody up."""

    from treadle.runtime import document

    def ask(reads: Reads) -> list[dict[str, Any]]:
        row = reads.run(run)
        if row is None:
            return []
        machine = registry_of(reads).machine(row.dialect)
        return [*islice(document.events(reads, row, machine, after=after, record=record), EVENTS_PER_READ)]

    found: list[dict[str, Any]] = []
    while page := await read(ask):
        found += page
        if len(page) < EVENTS_PER_READ:
            break
        after = page[-1]["seq"]
        record = next((event["record"] for event in reversed(page) if event["record"]), record)
    return found
