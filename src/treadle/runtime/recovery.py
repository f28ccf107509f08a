"""Work that a crash left open: found through an index, a page of runs at a time, and handed out again under the
same ids ("ensure started"). What was opened in this life meanwhile is not handed out twice."""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import PASSING, JournalCorrupt, StoreCorrupt, TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.model import ENGINE_KINDS
from treadle.store.protocol import Reads, RunRow

from .hot import HotRuns, open_and_owed
from .mail import Mail
from .ports import Own, Work
from .registry import Registry
from .staging import Staging
from .undecided import Undecided, is_undecided


class Recovery:
    def __init__(
        self,
        reads: Reads,
        registry: Registry,
        hot: HotRuns,
        staging: Staging,
        mail: Mail,
        undecided: Undecided,
        limits: Limits,
    ) -> None:
        self._reads = reads
        self._registry = registry
        self._hot = hot
        self._staging = staging
        self._mail = mail
        self._undecided = undecided
        self._limits = limits
        # The run to which it has come (None: it is over), and had before the batch at hand.
        self._at_no: int | None = 0
        self._before_no: int | None = 0
        self._handed: set[str] = set()

    @property
    def over(self) -> bool:
        return self._at_no is None

    def go_on(self) -> None:
        self._before_no = self._at_no
        if self._at_no is None:
            return
        limit = self._limits.recover_per_turn
        rows = self._reads.working(after_no=self._at_no, limit=limit)
        for row in rows:
            try:
                if is_undecided(row):
                    # Its work is not done again for nothing: only if it can be decided after all.
                    self._hot.get(row.id)
                owes = self._dispatch_again(row)
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
            if owes:
                # It owes itself an event, or may: load it and see.
                self._mail.post(Own(row.id, None), front=True)
        self._at_no = rows[-1].no if len(rows) == limit else None

    def committed(self, works: list[Work]) -> None:
        if self._at_no is not None:
            self._handed.update(work.intent.id for work in works)
        else:
            self._handed.clear()

    def undo(self) -> None:
        """A commit failed: what it recovered is recovered again."""
        self._at_no = self._before_no

    def _dispatch_again(self, row: RunRow) -> bool:
        """Whether the run may owe itself an event, besides what workers hold."""
        open_, owes = open_and_owed(row, self._reads)
        intents = [i for i in open_.values() if i.kind not in ENGINE_KINDS]
        if not intents:
            return True
        first = self._reads.record(row.no, 1)
        options: dict[str, Any] = first.record()["event"].get("options", {}) if first is not None else {}
        checkpoints = self._reads.checkpoints(row.no)
        try:
            loaded = self._registry.load(row.definition).definition
        except PASSING:
            raise
        except TreadleError:
            loaded = None
        for intent in intents:
            if intent.id in self._handed:
                continue
            saved = checkpoints.get(intent.id)
            self._staging.staged.dispatched.append(
                Work(row.id, row.workflow, row.dialect, row.definition, options, intent, loaded, saved)
            )
        return owes
