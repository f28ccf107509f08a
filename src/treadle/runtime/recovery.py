"""Work that a crash left open: found through an index, a page of runs at a time, and handed out again under the
same ids ("ensure started"). What was opened in this life meanwhile is not handed out twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.kernel.errors import PASSING, JournalCorrupt, StoreCorrupt, TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.model import ENGINE_KINDS
from treadle.store.protocol import Reads, RunRow

from .hot import HotRuns, open_and_owed
from .mail import Mail
from .ports import Own, Work
from .shards import Held
from .staging import Staging
from .undecided import Undecided, is_undecided


class Recovery:
    def __init__(
        self,
        reads: Reads,
        hot: HotRuns,
        staging: Staging,
        mail: Mail,
        undecided: Undecided,
        held: Held,
        limits: Limits,
    ) -> None:
        self._held = held
        self._reads = reads
        self._hot = hot
        self._staging = staging
        self._mail = mail
        self._undecided = undecided
        self._limits = limits
        # The run to which it has come (None: it is over), and had before the batch at hand.
        self._at_no: int | None = 0
        self._before_no: int | None = 0
        self._handed: set[str] = set()
        # Whether it has to be told of commits.
        self.cares = True

    @property
    def over(self) -> bool:
        return self._at_no is None

    def go_on(self) -> None:
        if self._at_no is None:
            return
        limit = self._limits.recover_per_turn
        rows = self._reads.working(after_no=self._at_no, limit=limit)
        for row in rows:
            if not self._held.holds(row.id):
                continue
            try:
                if is_undecided(row):
                    # Its work is not done again for nothing: only if it can be decided after all.
                    self._hot.get(row.id)
                works, owes = self._open_work(row)
            except PASSING:
                raise
            except StoreCorrupt:
                raise
            except Exception as error:
                # One damaged run must not keep the others from being recovered.
                known: TreadleError = JournalCorrupt(f"{row.id}: {error}")
                if isinstance(error, TreadleError) and error.cls == known.cls:
                    known = error
                self._undecided.quarantine(Own(row.id, None), known)
                continue
            self._staging.staged.dispatched += [work for work in works if work.intent.id not in self._handed]
            if owes:
                # It owes itself an event, or may: load it and see.
                self._mail.post(Own(row.id, None), front=True)
        self._at_no = rows[-1].no if len(rows) == limit else None

    def committed(self, works: list[Work]) -> None:
        self._before_no = self._at_no
        if self._at_no is not None:
            self._handed.update(work.intent.id for work in works)
        else:
            self._handed.clear()
            self.cares = False

    def undo(self) -> None:
        """A commit failed: what it recovered is recovered again."""
        self._at_no = self._before_no

    def offer_again(self, runs: Sequence[str]) -> None:
        """Hands out the open work of these runs: there was no room for it. Who has it already keeps it."""
        for run in runs:
            row = self._reads.run(run)
            if row is not None and self._held.holds(run):
                self._staging.staged.dispatched += self._open_work(row)[0]

    def _open_work(self, row: RunRow) -> tuple[list[Work], bool]:
        """What workers owe a run; and whether it may owe itself an event besides."""
        open_, owes = open_and_owed(row, self._reads)
        intents = [i for i in open_.values() if i.kind not in ENGINE_KINDS]
        if not intents:
            return [], True
        first = self._reads.record(row.no, 1)
        options: dict[str, Any] = first.record()["event"].get("options", {}) if first is not None else {}
        saved = self._reads.checkpoints(row.no)
        works = [
            Work(row.id, row.workflow, row.dialect, row.definition, options, intent, saved.get(intent.id))
            for intent in intents
        ]
        return works, owes
