"""Work that a crash left open: found through an index, a page of runs at a time, and handed out again under the
same ids ("ensure started"). What was opened in this life meanwhile is not handed out twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import PASSING, JournalCorrupt, StoreCorrupt, TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.model import ENGINE_KINDS
from treadle.store.run_rows import RunRow

from .commands import Operate, Own
from .fetching import NotAtHand
from .hot import Expected, HotRuns
from .mail import Mail
from .opened import OpenReads, OpenTogether, open_now
from .own_changes import OwnChange
from .ports import Work
from .shards import Held
from .staging import Staging
from .undecided import Undecided, is_undecided

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


# The operation that offers the open work of some runs again; they live on one shard, and it is at home at one of them.
OFFER: Final = "offer"


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
        put_aside: Callable[[NotAtHand, OwnChange], None],
    ) -> None:
        self._put_aside = put_aside
        self._held = held
        self._reads = reads
        self._hot = hot
        self._staging = staging
        self._mail = mail
        self._undecided = undecided
        self._limits = limits
        # The shards that are left to look through, with the run to which it has come on each; and as it was before
        # the batch at hand. A store with one shard is looked through as a whole.
        chosen = held.chosen
        self.left: dict[int | None, int] = {None: 0} if chosen is None else dict.fromkeys(sorted(chosen), 0)
        self._before = dict(self.left)
        # What was handed out in this life while it was looked through, with whose it is.
        self._handed: dict[str, str] = {}
        # Runs that are taken up when their code is there, each by a change that waits for it aside.
        self._later: set[str] = set()
        # Whether it has to be told of commits.
        self.cares = True

    def gain(self, shards: Iterable[int]) -> None:
        """Shards came: what was left open there is handed out here."""
        self.left.update(dict.fromkeys(sorted(shards), 0))
        self._before = dict(self.left)
        self.cares = True

    def drop_foreign(self, shards: Iterable[int]) -> None:
        for shard in shards:
            self.left.pop(shard, None)
        self._before = dict(self.left)
        # Whoever has them next hands it out again; be it us.
        self._handed = {intent: run for intent, run in self._handed.items() if self._held.holds(run)}

    def go_on(self) -> None:
        """While there is something left."""
        shard, at_no = next(iter(self.left.items()))
        limit = self._limits.recover_per_turn
        rows = self._reads.working(after_no=at_no, limit=limit, shard=shard)
        together = OpenTogether(self._reads, rows)
        expected = Expected()
        self._hot.expect((row.id for row in rows if is_undecided(row)), expected)
        for row in rows:
            try:
                self._take_up(row, together, expected)
            except NotAtHand as lacking:
                if row.id not in self._later:
                    self._later.add(row.id)
                    self._put_aside(lacking, OwnChange(partial(self._take_up_later, row.id)))
        if len(rows) == limit:
            self.left[shard] = rows[-1].no
        else:
            del self.left[shard]

    def _take_up(self, row: RunRow, together: OpenReads, expected: Expected) -> None:
        try:
            if is_undecided(row):
                # Its work is not done again for nothing: only if it can be decided after all.
                self._hot.get(row.id, expected)
            works, owes = _open_work(row, together)
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
            return
        self._staging.staged.dispatched += [work for work in works if work.intent.id not in self._handed]
        if owes:
            # It owes itself an event, or may: load it and see.
            self._mail.post(Own(row.id, None), front=True)

    def _take_up_later(self, run: str, desk: Desk) -> None:
        """One that waited for its code, as it is by then."""
        row = self._reads.run(run) if self._held.holds(run) else None
        if row is not None and row.working:
            desk.belongs(run)
            try:
                self._take_up(row, OpenReads(self._reads), Expected())
            except NotAtHand as lacking:
                self._put_aside(lacking, OwnChange(partial(self._take_up_later, run)))
                return
        self._later.discard(run)

    def committed(self, works: list[Work]) -> None:
        self._before = dict(self.left)
        if self.left or self._later:
            self._handed.update(
                (work.intent.id, work.run) for work in works if self.left or work.run in self._later
            )
        else:
            self._handed.clear()
            self.cares = False

    def undo(self) -> None:
        """A commit failed: what it recovered is recovered again."""
        self.left = dict(self._before)

    def offer_again(self, runs: Sequence[str], intents: Collection[str] | None) -> None:
        """Hands out these intents of these runs, where they are open: there was no room for them. Who has one already keeps it.
        None for all, which is how members of before ask."""
        rows = self._reads.runs_named([run for run in runs if self._held.holds(run)])
        together = OpenTogether(self._reads, rows.values())
        for run in runs:
            if run in rows:
                works, _ = _open_work(rows[run], together)
                self._staging.staged.dispatched += [
                    work for work in works if intents is None or work.intent.id in intents
                ]


def offers(intents: Mapping[str, str], held: Held) -> list[Operate]:
    """What asks for these intents, each with its run, to be offered again, wherever they are by then."""
    found: dict[int, dict[str, str]] = {}
    for intent, run in intents.items():
        found.setdefault(held.shard_of(run), {})[intent] = run
    asked: list[Operate] = []
    for together in found.values():
        runs = list(dict.fromkeys(together.values()))
        asked.append(Operate(runs[0], OFFER, {"intents": list(together), "runs": runs}))
    return asked


def _open_work(row: RunRow, reads: OpenReads) -> tuple[list[Work], bool]:
    """What workers owe a run; and whether it may owe itself an event besides."""
    now = open_now(row, reads)
    intents = [i for i in now.intents.values() if i.kind not in ENGINE_KINDS]
    if not intents:
        return [], True
    options = now.options
    if options is None:
        first = reads.record(row.no, 1)
        options = first.record()["event"].get("options", {}) if first is not None else {}
    saved = reads.checkpoints(row.no)
    works = [
        Work(row.id, row.workflow, row.dialect, row.definition, options, intent, saved.get(intent.id))
        for intent in intents
    ]
    return works, now.owes
