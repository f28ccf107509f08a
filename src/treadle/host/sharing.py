"""One member among several: which shards its core drives, and how it comes by them and gives them away.

It looks now and then how things stand (`store/members.py`), drops what it has lost, takes what is free and its due,
and gives away what it has too much of. A shard is given away between two commits, and only while none of its work is
in anybody's hands: new work of it is held back until what is in hand is done. Where that takes too long the shard
stays for now, so that moving shards does no work twice.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

from treadle.kernel.errors import PASSING
from treadle.runtime.core import Core
from treadle.runtime.ports import Work
from treadle.runtime.recovery import offers
from treadle.runtime.shards import home_on
from treadle.store.members import LEASE_NS, Membership, Pace, Roster

log = logging.getLogger("treadle.core")

# How long new work of a shard is held back, so that what is in hand may end; and how long it is left alone if not.
HELD_BACK_S: Final = 3.0
LEFT_ALONE_S: Final = 30.0


class WorkPort(Protocol):
    """The carrier of a member's work, as far as giving shards away goes."""

    def works(self) -> list[tuple[Work, bool]]:
        """All that was offered and is not done; whether somebody has it in hand."""
        ...

    def revoke(self, intents: Sequence[str]) -> None: ...

    def take_back(self, intents: Sequence[str]) -> list[str]:
        """Of these it takes those back that wait; what is in hand stays there."""
        ...


