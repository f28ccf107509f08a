"""The bus between machines: tickets go round, work stays with its owner.

The owner keeps its work and its leases as in one process (`local.py`, `hatch.py`). The `Relay` beside it puts a ticket
for each piece of work that waits into a carrier: PostgreSQL or NATS. A worker (`FarBus`) pulls tickets of its pools,
whoever's they are, and claims the work with the owner of its shard; from then on it renews, reports and settles there.
So every rule has one place, and a carrier may lose everything: the relay looks, and puts tickets for what still waits.

What a worker sends is signed with a key that it got when it registered, and answered only by the owner of the shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from treadle.kernel.errors import PASSING, EngineStopped, InputInvalid, TreadleError
from treadle.kernel.limits import LEASE_RENEW_MS
from treadle.kernel.values import Value, decode, encode

from .carrier import Away, Carrier, Pulled, Shards, Ticket
from .data import NOT_HANDED_OUT, Handed, Noted, Settled, Settling, Taken, Told
from .hatch import Hatch
from .messages import convert, handed_from_value, handed_value, settling_value, told_value
from .seal import Seal
from .waiting import at_most

log = logging.getLogger("treadle.bus")
T = TypeVar("T")
R = TypeVar("R")
# Work that waits: its run, intent, pool, and how often it was handed out.
Waiting = tuple[str, str, str, int]

# A relay looks this often whether tickets got lost.
SWEEP_S: Final = 1.0
SWEEP_TICKETS_MAX: Final = 1_000
# The oldest work that waits gets another ticket after this time, and after twice as long each time.
PASSED_BY_S: Final = (5.0, 60.0)
PASSED_BY_MAX: Final = 100
# The worker in the owner's own process gets so much of a start.
RESIDENT_FIRST_S: Final = 0.01
# An open `take` looks this often what it has been told.
SLICE_S: Final = 1.0
# A ticket of work that this worker declined, for the others.
DECLINED_S: Final = 0.25
ANSWER_S: Final = 15.0
AWAY_S: Final = 0.25
# Who leaves waits so long for a carrier that does not answer.
LEAVE_S: Final = 2.0


def _mark(key: bytes, said: Sequence[Value]) -> bytes:
    return hmac.new(key, encode(list(said)), hashlib.sha256).digest()


class Relay:
    """The owner's side. Called on one event loop."""

    def __init__(
        self,
        hatch: Hatch,
        carrier: Carrier,
        seal: Seal,
        *,
        shards: Shards,
        shard_of: Callable[[str], int],
        patience_s: float,
        passed_by_s: tuple[float, float] = PASSED_BY_S,
    ) -> None:
        self._hatch = hatch
        self._carrier = carrier
        self._seal = seal
        self._shards = shards
        self._shard_of = shard_of
        self._patience_s = patience_s
        # Tickets of an owner's earlier life are not taken for ours.
        self._life = secrets.token_hex(4)
        self._repeats = 0
        self._passed_by_s = passed_by_s
        # The oldest work that waits: when it gets another ticket, and how long after that one the next.
        self._passed_by: dict[str, tuple[float, float]] = {}
        # Who has asked here: told when what they have is not wanted any more.
        self._workers: set[str] = set()
        self._busy = asyncio.Lock()
        hatch.bus.gather_fresh()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        end = self._hatch.bus.listen(lambda: _soon(loop, woken.set))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carrier.answer(self._shards, self._answer))
                tasks.create_task(self._push(woken))
                tasks.create_task(self._sweep())
        finally:
            end()

    # --- tickets ---

    async def _push(self, woken: asyncio.Event) -> None:
        while True:
            await woken.wait()
            woken.clear()
            if self._patience_s:
                await asyncio.sleep(self._patience_s)
            try:
                await self.flush()
            except Away:
                await asyncio.sleep(AWAY_S)  # the sweep finds what has no ticket

    async def flush(self) -> None:
        """Puts tickets for what came to wait since the last time, and tells workers what is revoked."""
        async with self._busy:
            bus = self._hatch.bus
            fresh = bus.fresh()
            tickets = [self._ticket(run, intent, pool, str(attempt)) for run, intent, pool, attempt in fresh]
            if tickets:
                await self._carrier.push(tickets)
            for worker in list(self._workers):
                if bus.revoked(worker):
                    await self._carrier.tell(worker)

    def _ticket(self, run: str, intent: str, pool: str, which: str) -> Ticket:
        return Ticket(f"{self._life}.{intent}.{which}", intent, self._shard_of(run), pool)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except Away:
                log.debug("the carrier does not answer")

    async def sweep(self) -> None:
        """A pool in which work waits and of which no tickets are left gets new ones. Tickets of work that nobody can do
        may be left for ever: they must not keep other work whose ticket is gone from ever getting one."""
        bus = self._hatch.bus
        bus.expire()
        await self.flush()
        pools = [pool for pool, count in bus.waiting().items() if count]
        late = self._late(bus.still_waiting(pools, PASSED_BY_MAX))
        if not pools:
            return
        queued = await self._carrier.queued(pools)
        empty = {pool for pool in pools if not queued.get(pool)}
        self._repeats += 1
        late = [one for one in late if one[2] not in empty]
        again = [
            self._ticket(run, intent, pool, f"{attempt}.{self._repeats}")
            for run, intent, pool, attempt in (*bus.still_waiting(empty, SWEEP_TICKETS_MAX), *late)
        ]
        if again:
            await self._carrier.push(again)

    def _late(self, oldest: Sequence[Waiting]) -> list[Waiting]:
        """Those of these that have waited for long since their last ticket."""
        now, (first_s, longest_s) = asyncio.get_running_loop().time(), self._passed_by_s
        before, self._passed_by = self._passed_by, {}
        late: list[Waiting] = []
        for one in oldest:
            at, pause_s = before.get(one[1], (now + first_s, first_s))
            if at <= now:
                late.append(one)
                pause_s = min(2 * pause_s, longest_s)
                at = now + pause_s
            self._passed_by[one[1]] = at, pause_s
        return late

    # --- questions ---

    async def _answer(self, shard: int, body: bytes) -> bytes:
        try:
            worker, what, said = self._read(body)
        except TreadleError as error:
            return encode({"error": error.to_value()})
        if shard not in self._shards():
            raise Away
        self._workers.add(worker)
        try:
            return encode({"value": await self._do(worker, what, said)})
        except EngineStopped as error:
            raise Away from error
        except PASSING as error:
            raise Away from error
        except TreadleError as error:
            return encode({"error": error.to_value()})
        except Exception as error:  # whoever asks is not left waiting for what is a fault of ours
            log.exception("the question of the worker %s could not be answered", worker)
            raise Away from error

    def _read(self, body: bytes) -> tuple[str, str, dict[str, Any]]:
        value = decode(body)
        shape = isinstance(value, list) and len(value) == 4
        if not shape or not isinstance(value[0], str) or not isinstance(value[1], str):
            raise InputInvalid("this is no message of a worker")
        worker, what, said, mark = value
        good = isinstance(mark, bytes) and isinstance(said, dict)
        if not good or not hmac.compare_digest(_mark(self._seal.key_of(worker), value[:3]), mark):
            raise TreadleError(
                f"the message is not signed by the worker {worker}", cls="authorization", code=NOT_HANDED_OUT
            )
        return worker, what, said

    async def _do(self, worker: str, what: str, said: dict[str, Any]) -> Value:
        hatch = self._hatch
        if what == "claim":
            items, declined = hatch.claim(worker, _texts(said, "intents"))
            return {"items": [handed_value(item) for item in items], "declined": declined}
        if what == "renew":
            return {"lost": list(hatch.renew(worker, _texts(said, "leases")))}
        if what == "settle":
            found = await hatch.settle(worker, _list(said, "receipts"))
            refused = [{"intent": one.intent, "code": one.code} for one in found.refused]
            return {"settled": list(found.settled), "stale": list(found.stale), "refused": list(refused)}
        if what == "progress":
            noted = await hatch.progress(worker, _list(said, "frames"))
            return {"durable": list(noted.durable), "lost": list(noted.lost)}
        if what == "release":
            hatch.release(worker, _texts(said, "leases"), str(said.get("reason", "")))
            return {}
        raise InputInvalid(f"a worker cannot ask for {what!r}")


