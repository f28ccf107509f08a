"""The numbers of runs and tasks, in the order in which they came to be."""

from __future__ import annotations

from treadle.store.protocol import Store


class Numbers:
    def __init__(self, store: Store) -> None:
        self._run = store.last_run_no()
        self._task = store.last_task_no()

    def next_run(self) -> int:
        self._run += 1
        return self._run

    def next_task(self) -> int:
        self._task += 1
        return self._task
