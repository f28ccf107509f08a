"""An engine among others on one store: what of it is decided here, and who else is there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from treadle.runtime import deploys
from treadle.runtime.meter import CoreMeter
from treadle.store.rows import DefinitionRow

from .reach import Reaches


class MemberMethods(Reaches):
    """What an engine knows of itself as one of several."""

    @property
    def owns(self) -> bool:
        """Whether runs are decided here: this engine owns the store, or holds shards of it. Else it is the guest of
        another process."""
        return self._host.seat.owns

    @property
    def begins_anew(self) -> bool:
        """Whether this member has no core just now: its store did not answer, and is waited for."""
        return self._host.seat.shares and self._host.seat.core is None

    @property
    def shards(self) -> dict[str, int]:
        """How many shards this engine holds, of how many."""
        held, of = self._host.seat.shards
        return {"held": held, "of": of}

    def decides(self, run: str) -> bool:
        """Whether a run is decided here, as things stand; "" for what belongs to the whole store."""
        return self._host.seat.decides(run)

    async def teach(self, run: str, row: DefinitionRow) -> None:
        """Whoever decides a run has to know what was compiled here."""
        if not self.decides(run) and row.digest in self.library.known:
            family = deploys.family_value(self.library.family(row.digest))
            await self._host.asks.operate("learn", family)

    @property
    def meter(self) -> CoreMeter:
        """What was counted here since this engine was made."""
        return self._host.meter

    @property
    def runs_in_memory(self) -> int:
        core = self._host.seat.core
        return 0 if core is None else len(core.hot)

    def homes(self) -> list[str]:
        """Names at which everybody is reached who decides something on this store, one for each."""
        return self._host.seat.homes()

    @property
    def member_name(self) -> str | None:
        """What this engine is called among those who share the store; None where it has one owner."""
        member = self._host.seat.member
        return None if member is None else member.name

    def announce(self, url: str, about: Mapping[str, Any]) -> None:
        """Where this engine is served, and what else others are told of it, from its next look on."""
        if (member := self._host.seat.member) is not None:
            member.url, member.about = url, about

    async def dismiss(self, name: str) -> bool:
        """Takes a member out, with all it holds; whether there was one of this name."""
        place = self._host.place

        def dismissed() -> bool:
            outsider = place.membership()
            if outsider is None:
                return False
            try:
                return outsider.dismiss(name)
            finally:
                outsider.close()

        return await asyncio.to_thread(dismissed)

    def members(self) -> list[dict[str, Any]]:
        """Those who share the store with this engine, itself among them, with how many shards each has; nobody
        where a store has one owner."""
        sharing = self._host.seat.sharing
        return [] if sharing is None else sharing.members()
