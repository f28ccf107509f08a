"""What every bus must do, as checks that run on any of them; free of pytest, so a third-party bus can run them too.

    for check in bus_conformance.CHECKS:
        await check(make_post)

`make_post()` is an asynchronous context manager that gives a fresh `Post`: a bus with both its sides. A check raises
AssertionError, naming the promise that is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from treadle.bus import messages
from treadle.bus.data import DEFAULT_POOL, NOT_HANDED_OUT, Handed, Settling, Told
from treadle.kernel.errors import InputInvalid, TreadleError
from treadle.kernel.model import OpenIntent, Receipt
from treadle.kernel.values import Value, encode
from treadle.runtime.ports import Work

if TYPE_CHECKING:
    from treadle.bus.protocol import Bus, Offers


QUEUE_MAX = 8
LEASE_S = 10.0
CANCELS = 200
TURNS = 12
POOLS = (DEFAULT_POOL,)


class Recorder:
    """An owner that writes down what reaches it. It settles each intent once, as a core does."""

    def __init__(self) -> None:
        self.settled: dict[str, Receipt] = {}
        self.told: list[Told] = []
        self.letters: list[tuple[str, str, str]] = []
        # Work that had found no room and is asked for again, with its run.
        self.again: dict[str, str] = {}

    async def settle(self, work: Work, receipt: Receipt) -> bool:
        if len(encode(receipt.value)) > 1_000:
            raise TreadleError("too large", cls="user", code="PAYLOAD_TOO_LARGE")
        if receipt.intent in self.settled:
            return False
        self.settled[receipt.intent] = receipt
        return True

    async def progress(self, work: Work, told: Sequence[Told]) -> bool:
        self.told += told
        return work.intent.id not in self.settled

    async def dead_letter(self, work: Work, worker: str, error: TreadleError, sent: Value) -> None:
        self.letters.append((work.intent.id, worker, error.code))
        self.settled[work.intent.id] = Receipt(intent=work.intent.id, status="error", error=error.to_value())


class Post(Protocol):
    """A bus whose queues hold `QUEUE_MAX` and whose leases last `LEASE_S`, over a `Recorder`."""

    offers: Offers
    owner: Recorder

    def worker(self, name: str) -> Bus: ...

    def pass_time(self, seconds: float) -> None:
        """Moves the owner's clock."""
        ...

    async def restart(self) -> None:
        """The owner dies and comes back. It remembers nothing of this bus; `offers` is new."""
        ...

    async def lose(self) -> None:
        """Whatever stands between owner and workers loses all it holds."""
        ...


MakePost = Callable[[], AbstractAsyncContextManager[Post]]
Check = Callable[[MakePost], Awaitable[None]]

PARAMS: dict[str, Any] = {"bytes": b"\x00\xff", "float": 1.0, "large": 2**64 - 1, "deep": [{"a": None}, True]}


def work(name: str, *, pool: str = "", run: str | None = None) -> Work:
    intent = OpenIntent(
        id=name,
        kind="call",
        params={**PARAMS, "name": name},
        ref=f"ref-{name}",
        seq=3,
        at_ns=5,
        due_ns=2**60,
        idempotency_key="key",
        pool=pool,
    )
    return Work(run or f"run-{name}", "flow", "toy", "sha256:0", {"base": "/x"}, intent)


def works(*names: str) -> list[Work]:
    return [work(name) for name in names]


def ids(items: Sequence[Handed]) -> list[str]:
    return [handed.work.intent.id for handed in items]


def ok(handed: Handed, value: Value = None) -> Settling:
    return Settling(lease=handed.lease, receipt=Receipt(intent=handed.work.intent.id, value=value))


# --- taking ------------------------------------------------------------------------------------------


