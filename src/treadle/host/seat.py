"""What of its store an engine decides: all of it as its owner, nothing as the guest of another process or as an onlooker,
some shards of it as one of several members; and who decides the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.runtime.core import Core
from treadle.runtime.ports import Work
from treadle.store.members import Membership
from treadle.store.open import Place
from treadle.store.owner import Tenure

from .thread import CoreThread

if TYPE_CHECKING:
    from .sharing import Sharing


class Seat:
    """Any thread may ask. What is seen was so a moment ago."""

    def __init__(self) -> None:
        # The core's thread, while there is one.
        self.thread: CoreThread | None = None
        # This engine among those who share the store, where several may.
        self.member: Membership | None = None
        self._lock: Tenure | None = None

    def claim(self, place: Place, *, alone: bool | None) -> Tenure | None:
        """How this engine may come to decide: by the lock of a file, or as a member. `alone`: it works for its own runs
        only; None if it does not work."""
        self._lock, self.member = place.tenure(), place.membership()
        for tenure in (self._lock, self.member):
            if tenure is not None and alone is not None:
                tenure.alone = alone
        return self._lock

    def take(self, thread: CoreThread) -> None:
        self.thread = thread

    def leave(self) -> None:
        self.thread = None

    def help_all(self) -> None:
        """It works for everybody from now on, and others can see so."""
        if self._lock is not None:
            self._lock.helps()
        if self.member is not None:
            self.member.alone = False

    # --- what is decided here ---

    @property
    def core(self) -> Core | None:
        """The core, if this engine owns the store; else it is the guest of another process."""
        return self.thread.core if self.thread is not None else None

    @property
    def shards(self) -> tuple[int, int]:
        """How many shards are decided here, of how many."""
        core = self.core
        return (0, 1) if core is None else (len(core.store.held), core.store.shards)

    @property
    def owns(self) -> bool:
        """Whether runs are decided here."""
        return self.shards[0] > 0

    def decides(self, run: str) -> bool:
        core = self.core
        return core is not None and (not core.held.several or core.held.holds(run))

    @property
    def is_told(self) -> bool:
        """Whether commits send their news here; as a guest, or as an onlooker, we have to look."""
        core = self.core
        return core is not None and (not core.held.several or core.held.all)

    # --- who else is there ---

    @property
    def shares(self) -> bool:
        """Whether this is one of several members, so that commits elsewhere are nothing out of the ordinary."""
        return self.member is not None

    @property
    def sharing(self) -> Sharing | None:
        """This engine as one of several members, where there may be several."""
        return None if self.thread is None else self.thread.sharing

    @property
    def is_there(self) -> bool:
        """As a member: whether others still go by what they know of us."""
        sharing = self.sharing
        return sharing is not None and sharing.is_there

    def withheld(self, works: list[Work]) -> list[Work]:
        """As a member: what of new work may go out."""
        return works if (sharing := self.sharing) is None else sharing.withhold(works)

    def homes(self) -> list[str]:
        """Names at which everybody is reached who decides something on this store, one for each."""
        return [""] if self.sharing is None else self.sharing.homes()

    def works_alone(self) -> str | None:
        """Who decides here in our place, and works for its own runs only; None where we do, or it helps everybody."""
        if self.sharing is not None:
            return self.sharing.works_alone()
        return self._lock.works_alone() if self._lock is not None and self.core is None else None

    def waits_for(self) -> str | None:
        """Whom those wait for here who are not answered; None if nobody else is to blame."""
        if self.member is not None:
            return "the member that decides this has not answered yet"
        return self._lock.waits_for() if self._lock is not None and self.core is None else None
