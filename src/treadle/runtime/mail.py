"""Mailboxes: one per run that has something to do, and the ring in which they take turns. And what cannot even be put
into one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Final

import msgspec

from treadle.kernel.errors import TreadleError, ValueRefused
from treadle.kernel.limits import INT_MAX, INT_MIN, RUN_ID_CHARS_MAX
from treadle.kernel.model import Event, Receipt
from treadle.kernel.values import encode

from .commands import Deliver, Operate
from .ports import NewRun
from .shards import Held

# Not every database has room for it.
_NUL: Final = "a name with a character of no width (NUL), which no store keeps"


class Leftovers(msgspec.Struct, frozen=True):
    """What a batch made and did not get to: for runs of ours, and for those elsewhere."""

    here: list[Deliver]
    away: list[Deliver]

    @property
    def posted(self) -> Collection[str]:
        """The keys of those here that are messages as well."""
        return [item.inbox for item in self.here if item.inbox is not None]


NOTHING: Final = Leftovers([], [])


def _settles(event: Event | None, intent: str) -> bool:
    return isinstance(event, Receipt) and event.intent == intent


class Mail:
    def __init__(self, held: Held, on_unbar: Callable[[], None]) -> None:
        self._held = held
        # Whoever keeps something aside for runs that are barred is told that they are let in.
        self._on_unbar = on_unbar
        self._boxes: dict[str, deque[Deliver]] = {}
        # The runs that have something to do, in the order of their turns.
        self.ready: deque[str] = deque()
        # What the batch at hand made and did not get to, by identity: looked at with every commit, however long the
        # rest is.
        self.made: dict[int, Deliver] = {}
        # What the batch at hand made for runs that are not ours: rows of its commit.
        self.away: list[Deliver] = []
        # Runs that take no events for now, and when it is time to try again.
        self._barred: set[str] = set()
        self.look_again_ns: int | None = None

    def __iter__(self) -> Iterator[Deliver]:
        for box in self._boxes.values():
            yield from box

    def post(self, item: Deliver, *, front: bool = False) -> None:
        if item.message is not None and self._held.several and not self._held.holds(item.run):
            self.away.append(item)
            return
        box = self._boxes.get(item.run)
        if box is None:
            self._boxes[item.run] = deque((item,))
            if item.run not in self._barred:
                self.ready.append(item.run)
        elif front:
            box.appendleft(item)
        else:
            box.append(item)
        if item.derived:
            self.made[id(item)] = item

    def post_frame(self, item: Deliver, intent: str) -> None:
        """Before the receipt of its intent, should that be here already."""
        box = self._boxes.get(item.run, ())
        events = (waiting.event for waiting in box)
        at = next((at for at, event in enumerate(events) if _settles(event, intent)), None)
        if at is None:
            self.post(item)
        else:
            self._boxes[item.run].insert(at, item)

    def send(
        self,
        run: str,
        event: Event,
        key: str,
        *,
        create: NewRun | None = None,
        reply: tuple[str, str] | None = None,
    ) -> None:
        """A message from the batch at hand to a run: decided with it, or an inbox row of it under this key."""
        self.post(Deliver(run, event, create=create, reply=reply, derived=True, message=key))

    def owe(self, run: str, owed: Event | None) -> None:
        """An event that a run owes itself comes before whatever else waits for it."""
        if owed is None:
            return
        box = self._boxes.get(run)
        if not box or box[0].event != owed:
            self.post(Deliver(run, owed, derived=True), front=True)

    def keep_made(self) -> Leftovers:
        """The batch at hand is written: what it made is there like anything else, for as long as that holds."""
        if not (self.made or self.away):
            return NOTHING
        kept = Leftovers(list(self.made.values()), self.away)
        for item in kept.here:
            item.derived = False
        self.made, self.away = {}, []
        return kept

    def take_back(self, made: Leftovers) -> None:
        """The batch that made them was not made durable, and is the one at hand again."""
        for item in made.here:
            item.derived = True
        self.made, self.away = {id(item): item for item in made.here}, list(made.away)

    def take(self) -> Deliver:
        """The next event of the run whose turn it is; the run goes to the end of the ring."""
        run = self.ready.popleft()
        box = self._boxes[run]
        item = box.popleft()
        if item.derived:
            self.made.pop(id(item), None)
        if box:
            self.ready.append(run)
        else:
            del self._boxes[run]
        return item

    def bar(self, item: Deliver, look_again_ns: int) -> None:
        """Undoes a `take` for a run that takes no events for now: they wait where they are."""
        self.post(item, front=True)
        self.bar_run(item.run)
        if self.look_again_ns is None:
            self.look_again_ns = look_again_ns

    def bar_run(self, run: str) -> None:
        """A run takes no events until all that are barred are let in again."""
        if run in self._boxes and run not in self._barred:
            if self.ready[-1] == run:
                self.ready.pop()  # it had its turn just now: thousands may be barred one after the other
            else:
                self.ready.remove(run)
        self._barred.add(run)

    def unbar_all(self) -> None:
        """Time to try again."""
        self.ready.extend(self._barred_in_order())
        self._barred, self.look_again_ns = set(), None
        self._on_unbar()

    def _barred_in_order(self) -> list[str]:
        return [run for run in self._boxes if run in self._barred]

    def is_barred(self, run: str) -> bool:
        return run in self._barred

    def next_ones(self) -> Iterator[Deliver]:
        """What waits for runs that have their turns."""
        for run in self.ready:
            yield from self._boxes[run]

    def upcoming(self, count: int) -> Iterator[str]:
        """The runs whose turns come next."""
        return islice(self.ready, max(0, count))

    def put_back(self, item: Deliver) -> None:
        """Undoes a `take`: first in its box, and next to have a turn."""
        self.post(item, front=True)
        self.ready.remove(item.run)
        self.ready.appendleft(item.run)

    def drop_foreign(self) -> list[Deliver]:
        """Shards were lost: what waits for their runs, which others have to be told."""
        foreign = [item for item in self if not self._held.holds(item.run)]
        self.discard(lambda item: not self._held.holds(item.run))
        return foreign

    def discard_made(self, *, but: Collection[int]) -> None:
        """What the batch at hand made is not wanted after all, `but` for some of it."""
        if len(self.made) + len(self.away) > len(but):
            self.discard(lambda item: item.derived and id(item) not in but)

    def discard(self, unwanted: Callable[[Deliver], bool]) -> None:
        self.away = [item for item in self.away if not unwanted(item)]
        self.made = {key: item for key, item in self.made.items() if not unwanted(item)}
        for run, box in list(self._boxes.items()):
            kept = deque(item for item in box if not unwanted(item))
            if kept:
                self._boxes[run] = kept
            else:
                del self._boxes[run]
                if run in self._barred:
                    self._barred.remove(run)
                else:
                    self.ready.remove(run)


def unusable(command: Deliver | Operate) -> TreadleError | None:
    """Why a message cannot even be looked at: names that no store can hold. Asked of every event, so
    the likely case comes first."""
    if type(command) is Operate:
        fits = type(command.home) is str and type(command.name) is str and type(command.body) is dict
        if not fits:
            return ValueRefused("an operation is a name and a body, at home at a run")
        if "\0" in command.home:
            return ValueRefused(_NUL)
        return _too_long(command.home) if len(command.home) > RUN_ID_CHARS_MAX else None
    assert isinstance(command, Deliver)
    item = command
    if type(item.run) is not str:
        return ValueRefused(f"a run's id is text, not {type(item.run).__name__}")
    if item.expected_version is not None and not _is_whole(item.expected_version):
        return ValueRefused("the expected version is a whole number")
    if "\0" in item.run:
        return ValueRefused(_NUL)
    if len(item.run) <= RUN_ID_CHARS_MAX and item.run.isascii() and item.submission is None:
        return None if item.run or item.event is None else ValueRefused("a run's id is empty")
    if len(item.run) > RUN_ID_CHARS_MAX:
        return _too_long(item.run)
    names = [item.run, *(item.submission or ())]
    if not all(isinstance(name, str) for name in names):
        return ValueRefused("the key of a submission is text")
    if any("\0" in name for name in names):
        return ValueRefused(_NUL)
    try:
        encode(names)
    except ValueRefused as error:
        return error
    return None


def _too_long(run: str) -> ValueRefused:
    return ValueRefused(f"a run's id of {len(run)} characters; at most {RUN_ID_CHARS_MAX} are kept")


def _is_whole(number: object) -> bool:
    return type(number) is int and INT_MIN <= number <= INT_MAX