def _list(said: dict[str, Any], name: str) -> list[Any]:
    found = said.get(name)
    if not isinstance(found, list):
        raise InputInvalid(f"{name} is a list")
    return found


def _texts(said: dict[str, Any], name: str) -> list[str]:
    return [str(one) for one in _list(said, name)]


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
        loop.call_soon_threadsafe(call)


class FarBus:
    """One worker's side (`protocol.Bus`)."""

    def __init__(
        self,
        carrier: Carrier,
        worker: str,
        key: bytes,
        *,
        about: Mapping[str, Value] | None = None,
        declined_s: float = DECLINED_S,
    ) -> None:
        self._carrier = carrier
        self._worker = worker
        self._key = key
        self._about = dict(about or {})
        self._declined_s = declined_s
        # The shard of each lease that is in hand.
        self._shards: dict[str, int] = {}
        self._told = asyncio.Event()
        self._hears = False
        self._since_ns = time.time_ns()
        self._beating: asyncio.Task[None] | None = None
        self._at_tickets: set[asyncio.Task[None]] = set()
        # What it said of itself last.
        self._said = b""

    async def close(self) -> None:
        """Leaves: from now on nobody counts on this worker."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        with contextlib.suppress(Away, TimeoutError):  # then it is missed after a while
            async with asyncio.timeout(LEAVE_S):
                await asyncio.gather(*self._at_tickets)
                if self._said:
                    await self._carrier.sign_out(self._worker, self._said)
        await self._carrier.close()

    async def register(self, **more: Value) -> None:
        """Says that this worker is there, and goes on saying so. With `draining` an open `take` ends soon."""
        self._about.update(more)
        await self._sign_in()
        if self._beating is None:
            self._beating = asyncio.ensure_future(self._beat())

    async def _sign_in(self) -> None:
        self._said = encode({**self._about, "busy": len(self._shards), "started_ns": self._since_ns})
        await self._carrier.sign_in(self._worker, self._said)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(LEASE_RENEW_MS / 1000)
            try:
                await self._sign_in()
            except Away:
                log.debug("the carrier does not answer")

    # --- the bus ---

    async def take(self, pools: Collection[str], limit: int, *, wait_s: float = 0) -> Taken:
        if not self._hears:
            await self._carrier.hear(self._worker, self._told.set)
            self._hears = True
        until = asyncio.get_running_loop().time() + wait_s
        while True:
            if self._told.is_set():
                self._told.clear()
                if lost := await self.renew(list(self._shards)):
                    return Taken([], lost)
            left = until - asyncio.get_running_loop().time()
            slice_s = max(0.0, min(left, SLICE_S))
            if limit > 0:
                try:
                    pulled = await self._carrier.pull(pools, limit, slice_s)
                except Away:
                    if left <= AWAY_S:
                        raise
                    await asyncio.sleep(AWAY_S)
                    continue
                if items := await self._claim(pulled):
                    return Taken(items, [])
            elif left > 0:
                await at_most(slice_s, self._told)
            if left <= 0 or self._about.get("draining"):
                return Taken([], [])

    async def _claim(self, pulled: Sequence[Pulled]) -> list[Handed]:
        """The work behind these tickets. Those of an owner who is away are for later."""

        async def claim(shard: int, held: list[Pulled]) -> list[Handed]:
            intents = list(dict.fromkeys(one.ticket.intent for one in held))
            try:
                answer = await self._ask(shard, "claim", {"intents": list(intents)})
            except Away:
                for one in held:
                    self._aside(one.put_back(self._declined_s))
                return []
            items = [handed_from_value(item) for item in answer["items"]]
            self._shards.update((item.lease, shard) for item in items)
            for one in held:
                declined = one.ticket.intent in answer["declined"]
                self._aside(one.put_back(self._declined_s) if declined else one.spend())
            return items

        found = await _all(claim, _by(pulled, lambda one: one.ticket.shard))
        return [item for items in found for item in items]

    def _aside(self, call: Coroutine[Any, Any, None]) -> None:
        """What becomes of a ticket is waited for by nobody: one that stays is shown again, and found to be old."""

        async def quietly() -> None:
            with contextlib.suppress(Away):
                await call

        task = asyncio.ensure_future(quietly())
        self._at_tickets.add(task)
        task.add_done_callback(self._at_tickets.discard)

    async def renew(self, leases: Sequence[str]) -> list[str]:
        async def renew(shard: int, some: list[str]) -> list[str]:
            return list((await self._ask(shard, "renew", {"leases": list(some)}))["lost"])

        found = await _all(renew, self._parted(leases, lambda lease: lease))
        lost = {lease for some in found for lease in some}
        self._let_go(lost)
        return [lease for lease in leases if lease in lost]

    async def settle(self, receipts: Sequence[Settling]) -> Settled:
        async def settle(shard: int, some: list[Settling]) -> Settled:
            sent: dict[str, Value] = {"receipts": [settling_value(one) for one in some]}
            return convert(await self._ask(shard, "settle", sent, lasting=True), Settled, "an answer")

        found = Settled(settled=[], stale=[], refused=[])
        for one in await _all(settle, self._parted(receipts, lambda one: one.lease)):
            found.settled += one.settled
            found.stale += one.stale
            found.refused += one.refused
        self._let_go(receipt.lease for receipt in receipts)
        return found

    async def progress(self, told: Sequence[Told]) -> Noted:
        async def tell(shard: int, some: list[Told]) -> Noted:
            sent: dict[str, Value] = {"frames": [told_value(one) for one in some]}
            return convert(await self._ask(shard, "progress", sent), Noted, "an answer")

        found = Noted(durable=[], lost=[])
        for one in await _all(tell, self._parted(told, lambda one: one.lease)):
            found.durable += one.durable
            found.lost += one.lost
        return found

    async def release(self, leases: Sequence[str], *, reason: str = "") -> None:
        async def release(shard: int, some: list[str]) -> None:
            await self._ask(shard, "release", {"leases": list(some), "reason": reason[:1000]})

        await _all(release, self._parted(leases, lambda lease: lease))
        self._let_go(leases)

    # --- questions ---

    def _parted(self, what: Iterable[T], lease: Callable[[T], str]) -> dict[int, list[T]]:
        """By the shard whose owner handed it out; what nobody did, anybody may say so."""
        return _by(what, lambda one: self._shards.get(lease(one), 0))

    def _let_go(self, leases: Iterable[str]) -> None:
        for lease in leases:
            self._shards.pop(lease, None)

    async def _ask(
        self, shard: int, what: str, body: dict[str, Value], *, lasting: bool = False
    ) -> dict[str, Any]:
        said: list[Value] = [self._worker, what, body]
        sent = encode([*said, _mark(self._key, said)])
        answer = decode(await self._carrier.ask(shard, sent, lasting=lasting, limit_s=ANSWER_S))
        if error := answer.get("error"):
            raise TreadleError.from_value(error)
        found: dict[str, Any] = answer["value"]
        return found


def _by(what: Iterable[T], key: Callable[[T], int]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = {}
    for one in what:
        found.setdefault(key(one), []).append(one)
    return found


async def _all(ask: Callable[[int, list[T]], Awaitable[R]], parted: Mapping[int, list[T]]) -> list[R]:
    """Every shard is asked at the same time, and all are heard before anything is said of one that did not answer."""
    asked = [ask(shard, some) for shard, some in parted.items()]
    found = await asyncio.gather(*asked, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return [one for one in found if not isinstance(one, BaseException)]


def rows_of(members: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
    """What workers say of themselves; one that says nonsense is left out."""
    found: dict[str, dict[str, Any]] = {}
    for name, body in members.items():
        try:
            value = decode(body)
        except TreadleError:
            continue
        if isinstance(value, dict):
            found[name] = value
    return found