async def check_work_is_taken_once_in_order_and_whole(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a", "b", "c"))
        one, two = post.worker("one"), post.worker("two")
        first = (await one.take(POOLS, 2)).items
        assert ids(first) == ["a", "b"], (
            "in the order in which it was offered, and no more than was asked for"
        )
        assert first[0].work == work("a"), "work arrives as it was offered, to the last value"
        assert first[0].attempt == 1, "its first attempt"
        assert ids((await two.take(POOLS, 9)).items) == ["c"], "each piece goes to one worker"
        assert (await one.take(POOLS, 9)).items == [], "and to no other"


async def check_work_offered_again_is_handed_out_once(make: MakePost) -> None:
    async with make() as post:
        worker = post.worker("one")
        post.offers.offer(works("a", "b"))
        post.offers.offer(works("a", "b"))
        assert ids((await worker.take(POOLS, 1)).items) == ["a"]
        post.offers.offer(works("a", "b"))
        assert ids((await worker.take(POOLS, 9)).items) == ["b"], "what is in hand is not handed out again"


async def check_a_worker_gets_work_of_its_pools_only(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer([work("a", pool="gpu"), work("b"), work("c", pool="eu")])
        worker = post.worker("one")
        assert ids((await worker.take(("gpu",), 9)).items) == ["a"]
        assert ids((await worker.take(("eu", DEFAULT_POOL), 9)).items) == ["b", "c"]


async def check_a_take_waits_for_work(make: MakePost) -> None:
    async with make() as post:
        waiting = asyncio.ensure_future(post.worker("one").take(POOLS, 9, wait_s=20))
        await asyncio.sleep(0)
        assert (await post.worker("two").take(POOLS, 9)).items == [], (
            "one that does not wait is answered at once"
        )
        post.offers.offer(works("a"))
        async with asyncio.timeout(10):
            assert ids((await waiting).items) == ["a"], "work that comes is handed out at once"


async def check_a_pool_is_bounded_and_what_is_beyond_comes_later(make: MakePost) -> None:
    async with make() as post:
        names = [f"w{number:02}" for number in range(QUEUE_MAX + 3)]
        post.offers.offer(works(*names))
        worker = post.worker("one")
        assert ids((await worker.take(POOLS, 99)).items) == names[:QUEUE_MAX], "no more than the bound waits"
        assert post.owner.again == {name: f"run-{name}" for name in names[QUEUE_MAX:]}, (
            "the owner is asked for the rest"
        )
        post.offers.offer(works(*names[QUEUE_MAX:]))
        assert ids((await worker.take(POOLS, 99)).items) == names[QUEUE_MAX:]


async def check_no_more_of_a_limited_pool_is_in_hand_than_may_be(make: MakePost) -> None:
    async with make() as post:
        post.offers.limit_pools({"gpu": 2})
        post.offers.offer([work(name, pool="gpu") for name in ("a", "b", "c", "d")])
        one, two = post.worker("one"), post.worker("two")
        a, _ = (await one.take(("gpu",), 9)).items
        post.offers.offer(works("e"))
        assert ids((await two.take(("gpu", *POOLS), 9)).items) == ["e"], "of other pools as much as comes"
        assert (await one.settle([ok(a)])).settled == ["a"]
        async with asyncio.timeout(30):
            assert ids((await two.take(("gpu",), 9, wait_s=20)).items) == ["c"], (
                "one is done: there is room for one"
            )
        post.offers.limit_pools({})
        async with asyncio.timeout(30):
            assert ids((await two.take(("gpu",), 9, wait_s=20)).items) == ["d"]


# --- leases ------------------------------------------------------------------------------------------


async def check_the_work_of_a_silent_worker_goes_to_another(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a", "b", "c"))
        silent, lively = post.worker("silent"), post.worker("lively")
        await silent.take(POOLS, 1)
        kept = (await lively.take(POOLS, 1)).items
        post.pass_time(LEASE_S * 0.7)
        assert await lively.renew([kept[0].lease]) == [], "a lease that holds is renewed"
        post.pass_time(LEASE_S * 0.4)
        found = (await lively.take(POOLS, 9)).items
        assert ids(found) == ["a", "c"], "before what came later; and what was renewed is left alone"
        assert found[0].attempt == 2, "it is the second attempt"


async def check_a_lost_lease_is_told(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a"))
        one, two = post.worker("one"), post.worker("two")
        (handed,) = (await one.take(POOLS, 1)).items
        post.pass_time(LEASE_S + 1)
        await two.take(POOLS, 1)
        assert await one.renew([handed.lease, "invented"]) == [handed.lease, "invented"]


async def check_a_lease_outlives_its_owner(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a", "b", "c"))
        one, two = post.worker("one"), post.worker("two")
        a, b, c = (await one.take(POOLS, 3)).items
        await post.restart()
        post.offers.offer(works("a", "b", "c"))
        assert await one.renew([a.lease]) == [], "what is in hand stays in hand"
        assert (await one.settle([ok(b)])).settled == ["b"], "and what was done meanwhile counts"
        found = (await two.take(POOLS, 9)).items
        assert ids(found) == ["c"], "others get only what nobody has"
        assert (await two.settle([ok(found[0])])).settled == ["c"]
        assert (await one.settle([ok(c)])).settled == [], "that one was somebody else's meanwhile"
        forged = Settling(lease=a.lease, receipt=Receipt(intent="a"))
        assert [r.code for r in (await two.settle([forged])).refused] == [NOT_HANDED_OUT]
        assert (await one.settle([ok(a)])).settled == ["a"]


async def check_revoked_work_is_never_handed_out(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a", "b"))
        post.offers.revoke(["a", "unknown"])
        assert ids((await post.worker("one").take(POOLS, 9)).items) == ["b"]


async def check_a_worker_is_told_what_was_revoked_in_its_hands(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a"))
        worker = post.worker("one")
        (handed,) = (await worker.take(POOLS, 1)).items
        waiting = asyncio.ensure_future(worker.take(POOLS, 9, wait_s=20))
        await asyncio.sleep(0)
        post.offers.revoke(["a"])
        async with asyncio.timeout(10):
            assert (await waiting).revoked == [handed.lease], "over the open take"
        assert await worker.renew([handed.lease]) == [handed.lease], "and when it renews"


async def check_released_work_is_there_for_others_at_once(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a"))
        one, two = post.worker("one"), post.worker("two")
        (handed,) = (await one.take(POOLS, 1)).items
        told = Told(intent="a", lease=handed.lease, seq=1, kind="checkpoint", value={"at": 1})
        await one.progress([told])
        await one.release([handed.lease, "invented"])
        (again,) = (await two.take(POOLS, 1)).items
        assert again.work.checkpoint == {"at": 1}, "whoever has it next goes on where it was left"
        assert again.attempt == 2


async def check_work_that_was_declined_goes_to_others_only(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a", "b"))
        one, two = post.worker("one"), post.worker("two")
        (handed,) = (await one.take(POOLS, 1)).items
        await one.release([handed.lease], reason="no tool slack here")
        assert ids((await one.take(POOLS, 9)).items) == ["b"], "not to the one that cannot do it"
        # The other one has looked at it and left it: it may be on its way back.
        assert ids((await two.take(POOLS, 9, wait_s=20)).items) == ["a"], "but to others"


async def check_the_loss_of_everything_is_survived(make: MakePost) -> None:
    async with make() as post:
        worker = post.worker("one")
        post.offers.offer(works("a", "b"))
        (a,) = (await worker.take(POOLS, 1)).items
        await post.lose()
        async with asyncio.timeout(30):
            found = (await worker.take(POOLS, 9, wait_s=20)).items
        assert ids(found) == ["b"], "what waits is offered again by its owner"
        assert await worker.renew([a.lease]) == [], "what is in hand stays there"
        await post.lose()
        assert (await worker.settle([ok(a), ok(found[0])])).settled == ["a", "b"]


async def check_work_of_megabytes_goes_through(make: MakePost) -> None:
    async with make() as post:
        large = [work(f"w{number}") for number in range(QUEUE_MAX)]
        large = [
            structs.replace(one, intent=structs.replace(one.intent, params={"text": "x" * 300_000}))
            for one in large
        ]
        post.offers.offer(large)
        worker = post.worker("one")
        async with asyncio.timeout(30):
            found = (await worker.take(POOLS, QUEUE_MAX, wait_s=20)).items
            while len(found) < QUEUE_MAX:
                found += (await worker.take(POOLS, QUEUE_MAX, wait_s=20)).items
        assert [handed.work for handed in found] == large, "all of it, whole"
        saved = b"x" * 3_000_000
        told = Told(intent="w0", lease=found[0].lease, seq=1, kind="checkpoint", value=saved)
        assert (await worker.progress([told])).durable == ["w0"]
        assert post.owner.told == [told], "a checkpoint of any size reaches its owner"
        assert (await worker.settle([ok(handed) for handed in found])).settled == ids(found)


async def check_whoever_is_cancelled_ends(make: MakePost) -> None:
    async with make() as post:
        worker = post.worker("one")
        post.offers.offer(works("a"))
        (handed,) = (await worker.take(POOLS, 1)).items

        async def go_on() -> None:
            while True:
                await worker.renew([handed.lease])
                await asyncio.sleep(0)

        for number in range(CANCELS):
            asking = asyncio.ensure_future(go_on())
            for _ in range(number % TURNS):
                await asyncio.sleep(0)
            asking.cancel()
            _, stuck = await asyncio.wait([asking], timeout=10)
            asking.cancel()
            assert not stuck, "whoever is told to end ends, also when an answer comes at the same instant"


# --- receipts ----------------------------------------------------------------------------------------


async def check_a_receipt_settles_once(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a"))
        worker = post.worker("one")
        (handed,) = (await worker.take(POOLS, 1)).items
        answer = await worker.settle([ok(handed, {"bytes": b"\xff", "n": 2.0})])
        assert (answer.settled, answer.stale, answer.refused) == (["a"], [], [])
        assert post.owner.settled["a"].value == {"bytes": b"\xff", "n": 2.0}, "the owner has it, whole"
        again = await worker.settle([ok(handed, "other")])
        assert again.settled == [], "the first receipt settles, no other does"
        assert post.owner.settled["a"].value == {"bytes": b"\xff", "n": 2.0}
        post.pass_time(LEASE_S * 2)
        assert (await worker.take(POOLS, 9)).items == [], "settled work is never handed out again"


async def check_only_whom_it_was_handed_to_can_settle(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a", "b"))
        one, two = post.worker("one"), post.worker("two")
        (a,) = (await one.take(POOLS, 1)).items
        (b,) = (await two.take(POOLS, 1)).items
        forged = [
            await two.settle([ok(a)]),
            await one.settle([Settling(lease="invented", receipt=Receipt(intent="a"))]),
            await one.settle([Settling(lease=a.lease, receipt=Receipt(intent="b"))]),
            await one.settle([Settling(lease=a.lease, receipt=Receipt(intent="unknown"))]),
        ]
        assert [[r.code for r in answer.refused] for answer in forged] == [[NOT_HANDED_OUT]] * 4
        assert post.owner.settled == {}, "nothing of it reached the owner"
        assert (await two.settle([ok(b)])).settled == ["b"], "and nobody else is the worse for it"


async def check_a_late_receipt_settles_if_nobody_else_has_the_work(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a", "b"))
        slow, other = post.worker("slow"), post.worker("other")
        a, b = (await slow.take(POOLS, 2)).items
        post.pass_time(LEASE_S + 1)
        post.offers.expire()
        assert (await slow.settle([ok(a)])).settled == ["a"], "done is done"
        assert ids((await other.take(POOLS, 9)).items) == ["b"]
        assert (await slow.settle([ok(b)])).stale == ["b"], "somebody else has it now"
        assert "b" not in post.owner.settled


async def check_one_bad_receipt_refuses_itself_only(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a", "b", "c"))
        worker = post.worker("one")
        a, b, c = (await worker.take(POOLS, 3)).items
        sent = [ok(a), ok(b, "x" * 2_000), Settling(lease="invented", receipt=Receipt(intent="c")), ok(c)]
        answer = await worker.settle(sent)
        assert answer.settled == ["a", "c"]
        assert [(r.intent, r.code) for r in answer.refused] == [
            ("b", "PAYLOAD_TOO_LARGE"),
            ("c", NOT_HANDED_OUT),
        ]


async def check_a_receipt_that_cannot_be_used_is_a_dead_letter(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a"))
        worker = post.worker("one")
        (handed,) = (await worker.take(POOLS, 1)).items
        await worker.settle([ok(handed, "x" * 2_000)])
        assert post.owner.letters == [("a", "one", "PAYLOAD_TOO_LARGE")], "kept, with the reason"
        assert post.owner.settled["a"].status == "error", (
            "its intent fails: done again it would come back the same"
        )


# --- progress ----------------------------------------------------------------------------------------


async def check_progress_reaches_the_owner_and_goes_with_the_work(make: MakePost) -> None:
    async with make() as post:
        post.offers.offer(works("a"))
        one, two = post.worker("one"), post.worker("two")
        (handed,) = (await one.take(POOLS, 1)).items
        frame = Told(intent="a", lease=handed.lease, seq=1, kind="frame", type="page", value={"n": 1})
        saved = Told(
            intent="a", lease=handed.lease, seq=2, kind="checkpoint", value=[b"x"], events=[{"type": "e"}]
        )
        noted = await one.progress([frame, saved])
        assert (noted.durable, noted.lost) == (["a"], [])
        assert post.owner.told == [frame, saved], "in order, whole"
        post.pass_time(LEASE_S + 1)
        (again,) = (await two.take(POOLS, 1)).items
        assert again.work.checkpoint == [b"x"], "the next worker goes on from the last checkpoint"
        late = await one.progress([frame])
        assert (late.durable, late.lost) == ([], ["a"]), (
            "progress of work in other hands is lost, and told so"
        )


# --- bytes -------------------------------------------------------------------------------------------


async def check_messages_are_bytes_and_read_strictly(make: MakePost) -> None:
    handed = Handed(work("a", pool="gpu"), 2, "lease", 10.0)
    assert messages.handed_from_bytes(messages.handed_to_bytes(handed)) == handed
    settling = Settling(
        lease="l", receipt=Receipt(intent="a", status="error", error={"code": "X"}, events=[{"type": "e"}])
    )
    assert messages.settling_from_bytes(messages.settling_to_bytes(settling)) == settling
    told = Told(intent="a", lease="l", seq=1, kind="checkpoint", value={"b": b"x"}, events=[{"type": "e"}])
    assert messages.told_from_bytes(messages.told_to_bytes(told)) == told
    good = messages.settling_value(settling)
    refused: list[Value] = [
        {**good, "more": 1},
        {**good, "status": "fine"},
        {**good, "error": None},
        {"intent": "a"},
        [],
        None,
    ]
    for bad in refused:
        try:
            messages.settling_from_bytes(encode(bad))
        except InputInvalid:
            continue
        raise AssertionError(f"what is no receipt is refused: {bad!r}")
    for broken in (b"", b"\xff", messages.told_to_bytes(told) + b"\x00"):
        try:
            messages.told_from_bytes(broken)
        except InputInvalid:
            continue
        raise AssertionError(f"what is not canonical is refused: {broken!r}")


CHECKS: list[Check] = [
    check for name, check in list(globals().items()) if name.startswith("check_") and callable(check)
]
