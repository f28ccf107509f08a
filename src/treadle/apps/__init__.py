"""Reactive applications as operations: publish, apply, shadow, governance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from treadle.host.offers import Offer

if TYPE_CHECKING:
    from treadle.host.offers import DialectOperations
    from treadle.runtime.finding import Pins

    from .operations import Applications


if TYPE_CHECKING:

    class HasApplications(Protocol):
        @property
        def applications(self) -> Applications: ...


def offer(home: HasApplications) -> Offer:
    """What applications can be asked for at one engine."""

    def make() -> DialectOperations:
        found = home.applications
        assert found.machine, "it comes with its dialect"
        return found

    def pins() -> Pins:
        from .snapshots import PINS

        return PINS

    return Offer("reactive", frozenset({"apply", "barrier", "govern", "publish", "snapshot"}), make, pins)
