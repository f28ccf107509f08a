"""Between a worker and an owner elsewhere: brings work from a far bus to the near one, and what comes of it back.

The worker itself is the same as inside an engine: it takes from a local bus and hands in receipts and progress. The
courier takes no more than the worker can do, renews what it holds, sends what the worker says in the order it was
said, and has the worker stop what is no longer wanted. While a receipt is on its way there is room for other work; but
no more receipts are on their way than there are places. A server that is away is tried again for ever.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from treadle.bus.carrier import Away
from treadle.bus.data import Handed, Settling, Told
from treadle.bus.http import Refused
from treadle.kernel.errors import EngineStopped, TreadleError
from treadle.kernel.limits import LEASE_RENEW_MS
from treadle.kernel.model import Receipt
from treadle.runtime.commands import LATE, CheckpointSaved, Command, Deliver, FrameSent
from treadle.store.rows import DefinitionRow

if TYPE_CHECKING:
    from treadle.bus.protocol import FarSide, Goods, NearSide


log = logging.getLogger("treadle.worker")
T = TypeVar("T")

TAKE_S: Final = 20.0
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
TOLD_AGAIN_S: Final = 60.0
BATCH_MAX: Final = 100
UNAVAILABLE: Final = "work.unavailable"
# Of a server, or of what stands before it.
TOO_LARGE: Final = 413
# Leases of work that was taken out of our hands, and may still come to its end: the last so many.
DROPPED_MAX: Final = 1_000


class Courier:
    def __init__(
        self, far: FarSide, goods: Goods, near: NearSide, *, pools: Collection[str], concurrency: int
    ) -> None:
        self._far = far
        self._goods = goods
        self._near = near
        self._pools = pools
        self._concurrency = concurrency
        # Work is ours until its receipt has arrived.
        self._held: dict[str, Handed] = {}
        # That of it which the worker has not finished.
        self._unfinished: set[str] = set()
        self._dropped: dict[str, str] = {}
        self._outbox: asyncio.Queue[Command] = asyncio.Queue()
        self._freed = asyncio.Event()
        # We leave, and have nothing in hand.
        self._done = asyncio.Event()
        # Nothing is sent any more.
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._leaving = False
        self._warned = -TOLD_AGAIN_S

    # --- what the worker needs of its owner ---

    def submit(self, command: Command) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._said_by_worker, command)

    def _said_by_worker(self, command: Command) -> None:
        self._outbox.put_nowait(command)
        if isinstance(command, Deliver) and isinstance(command.event, Receipt):
            self._unfinished.discard(command.event.intent)
            self._freed.set()

    @property
    def _room(self) -> int:
        return min(self._concurrency - len(self._unfinished), 2 * self._concurrency - len(self._held))

    def fetch_blob(self, digest: str) -> bytes:
        """From any thread but the loop's."""
        return self._wait(partial(self._goods.blob, digest))

    def turn_with(self, item: Deliver) -> bool:
        """The core is elsewhere."""
        return False

    def sign(self, receipt: Receipt) -> bytes:
        """The owner signs for whom it knows by the lease."""
        return b""

    def fetch_definition(self, digest: str) -> DefinitionRow:
        return self._wait(partial(self._goods.definition, digest))

    async def secret(self, intent: str, name: str) -> str | dict[str, str] | None:
        """What the owner has under this name, for work that is in hand here."""
        handed = self._held.get(intent)
        return None if handed is None else await self._again(lambda: self._goods.secret(handed, name))

    def _wait(self, ask: Callable[[], Awaitable[T]]) -> T:
        """A server that is away is waited for: that is no fault of the work."""
        found = asyncio.run_coroutine_threadsafe(self._again(ask), self._loop).result()
        if found is None:
            raise EngineStopped("no server answers")
        return found

    # --- life ---

    async def run(self) -> None:
        """Until `leave`; raises what a server refuses for good."""
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send())
                renewing = tasks.create_task(self._renew())
                await self._take()
                await self._done.wait()
                sending.cancel()
                renewing.cancel()
        finally:
            self._ended.set()

    async def leave(self) -> None:
        """Takes nothing more; what is in hand is finished."""
        self._leaving = True
        self._freed.set()
        self._look()
        try:
            await self._far.register(draining=True)
        except (Away, TreadleError):
            return  # then the open `take` ends by its time

    async def flush(self) -> None:
        """Sends what the worker has handed in so far, while anything is sent."""
        waiting = [asyncio.ensure_future(one) for one in (self._outbox.join(), self._ended.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    async def give_back(self) -> None:
        """What could not be finished, for others to do at once."""
        leases = [handed.lease for handed in self._held.values()]
        self._held.clear()
        self._unfinished.clear()
        self._look()
        await self._release(leases)

    async def _release(self, leases: list[str]) -> None:
        try:
            if leases:
                await self._far.release(leases)
        except (Away, TreadleError):
            log.warning("no server answers: %d pieces of work wait for their leases to run out", len(leases))

    # --- taking ---

    async def _take(self) -> None:
        while not self._leaving:
            room = self._room
            self._freed.clear()
            ask = partial(self._far.take, self._pools, room, wait_s=TAKE_S)
            asking = asyncio.ensure_future(self._again(ask))
            if room > 0:
                taken = await asking
            else:
                # Nothing can be handed out, so nothing is lost by going away when there is room.
                freed = asyncio.ensure_future(self._freed.wait())
                await asyncio.wait((asking, freed), return_when=asyncio.FIRST_COMPLETED)
                freed.cancel()
                if not asking.done():
                    asking.cancel()
                    continue
                taken = asking.result()
            if taken is None:
                return
            self._drop(taken.revoked)
            await self._accept(taken.items)

    async def _accept(self, items: list[Handed]) -> None:
        if self._leaving:
            # It was on its way when we left: nobody here begins it any more.
            await self._release([handed.lease for handed in items])
            return
        for handed in items:
            self._held[handed.work.intent.id] = handed
            self._unfinished.add(handed.work.intent.id)
        self._near.offer([handed.work for handed in items])

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_RENEW_MS / 1000)
            if leases := [handed.lease for handed in self._held.values()]:
                lost = await self._again(partial(self._far.renew, leases))
                self._drop(lost or [])

    def _drop(self, leases: Collection[str]) -> None:
        """Nobody wants this work of ours any more."""
        gone = [intent for intent, handed in self._held.items() if handed.lease in leases]
        for intent in gone:
            self._dropped[intent] = self._held[intent].lease
            self._free(intent)
        while len(self._dropped) > DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]
        if gone:
            self._near.revoke(gone)

    def _free(self, intent: str) -> None:
        self._held.pop(intent, None)
        self._unfinished.discard(intent)
        self._freed.set()
        self._look()

    def _look(self) -> None:
        if self._leaving and not self._held:
            self._done.set()

    # --- sending ---

    async def _send(self) -> None:
        while True:
            first = await self._outbox.get()
            commands = [first]
            while not self._outbox.empty() and len(commands) < BATCH_MAX:
                commands.append(self._outbox.get_nowait())
            receipts: list[Deliver] = []
            for command in commands:
                if isinstance(command, Deliver):
                    receipts.append(command)
                else:
                    await self._settle(receipts)
                    receipts = []
                    await self._tell(command)
            await self._settle(receipts)
            for _ in commands:
                self._outbox.task_done()

    async def _settle(self, items: list[Deliver]) -> None:
        sent: list[Settling] = []
        for item in items:
            assert isinstance(item.event, Receipt)
            # One that is not in hand any more is stale: nobody is told.
            if (handed := self._held.get(item.event.intent)) is None:
                continue
            receipt = item.event
            try:
                if not await self._put(item.blobs):
                    continue
            except Refused as error:
                receipt = _unusable(receipt, error)
            sent.append(Settling(lease=handed.lease, receipt=receipt))
        if not sent:
            return
        await self._hand_in(sent)
        for settling in sent:
            handed = self._held.get(settling.receipt.intent)
            # One that was handed to us again meanwhile, by an owner that did not know the lease, is not done yet.
            if handed is not None and handed.lease == settling.lease:
                self._free(settling.receipt.intent)

    async def _hand_in(self, sent: list[Settling]) -> None:
        try:
            answer = await self._again(lambda: self._far.settle(sent))
        except Refused as error:
            if error.status == TOO_LARGE and len(sent) > 1:
                half = len(sent) // 2
                await self._hand_in(sent[:half])
                await self._hand_in(sent[half:])
                return
            failed = Settling(lease=sent[0].lease, receipt=_unusable(sent[0].receipt, error))
            answer = await self._again(lambda: self._far.settle([failed]))
        for refusal in answer.refused if answer is not None else ():
            log.warning("the receipt of %s was refused: %s", refusal.intent, refusal.code)

    async def _tell(self, command: Command) -> None:
        if isinstance(command, FrameSent):
            handed = self._held.get(command.intent)
            if handed is not None and command.type == UNAVAILABLE:
                await self._decline(handed, str(command.data.get("reason", "")))
                return
            if command.type == LATE:
                lease = self._dropped.pop(command.intent, None)
            else:
                lease = None if handed is None else handed.lease
            if lease is None:
                return
            frame = Told(
                intent=command.intent,
                lease=lease,
                seq=command.seq,
                kind="frame",
                type=command.type,
                value=command.data,
            )
            try:
                await self._again(lambda: self._far.progress([frame]))
            except Refused as error:
                self._check_size(error, "a frame", command.run)
        elif isinstance(command, CheckpointSaved):
            try:
                await self._save(command)
            except Refused as error:
                self._check_size(error, "a checkpoint", command.run)
                if command.ack is not None:
                    command.ack(None, error)

    @staticmethod
    def _check_size(error: Refused, what: str, run: str) -> None:
        """What is too large for the way to its owner is left out; any other refusal is the end."""
        if error.status != TOO_LARGE:
            raise error
        log.warning("%s: %s is left out: %s", run, what, error.message)

    async def _save(self, saved: CheckpointSaved) -> None:
        handed = self._held.get(saved.intent)
        is_kept = False
        if handed is not None and await self._put(saved.blobs):
            told = Told(
                intent=saved.intent,
                lease=handed.lease,
                seq=0,
                kind="checkpoint",
                value=saved.body,
                events=saved.events,
            )
            noted = await self._again(lambda: self._far.progress([told]))
            is_kept = noted is not None and saved.intent not in noted.lost
            if noted is not None and not is_kept:
                self._drop([handed.lease])
        if saved.ack is not None:
            # Where nobody has said that it is kept, what was to follow must not.
            saved.ack({} if is_kept else {"stale": True}, None)

    async def _decline(self, handed: Handed, why: str) -> None:
        intent = handed.work.intent.id
        await self._again(lambda: self._far.release([handed.lease], reason=why or "it cannot be done here"))
        self._near.done(intent)
        self._free(intent)

    async def _put(self, blobs: dict[str, bytes]) -> bool:
        """Whether these have arrived; not so if we leave before."""

        async def put(digest: str, body: bytes) -> bool:
            await self._goods.put_blob(digest, body)
            return True

        for digest, body in blobs.items():
            if not await self._again(partial(put, digest, body)):
                return False
        return True

    # --- a server that is away ---

    async def _again(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """Asks until there is an answer. None if we leave before there is one."""
        wait_s = RETRY_S
        while True:
            try:
                return await ask()
            except Away:
                self._say("no server answers; it is tried again until one does")
            except Refused as error:
                if error.status != 426:
                    raise
                self._say(error.message)
                wait_s = RETRY_S_MAX
            if self._leaving:
                return None
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(wait_s * 2, RETRY_S_MAX)

    def _say(self, text: str) -> None:
        if self._loop.time() - self._warned >= TOLD_AGAIN_S:
            self._warned = self._loop.time()
            log.warning("%s", text)


def _unusable(receipt: Receipt, error: Refused) -> Receipt:
    """In place of one that is too large for the way to its owner: done again it would come back the same. Any other refusal is
    the end."""
    if error.status != TOO_LARGE:
        raise error
    failed = TreadleError(f"what came of it was not taken: {error.message}", code="RECEIPT_UNUSABLE")
    return Receipt(intent=receipt.intent, status="error", error=failed.to_value())
