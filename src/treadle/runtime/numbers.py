"""The numbers of runs and tasks, taken from the store in blocks: several cores on one store never give the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from treadle.store.protocol import Numbered, Store

BLOCK: Final = 64


class Numbers:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: Iterator[int] = iter(())
        self._tasks: Iterator[int] = iter(())

    def next_run(self) -> int:
        if (number := next(self._runs, None)) is None:
            self._runs = self._block("run")
            number = next(self._runs)
        return number

    def next_task(self) -> int:
        if (number := next(self._tasks, None)) is None:
            self._tasks = self._block("task")
            number = next(self._tasks)
        return number

    def _block(self, kind: Numbered) -> Iterator[int]:
        return iter(self._store.reserve(kind, BLOCK))
