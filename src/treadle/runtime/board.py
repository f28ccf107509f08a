"""The rows of human tasks, as the core keeps them; what people do with them is `tasks.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.model import OpenIntent
from treadle.kernel.values import Value
from treadle.store.rows import TaskRow

from .hot import Hot
from .ports import Clock
from .staging import Numbers, Staging

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


class Board:
    """The rows of tasks: a projection of the intents that are open, with a history of what people did."""

    def __init__(self, staging: Staging, reads: Reads, numbers: Numbers, *, clock: Clock) -> None:
        self._staging = staging
        self._reads = reads
        self._numbers = numbers
        self._clock = clock

    def find(self, id: str) -> TaskRow | None:
        """A task's row, to be changed in place: the batch's own if it holds one, else as it was read for it."""
        staged = self._staging.staged
        if (found := staged.batch.tasks_new.get(id) or staged.tasks.get(id)) is None:
            found = self._reads.task(id)
            if found is not None:
                staged.tasks[id] = found
        return found

    def note(self, task: TaskRow, what: str, by: str | None, **more: Value) -> None:
        """Adds to a task's history and puts its row into the batch."""
        entry: dict[str, Value] = {"at_ns": self._clock.now_ns(), "event": what, **more}
        if by is not None:
            entry["by"] = by
        task.history = [*task.history, entry]
        self._staging.belongs(task.run_id)
        if task.id not in self._staging.batch.tasks_new:
            self._staging.batch.tasks_changed[task.id] = task

    def open(self, hot: Hot, intent: OpenIntent) -> None:
        self._staging.batch.tasks_new[intent.id] = self._row(hot, intent)
        earlier = intent.params.get("escalated_from")
        if earlier is not None and (task := self.find(earlier)) is not None:
            self.note(task, "escalated", None, to=intent.id)

    def close(self, id: str, outcome: str, by: str | None, **more: Value) -> None:
        task = self.find(id)
        if task is None:
            return
        task.status = outcome
        self.note(task, outcome, by, **more)

    def _row(self, hot: Hot, intent: OpenIntent) -> TaskRow:
        params, now = intent.params, self._clock.now_ns()
        return TaskRow(
            no=self._numbers.next_task(),
            id=intent.id,
            run=hot.no,
            run_id=hot.state.id,
            workflow=hot.state.workflow,
            name=intent.name,
            type=params.get("type"),
            roles=list(params.get("roles") or []),
            payload=params.get("payload"),
            schema=params.get("schema"),
            reference=params.get("reference", hot.state.reference),
            created_ns=now,
            due_ns=intent.due_ns,
            history=[{"at_ns": now, "event": "created", **_about(params)}],
        )


def _about(params: dict[str, Value]) -> dict[str, Value]:
    """What its author says of a task. It is told once, so it stands in the row's first entry."""
    return {
        key: params[key] for key in ("title", "description", "escalated_from") if params.get(key) is not None
    }
