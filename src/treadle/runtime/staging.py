"""Everything that belongs to one commit: the rows it writes, and what may happen once it is durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.values import Value
from treadle.store.protocol import Batch

from .commands import Change, Operate, Progress
from .ports import Ack, Item, News, Work


@dataclass(slots=True)
class Staged:
    number: int
    batch: Batch = field(default_factory=Batch)
    # What the commit holds, to be put back if it fails.
    taken: list[Item] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    writes: list[Change] = field(default_factory=list)
    # Operations that an event answers in their place, with that event.
    handed: list[tuple[Operate, Item]] = field(default_factory=list)
    # What follows from it, to be done if it does not.
    answers: list[tuple[Ack, Any, TreadleError | None]] = field(default_factory=list)
    dispatched: list[Work] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    news: dict[str, News] = field(default_factory=dict)
    # Submissions answered in this commit: (scope, id) -> answer.
    submitted: dict[tuple[str, str], Value] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return self.batch.empty and not self.answers and not self.dispatched and not self.revoked

    def full(self, limits: Limits) -> bool:
        # Runs go in a commit to themselves: an event would bring one back into memory that is gone after it.
        return (
            len(self.batch.records) >= limits.batch_records
            or self.batch.bytes >= limits.batch_bytes
            or bool(self.batch.runs_removed)
        )

    @property
    def holds(self) -> int:
        """How many came from outside; what they made here does not count."""
        taken = sum(not item.derived for item in self.taken)
        return len(self.writes) + len(self.progress) + taken + len(self._not_taken())

    def _not_taken(self) -> list[Operate]:
        """Operations whose event has not had its turn."""
        taken = {id(item) for item in self.taken}
        return [operate for operate, item in self.handed if id(item) not in taken]

    @property
    def vacant(self) -> bool:
        """Whether nobody in this batch could be to blame for it."""
        return not (self.taken or self.progress or self.writes or self.handed or self.batch.inbox_done)

    def release(self) -> Item | Change | Progress | None:
        """The only one that this batch holds, taken out of it; None if it holds several, or none."""
        if self.holds != 1:
            return None
        if self.writes:
            return self.writes.pop()
        if self.progress:
            return self.progress.pop()
        if waiting := self._not_taken():
            return waiting[0]
        found = next(item for item in self.taken if not item.derived)
        self.taken = [item for item in self.taken if item is not found]
        return found


def answer_of(find: Callable[[str, str], Value], scope: str, id: str) -> Value:
    """The durable answer of a submission id. One that went to several runs has a refusal for its answer
    if one of them refused it."""
    found = find(scope, id)
    each = {run: (find(f"run:{run}", id) or {}).get("error") for run in (found or {}).get("runs", ())}
    refusal = refusal_of(each)
    return found if refusal is None else {"error": refusal}


def refusal_of(each: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """The error of an event that went to several runs: the first refusal, with what each of them answered
    (None: it took the event) in `details["deliveries"]`. None if nobody refused it."""
    first = next((error for error in each.values() if error is not None), None)
    if first is None or len(each) == 1:
        return first
    told = [{"run": run, "error": error} for run, error in each.items()]
    return {**first, "details": {**first["details"], "deliveries": told}}
