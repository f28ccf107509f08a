"""One of several members: the shards that it is about to give away, and those that others tell of."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from treadle.bus.data import DEFAULT_POOL
from treadle.bus.local import LocalBus
from treadle.host.sharing import Sharing
from treadle.host.thread import CoreThread
from treadle.runtime.commands import Operate
from treadle.runtime.core import Core
from treadle.runtime.ports import SystemClock
from treadle.runtime.recovery import OFFER
from treadle.runtime.shards import Held
from treadle.store.members import Membership
from treadle.testing.bus_conformance import work


class Standing:
    """Everything is one member's, who has as much too much as a test says."""

    def __init__(self) -> None:
        self.spare: list[int] = []

    def wanted_by(self, name: str) -> list[int]:
        return []

    def spare_of(self, name: str, left_alone: Collection[int]) -> list[int]:
        return self.spare


async def test_what_was_held_back_goes_out_only_where_it_is_open_still() -> None:
    """It may have run out of time or been cancelled meanwhile: the store says so, and whoever held it back does not know."""
    asked: list[Operate] = []
    held, standing, bus = {0: 1, 1: 1}, Standing(), LocalBus(SystemClock())
    core = SimpleNamespace(store=SimpleNamespace(held=held), held=Held(2, held), submit=asked.append)
    roster: Any = SimpleNamespace(standing=standing, mine=held)
    member = SimpleNamespace(name="one", look=lambda: roster)
    sharing = Sharing(cast(Core, core), cast(Membership, member), bus)
    standing.spare = [core.held.shard_of("run")]
    sharing.look()
    assert sharing.withhold([work("a", run="run"), work("b", run="run")]) == []
    bus.revoke(["a"])
    standing.spare = []
    sharing.look()
    assert bus.works() == []
    (offer,) = asked
    assert (offer.name, offer.body) == (OFFER, {"intents": ["a", "b"], "runs": ["run"]})
    assert sharing.withhold([work("c", run="run")]) == [work("c", run="run")]


async def test_a_shard_goes_when_nothing_of_it_is_in_hand_and_no_receipt_waits_to_be_decided() -> None:
    """Or whoever has it next does again what was done here."""
    settling: set[int] = set()
    given: list[int] = []
    held, standing, bus = {0: 1, 1: 1}, Standing(), LocalBus(SystemClock())
    core = SimpleNamespace(
        store=SimpleNamespace(held=held),
        held=Held(2, held),
        submit=lambda asked: None,
        settling=lambda: settling,
        lose=lambda shards: None,
    )
    roster: Any = SimpleNamespace(standing=standing, mine=held)
    member = SimpleNamespace(name="one", look=lambda: roster, give=given.extend)
    sharing = Sharing(cast(Core, core), cast(Membership, member), bus)
    shard = core.held.shard_of("run")
    bus.offer([work("in hand", run="run")])
    (handed,) = bus.take("somebody", (DEFAULT_POOL,), 1)
    bus.offer([work("waits", run="run")])
    standing.spare = [shard]
    sharing.look()
    assert [found.intent.id for found, _ in bus.works()] == ["in hand"], "what is in hand stays there"
    sharing.renew()
    assert given == []
    settling.add(shard)
    bus.done(handed.work.intent.id)
    sharing.renew()
    assert given == []
    settling.clear()
    sharing.renew()
    assert given == [shard]


def test_a_shard_that_comes_while_others_tell_of_something_does_not_silence_them() -> None:
    """They tell on a thread of their own, which would end."""

    class Sly(int):
        """While somebody looks at it another shard comes, as on the core's thread."""

        def __format__(self, spec: str) -> str:
            held[9] = 1
            return "3"

    noticed: list[str] = []
    held: dict[int, int] = {Sly(3): 1, 4: 1}
    core: Any = SimpleNamespace(store=SimpleNamespace(held=held, notice=lambda: noticed.append("store")))
    turning: Any = SimpleNamespace(notice=lambda: noticed.append("core"))
    nobody: Any = None
    thread = CoreThread(nobody, nobody, nobody, None, on_open=nobody, on_stop=nobody)
    thread._heard(core, turning, {"i4"})
    assert noticed == ["store", "core"]
