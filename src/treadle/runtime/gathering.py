"""An operation that several events answer: accepted with one commit, answered once all of them are decided.

Where it came in a message, that waits until then, and whoever takes over performs it again: each run must take its event once
all the same (`Deliver.submission`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec.structs import replace

from treadle.kernel.errors import TreadleError, ValueRefused

from .commands import SHARED, Deliver, Operate
from .mail import Mail
from .own_changes import OwnChange
from .shards import Held
from .staging import Answers

if TYPE_CHECKING:
    from .desk import Desk
    from .ports import Port


# One answer of those of several runs: what each was refused with, None if it took its event.
Combine = Callable[[Mapping[str, TreadleError | None]], tuple[object, TreadleError | None]]


class Gathered:
    """The answers so far to what one operation told several runs."""

    def __init__(
        self, asked: Operate, runs: list[str], combine: Combine, answer: Callable[[Gathered], None]
    ) -> None:
        self.asked = asked
        self._runs, self._combine, self._answer = runs, combine, answer
        self.answers: dict[str, TreadleError | None] = {}

    @property
    def complete(self) -> bool:
        return len(self.answers) == len(self._runs)

    @property
    def combined(self) -> tuple[object, TreadleError | None]:
        return self._combine({run: self.answers[run] for run in self._runs})

    def one(self, run: str, _: object, error: TreadleError | None) -> None:
        if run not in self.answers:
            self.answers[run] = error
            if self.complete:
                self._answer(self)


class Gatherings:
    """Operations that were left to several events, and are not answered yet."""

    def __init__(self, port: Port, answers: Answers, mail: Mail, change: Callable[[OwnChange], None]) -> None:
        self._port = port
        self._answers = answers
        self._mail = mail
        self._change = change
        # What is known of those that came in messages, by these, for as long as somebody may still add to it.
        self._known: WeakValueDictionary[str, Gathered] = WeakValueDictionary()
        # Those whose messages are ours to answer.
        self._waiting: dict[str, Gathered] = {}

    def share(self, asked: Operate, items: list[Deliver], key: str, combine: Combine) -> None:
        """Tells the runs with the commit at hand, or with messages of it. Their names (`key`) are new each time: one that is
        sent again may have been answered already."""
        runs = [item.run for item in items]
        gathered = Gathered(asked, runs, combine, self._answer)
        if asked.inbox is not None:
            # Performed once more: what was told meanwhile, in answer to any of them, counts.
            gathered = self._known.setdefault(asked.inbox, gathered)
            self._waiting[asked.inbox] = gathered
            if gathered.complete:
                self._answer(gathered)
        for number, item in enumerate(items):
            if item.run in gathered.answers:
                continue
            item.ack, item.derived = partial(gathered.one, item.run), True
            item.message = f"{SHARED}{asked.name}:{key}:{number}"
            item.entry = None if asked.entry is None else replace(asked.entry, target=item.run)
            self._mail.post(item)

    def _answer(self, gathered: Gathered) -> None:
        asked = gathered.asked
        if asked.inbox is not None:
            self._change(OwnChange(partial(self._settle, gathered), partial(self._settled, gathered)))
        elif asked.ack is not None:
            self._port.answer([(asked.ack, *gathered.combined)])

    def _is_ours(self, gathered: Gathered) -> bool:
        return self._waiting.get(gathered.asked.inbox or "") is gathered

    def _settle(self, gathered: Gathered, desk: Desk) -> bool:
        """Between commits: the answer is a row, like any to a message. False if it is not ours to answer. Who asked was
        written down with each event."""
        if self._is_ours(gathered):
            desk.belongs(gathered.asked.home)
            self._answers.settle(replace(gathered.asked, entry=None), *gathered.combined)
            return True
        return False

    def _settled(self, gathered: Gathered, settled: object, failed: TreadleError | None) -> None:
        if not self._is_ours(gathered):
            return
        if failed is not None and not isinstance(failed, ValueRefused):
            self._answer(gathered)
        elif settled:
            del self._waiting[gathered.asked.inbox or ""]

    def drop_foreign(self, held: Held) -> list[Operate]:
        """Shards were lost: whoever has them performs these again."""
        foreign = [
            gathered.asked for gathered in self._waiting.values() if not held.holds(gathered.asked.home)
        ]
        for asked in foreign:
            del self._waiting[asked.inbox or ""]
        return foreign