class Sharing:
    """Called on the thread of the core, between turns."""

    def __init__(
        self,
        core: Core,
        member: Membership,
        bus: WorkPort,
        *,
        moved: Callable[[], None] = lambda: None,
        was_away: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`moved` is called when shards came or went; `was_away` before it counts as there again."""
        self._core = core
        self._member = member
        self._bus = bus
        self._moved = moved
        self._was_away = was_away
        self._monotonic = monotonic
        self.pace = Pace(monotonic)
        self.seen: Roster | None = None
        # Shards that are to be given away, until when that is tried; and those that had too much to do.
        self._leaving: dict[int, float] = {}
        self._left_alone: dict[int, float] = {}
        # Intents, each with its run.
        self._held_back: dict[str, str] = {}
        # What the core held when it was last seen to: a commit may have found out since that some were taken.
        self._known = set(core.store.held)
        # Until when nobody can take us for gone, however long what we said was on its way.
        self._there_until_s = -math.inf

    @property
    def is_there(self) -> bool:
        """Whether others still go by what they know of us."""
        return self._monotonic() < self._there_until_s

    def renew(self) -> None:
        if taken := self._known - self._core.store.held.keys():
            self._forget(taken)
            self._was_away()
        if self.pace.due:
            try:
                self.look()
            except PASSING as error:
                # What is ours stays ours until somebody takes it; the epoch in every commit tells.
                log.debug("the members cannot be looked at: %s", error.message)
                self.pace.looked()
        if self._leaving:
            self._give()

    def look(self) -> None:
        """Sees how things stand, and does something about it."""
        begun = self._monotonic()
        seen = self.seen = self._member.look()
        was_there = self.is_there
        self.pace.looked()
        held = dict(self._core.store.held)
        if lost := [shard for shard, epoch in held.items() if seen.mine.get(shard) != epoch]:
            log.warning("shards %s were taken over; their runs go on elsewhere", lost)
            self._lose(lost)
        if lost or not was_there:
            self._was_away()
        self._there_until_s = begun + LEASE_NS / 1e9
        gained = {shard: epoch for shard, epoch in seen.mine.items() if shard not in held}
        if wanted := seen.standing.wanted_by(self._member.name):
            gained.update(self._member.claim(wanted))
        if gained:
            self._core.gain(gained)
            self._known.update(gained)
            self._moved()
        self._choose(seen)

    def _choose(self, seen: Roster) -> None:
        """What is to be given away, as things stand."""
        now = self._monotonic()
        self._left_alone = {shard: until for shard, until in self._left_alone.items() if until > now}
        spare = seen.standing.spare_of(self._member.name, self._left_alone)
        self._stay([shard for shard in self._leaving if shard not in spare])
        for shard in spare:
            if shard not in self._leaving and shard in self._core.store.held:
                self._leaving[shard] = now + HELD_BACK_S
        if self._leaving:
            leaving = {work.intent.id: work.run for work in self._works_of(self._leaving)}
            self._held_back.update((intent, leaving[intent]) for intent in self._bus.take_back(list(leaving)))

    def _give(self) -> None:
        busy = {self._shard_of(work) for work, _ in self._bus.works()}
        # Asked after that: of what is in nobody's hands any more the core has the receipt.
        busy |= self._core.settling()
        quiet = [shard for shard in self._leaving if shard not in busy]
        if quiet:
            self._lose(quiet)
            try:
                self._member.give(quiet)
            except PASSING:
                # They are not held any more, and still ours: the next look takes them up again.
                self.pace.hurry()
            return
        now = self._monotonic()
        late = [shard for shard, until in self._leaving.items() if until < now]
        self._left_alone.update(dict.fromkeys(late, now + LEFT_ALONE_S))
        self._stay(late)

    def _stay(self, shards: Collection[int]) -> None:
        """These are not given away after all: what was held back for that goes out, where it is open still."""
        for shard in shards:
            self._leaving.pop(shard, None)
        for asked in offers(self._held_back_of(shards), self._core.held):
            self._core.submit(asked)

    def _lose(self, shards: Collection[int]) -> None:
        self._core.lose(shards)
        self._forget(shards)

    def _forget(self, shards: Collection[int]) -> None:
        """Work of shards that are not ours any more is nobody's here, also where somebody has it in hand."""
        self._known.difference_update(shards)
        for shard in shards:
            self._leaving.pop(shard, None)
        self._held_back_of(shards)
        if works := self._works_of(shards):
            self._bus.revoke([work.intent.id for work in works])
        self._moved()

    def withhold(self, works: list[Work]) -> list[Work]:
        """What of new work may go out."""
        if not self._leaving:
            return works
        leaving = [work for work in works if self._shard_of(work) in self._leaving]
        self._held_back.update((work.intent.id, work.run) for work in leaving)
        return [work for work in works if self._shard_of(work) not in self._leaving]

    def _held_back_of(self, shards: Collection[int]) -> dict[str, str]:
        """What was held back of these, and is no more."""
        held = self._core.held
        found = {intent: run for intent, run in self._held_back.items() if held.shard_of(run) in shards}
        for intent in found:
            del self._held_back[intent]
        return found

    def _works_of(self, shards: Collection[int]) -> list[Work]:
        return [work for work, _ in self._bus.works() if self._shard_of(work) in shards]

    def _shard_of(self, work: Work) -> int:
        return self._core.held.shard_of(work.run)

    def members(self) -> list[dict[str, Any]]:
        """Everybody who was there at the last look, with how many shards each had."""
        if self.seen is None:
            return []
        standing = self.seen.standing
        return [
            {
                "name": member.name,
                "url": member.url,
                "alone": member.alone,
                "shards": len(standing.of(member.name)),
            }
            for member in standing.members
        ]

    def homes(self) -> list[str]:
        """Names at which everybody is reached who decides something, one for each."""
        if self.seen is None:
            return [""]
        owners = self.seen.standing.owners
        first = {owners[shard]: shard for shard in sorted(owners, reverse=True)}
        return [home_on(shard, len(owners)) for shard in first.values()]

    def works_alone(self) -> str | None:
        """Who has all shards and works for its own runs only; None where that is nobody but us."""
        if self.seen is None:
            return None
        (first, *_) = [m for m in self.seen.standing.members if m.name == self.seen.standing.sharers[0]]
        return first.name if first.alone and first.name != self._member.name else None
