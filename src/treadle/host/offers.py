"""What dialects can be asked for besides events of their runs: each offers its operations by name, with what they keep.

An offer is declared where the code behind it may be imported, above all that is shared, and is handed to the engine that is
put together there (`engine.py`). The code itself comes when it is first needed, and never on the core's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from treadle.kernel.errors import ValueRefused
from treadle.runtime.commands import Operate
from treadle.runtime.fetching import NotAtHand
from treadle.store.rows import DefinitionRow

if TYPE_CHECKING:
    from treadle.runtime.desk import Handing

    # Imported by whoever collects.
    from treadle.runtime.finding import Pins
    from treadle.store.protocol import Reads


if TYPE_CHECKING:

    class DialectOperations(Protocol):
        """The operations of one dialect, on the core's thread."""

        def perform(self, desk: Handing, asked: Operate) -> object:
            """Performs one of those that are offered, as a change of its own. Raises a TreadleError to refuse."""
            ...

        def check_owner(self, reads: Reads, row: DefinitionRow) -> None:
            """Refuses a definition of the dialect that is about to be deployed, where it belongs to somebody else."""
            ...

        def learn(self, row: DefinitionRow, fetched: Collection[str]) -> None:
            """Has the code of a definition loaded that another process deploys, unless that was tried."""
            ...


class Offer(NamedTuple):
    dialect: str
    # Their names: in one house no two dialects offer the same.
    names: frozenset[str]
    # Imports what does them; not on the core's thread, and once.
    make: Callable[[], DialectOperations]
    # What keeps payloads that no run holds.
    pins: Callable[[], Pins] | None = None


class DialectOffers:
    """Those of one engine."""

    def __init__(self, offers: Iterable[Offer] = ()) -> None:
        self._by_dialect: dict[str, Offer] = {}
        self._by_name: dict[str, Offer] = {}
        self._at_hand: dict[str, DialectOperations] = {}
        for offer in offers:
            self.add(offer)

    def add(self, offer: Offer) -> None:
        if taken := offer.names & self._by_name.keys():
            raise ValueRefused(f"operations of these names are there already: {', '.join(sorted(taken))}")
        self._by_dialect[offer.dialect] = offer
        self._by_name.update(dict.fromkeys(offer.names, offer))

    def __contains__(self, name: str) -> bool:
        """Whether a dialect offers an operation of this name."""
        return name in self._by_name

    def for_operation(self, name: str) -> DialectOperations:
        """Whoever performs it."""
        return self._made(self._by_name[name])

    def for_dialect(self, dialect: str) -> DialectOperations | None:
        """What a dialect offers, if it offers anything."""
        offer = self._by_dialect.get(dialect)
        return None if offer is None else self._made(offer)

    def pins(self) -> Pins:
        """What keeps payloads that no run holds, of all of them; imports, so not for the core's thread."""
        from treadle.runtime.finding import Pins

        all = [offer.pins() for offer in self._by_dialect.values() if offer.pins is not None]
        kinds = [kind for pins in all for kind in pins.kinds]
        return Pins(kinds, lambda reads: chain.from_iterable(pins.reached(reads) for pins in all))

    def _made(self, offer: Offer) -> DialectOperations:
        if (found := self._at_hand.get(offer.dialect)) is None:
            raise NotAtHand(f"the code of {offer.dialect} operations", lambda: self._make(offer))
        return found

    def _make(self, offer: Offer) -> None:
        self._at_hand.setdefault(offer.dialect, offer.make())
