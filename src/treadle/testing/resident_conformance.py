"""What a bus must do for the *resident*, the worker in its owner's own process (`bus.protocol.NearSide`), as checks that
run on any bus that has such a side; beside `bus_conformance`, which is about workers elsewhere.

    for check in resident_conformance.CHECKS:
        await check(make_post)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from treadle.bus.data import OTHERS, RESIDENT
from treadle.runtime.ports import Work

from .bus_conformance import LEASE_S, POOLS, QUEUE_MAX, Post, ids, work, works

if TYPE_CHECKING:
    from treadle.bus.protocol import NearSide


LANE: Final = "lane"
SLOW: Final = "slow"
FAR: Final = "far"
THREADS: Final = 4
MANY: Final = 400


class NearPost(Post, Protocol):
    """A post whose bus has a side for the resident too."""

    @property
    def near(self) -> NearSide: ...


MakeNearPost = Callable[[], AbstractAsyncContextManager[NearPost]]
NearCheck = Callable[[MakeNearPost], Awaitable[None]]


class Lodger:
    """A resident that leaves the pool `far` to others, and does the rest on the lane of its choice."""

    def __init__(self, near: NearSide, *, leaves: str = FAR) -> None:
        self.leaves = leaves
        self.lane = LANE
        # What it was told of new work, and of work that is not wanted any more.
        self.told: list[dict[str, int]] = []
        self.gone: list[str] = []
        near.attach(self)

    def lane_of(self, work: Work) -> str:
        return OTHERS if work.intent.pool == self.leaves else self.lane

    def offered(self, lanes: dict[str, int]) -> None:
        self.told.append(dict(lanes))

    def revoked(self, intents: Sequence[str]) -> None:
        self.gone += intents

    def heard(self) -> Counter[str]:
        """Of how much new work it was told since it was asked last, by lane."""
        told, self.told = self.told, []
        return sum(map(Counter, told), Counter())


def names(found: Sequence[Work]) -> list[str]:
    return [piece.intent.id for piece in found]


# --- taking ------------------------------------------------------------------------------------------


async def check_the_resident_is_told_on_the_spot_and_takes_in_order(make: MakeNearPost) -> None:
    async with make() as post:
        near, lodger = post.near, Lodger(post.near)
        near.offer([*works("a", "b", "c"), work("d", pool=FAR)])
        assert lodger.told == [{LANE: 3, OTHERS: 1}], "once, with all that came"
        assert near.waiting_in(LANE) == 3
        (first,) = near.take_here(LANE, 1)
        assert first == work("a"), "the oldest first, as it was offered"
        assert names(near.take_here(LANE, 9)) == ["b", "c"], "nothing that it leaves to others"
        assert (near.waiting_in(LANE), names(near.held())) == (0, ["a", "b", "c"])
        assert near.take_here(LANE, 9) == [], "each piece once"
        assert near.take_here("another", 9) == [], "a lane in which nothing ever waited is empty"


async def check_the_resident_takes_what_is_offered_again_once(make: MakeNearPost) -> None:
    async with make() as post:
        near, lodger = post.near, Lodger(post.near)
        near.offer(works("a", "b"))
        near.take_here(LANE, 1)
        lodger.heard()
        near.offer(works("a", "b"))
        assert not lodger.heard(), "that is no new work"
        assert names(near.take_here(LANE, 9)) == ["b"]


async def check_runs_take_turns(make: MakeNearPost) -> None:
    async with make() as post:
        near = post.near
        Lodger(near)
        near.offer([work(f"big{number}", run="big") for number in range(QUEUE_MAX - 3)])
        near.offer([work("small0", run="small"), work("small1", run="small"), work("other0", run="other")])
        assert names(near.take_here(LANE, 3)) == ["big0", "small0", "other0"], (
            "whoever came first with how much"
        )
        assert names(near.take_here(LANE, 3)) == ["big1", "small1", "big2"], "a run's own stays in its order"


async def check_what_is_gone_takes_no_turn_from_its_run(make: MakeNearPost) -> None:
    async with make() as post:
        near = post.near
        Lodger(near)
        near.offer([work(f"{run}{number}", run=run) for run in "ab" for number in range(4)])
        near.revoke(["a0", "a1", "a2"])
        assert names(near.take_here(LANE, 3)) == ["a3", "b0", "b1"]


async def check_a_lane_is_bounded_and_what_is_beyond_comes_later(make: MakeNearPost) -> None:
    async with make() as post:
        near = post.near
        Lodger(near)
        known = [f"w{number:02}" for number in range(QUEUE_MAX + 3)]
        near.offer(works(*known))
        assert near.waiting_in(LANE) == QUEUE_MAX, "no more than the bound waits"
        assert names(near.take_here(LANE, 99)) == known[:QUEUE_MAX]
        assert post.owner.again == {name: f"run-{name}" for name in known[QUEUE_MAX:]}, (
            "the owner is asked for the rest"
        )
        near.offer(works(*known[QUEUE_MAX:]))
        assert names(near.take_here(LANE, 99)) == known[QUEUE_MAX:]


async def check_the_limit_of_a_pool_holds_for_the_resident(make: MakeNearPost) -> None:
    async with make() as post:
        near, lodger = post.near, Lodger(post.near)
        near.offer([work(name, pool="gpu") for name in ("a", "b", "c", "d")])
        assert names(near.take_here(LANE, 1)) == ["a"]
        near.limit_pools({"gpu": 2})
        assert names(near.take_here(LANE, 9)) == ["b"], "what was in hand before there was a limit counts"
        lodger.heard()
        near.done("a")
        assert lodger.heard()[LANE], "nobody else tells it that there is room now"
        near.done("a")
        assert names(near.take_here(LANE, 9)) == ["c"], "done twice is one place"
        near.limit_pools({})
        assert names(near.take_here(LANE, 9)) == ["d"]


async def check_threads_that_take_at_once_share_the_work(make: MakeNearPost) -> None:
    async with make() as post:
        near = post.near
        Lodger(near)

        def take_all() -> list[str]:
            mine: list[str] = []
            while taken := near.take_here(LANE, 1):
                mine += names(taken)
                near.done(mine[-1])
            return mine

        for start in range(0, MANY, QUEUE_MAX):
            known = [f"w{number}" for number in range(start, start + QUEUE_MAX)]
            near.offer(works(*known))
            shared = await asyncio.gather(*(asyncio.to_thread(take_all) for _ in range(THREADS)))
            assert sorted(chain.from_iterable(shared)) == sorted(known), "each piece went to one of them"
        assert not near.unsettled_in(LANE), "nothing waits, and nothing is in hand"


# --- in hand -----------------------------------------------------------------------------------------


async def check_what_the_resident_holds_is_not_taken_from_it_by_time(make: MakeNearPost) -> None:
    async with make() as post:
        near = post.near
        Lodger(near)
        near.offer(works("a", "b"))
        near.take_here(LANE, 1)
        post.pass_time(LEASE_S * 100)
        assert near.expire() == 0, "it has no lease that could run out"
        assert (near.is_held("a"), near.is_held("b")) == (True, False)
        assert ids((await post.worker("one").take(POOLS, 9)).items) == ["b"], "what waits others may take"
        assert near.take_here(LANE, 9) == [], "and then it waits no more"
        assert near.is_held("b"), "somebody has it"
        assert names(near.held()) == ["a"], "but not the resident"


async def check_done_is_done(make: MakeNearPost) -> None:
    async with make() as post:
        near = post.near
        Lodger(near)
        near.offer(works("a", "b"))
        near.take_here(LANE, 1)
        for _ in range(2):
            near.done("a")
            near.done("unknown")
            assert (near.find("a"), near.is_held("a")) == (None, False)
            assert (near.waiting_in(LANE), near.held()) == (1, []), "said twice it is done once"
        near.done("b")
        assert not near.unsettled_in(LANE), "what was settled while it waited waits no more"
        near.offer(works("c"))
        assert near.unsettled_in(LANE), "something waits"
        assert names(near.take_here(LANE, 9)) == ["c"]
        assert near.unsettled_in(LANE), "something is in hand"


async def check_revoked_work_is_gone_whether_it_waits_or_is_in_hand(make: MakeNearPost) -> None:
    async with make() as post:
        near, lodger = post.near, Lodger(post.near)
        near.offer(works("a", "b", "c"))
        near.take_here(LANE, 1)
        near.revoke(["a", "b", "unknown"])
        assert {"a", "b"} <= set(lodger.gone), "the resident is told on the spot"
        assert (near.held(), near.find("a")) == ([], None), "it has nothing of it in hand any more"
        near.done("a")
        near.decline("a", RESIDENT, "too late")
        near.move("a", SLOW)
        assert names(near.take_here(LANE, 9)) == ["c"], "what it says of it later changes nothing"
        assert not near.unsettled_in(SLOW)
        near.offer(works("a"))
        assert names(near.take_here(LANE, 9)) == ["a"], "its owner may want it again"


async def check_a_checkpoint_goes_with_the_work(make: MakeNearPost) -> None:
    async with make() as post:
        near = post.near
        Lodger(near)
        near.offer(works("a"))
        near.take_here(LANE, 1)
        near.saved("a", {"at": 1})
        near.saved("unknown", {"at": 1})
        near.decline("a", RESIDENT, "no tool slack here")
        (handed,) = (await post.worker("one").take(POOLS, 9)).items
        assert handed.work.checkpoint == {"at": 1}, "whoever has it next goes on where it was left"


async def check_work_moves_to_another_lane(make: MakeNearPost) -> None:
    async with make() as post:
        near, lodger = post.near, Lodger(post.near)
        near.offer(works("a", "b"))
        near.take_here(LANE, 1)
        lodger.heard()
        near.move("a", SLOW)
        assert lodger.heard() == {SLOW: 1}, "it is told of it as of new work"
        near.move("b", SLOW)
        near.move("unknown", SLOW)
        assert (near.waiting_in(LANE), near.waiting_in(SLOW)) == (1, 1), "only what it has in hand moves"
        assert names(near.take_here(LANE, 9)) == ["b"]
        near.done("b")
        assert (near.unsettled_in(LANE), near.unsettled_in(SLOW)) == (0, 1)
        assert names(near.take_here(SLOW, 9)) == ["a"]
        near.done("a")
        assert not near.unsettled_in(SLOW)


# --- the resident and the others ---------------------------------------------------------------------


async def check_what_the_resident_declines_goes_to_others_until_it_reconsiders(make: MakeNearPost) -> None:
    async with make() as post:
        near, lodger = post.near, Lodger(post.near)
        near.offer(works("a", "b", "c"))
        near.take_here(LANE, 2)
        near.decline("a", RESIDENT, "no tool slack here")
        near.decline("b", RESIDENT, "no tool slack here")
        near.decline("c", RESIDENT, "it waits still")
        assert names(near.take_here(LANE, 9)) == ["c"], "not to the one that cannot do it"
        near.done("c")
        assert not near.unsettled_in(LANE), "what it declined is not in its hands"
        assert ids((await post.worker("one").take(POOLS, 1)).items) == ["a"], "but to others"
        near.decline("a", RESIDENT, "it is in other hands")
        assert near.is_held("a"), "nobody declines what another has in hand"
        lodger.heard()
        near.reconsider(lambda work: True)
        assert near.take_here(LANE, 9) == [], "that was about what it had left to them unseen"
        near.reconsider(lambda work: work.intent.id != "b", declined=True)
        assert near.take_here(LANE, 9) == [], "and only what is chosen"
        near.reconsider(lambda work: work.dialect == "toy", declined=True)
        assert lodger.heard() == {LANE: 1}, "it is told of it as of new work"
        assert names(near.take_here(LANE, 9)) == ["b"], "what others have in hand stays there"


async def check_the_resident_may_come_to_do_what_it_left_to_others(make: MakeNearPost) -> None:
    async with make() as post:
        near, lodger = post.near, Lodger(post.near)
        near.offer([work("a", pool=FAR), work("b", pool=FAR)])
        assert near.take_here(LANE, 9) == []
        near.reconsider(lambda work: True)
        assert near.take_here(LANE, 9) == [], "it does not do it still"
        lodger.leaves = "none"
        near.reconsider(lambda work: work.run == "run-a")
        assert names(near.take_here(LANE, 9)) == ["a"]
        assert ids((await post.worker("one").take((FAR,), 9)).items) == ["b"], (
            "the rest is for others as before"
        )


async def check_a_bus_whose_resident_changes_begins_anew(make: MakeNearPost) -> None:
    async with make() as post:
        near, before = post.near, Lodger(post.near)
        near.offer(works("a", "b"))
        near.take_here(LANE, 1)
        after = Lodger(near)
        assert (near.held(), near.unsettled_in(LANE)) == ([], 0), "what was offered before is forgotten"
        before.heard()
        near.offer(works("a", "b"))
        assert (before.heard(), after.heard()) == ({}, {LANE: 2})
        assert names(near.take_here(LANE, 9)) == ["a", "b"], "and offered again it is new"
        near.attach(None)
        near.offer(works("a", "b"))
        near.reconsider(lambda work: True)
        assert (near.take_here(LANE, 9), after.heard()) == ([], {}), "where there is no resident"
        assert ids((await post.worker("one").take(POOLS, 9)).items) == ["a", "b"], "all is for others"


CHECKS: list[NearCheck] = [
    check for name, check in list(globals().items()) if name.startswith("check_") and callable(check)
]
