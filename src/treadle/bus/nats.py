"""NATS as a carrier of work: a work queue per pool, questions to shards, a stream of receipts, a bucket of workers.

- Tickets: one JetStream work queue per pool, bounded, de-duplicated by id. An ack says that the ticket was shown to the
  owner; a worker that dies before that leaves it to the next one.
- Questions go to the subject of a shard, to which its owner listens. Receipts go through a stream first, so that one
  that finds no owner waits for the next: it is removed after the commit.
- A bucket with a time to live holds the workers that are there.

Everything is made when it is missing: a server that lost its files gets new streams, and owners fill them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import api
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue

from treadle.kernel.errors import TreadleError
from treadle.kernel.limits import POOL_QUEUE_MAX
from treadle.kernel.values import decode, encode

from .carrier import Answering, Away, Shards, Ticket
from .nats_client import connected
from .nats_parts import Parts
from .nats_pulls import Pulls
from .waiting import heeding_cancel

log = logging.getLogger("treadle.bus")

TICKET_S: Final = 5.0
MEMBER_S: Final = 11.0
# A repeat within this time is dropped by the server.
DUPLICATES_S: Final = 30.0
RECEIPT_S: Final = 30.0
LASTING_S: Final = 3600.0
QUICK_S: Final = 2.0
LOOK_S: Final = 0.25
SHORT_S: Final = 0.05
PATIENCE_S: Final = 3.0
ATTEMPT_S: Final = 2.0
AGAIN_S: Final = 1.0
PUSH_AT_ONCE: Final = 100
RECEIPTS_AT_ONCE: Final = 100
REPLY: Final = "Treadle-Reply"
_FULL: Final = (10077,)


class _Held:
    """A ticket in hand (`carrier.Pulled`)."""

    def __init__(self, message: Msg, ticket: Ticket) -> None:
        self._message = message
        self.ticket = ticket

    async def spend(self) -> None:
        with contextlib.suppress(
            nats.errors.Error
        ):  # then somebody shows it again, and learns that it is old
            await self._message.ack()

    async def put_back(self, after_s: float) -> None:
        with contextlib.suppress(nats.errors.Error):
            await self._message.nak(delay=after_s or None)


class NatsCarrier:
    """`space` keeps stores apart that share a server."""

    kind = "nats"

    def __init__(self, url: str, space: str, *, queue_max: int = POOL_QUEUE_MAX) -> None:
        self._url = url
        self._space = space
        self._queue_max = queue_max
        self._client: Client | None = None
        self._stream: JetStreamContext | None = None
        self._pulls: Pulls | None = None
        self._opening = asyncio.Lock()
        self._consumers: set[str] = set()
        self._bucket: KeyValue | None = None
        self._parts = Parts(self._name("PARTS"), self._subject)
        self._told: dict[str, Callable[[], None]] = {}

    # --- the connection ---

    async def _open(self) -> JetStreamContext:
        async with self._opening:
            if self._stream is None or self._client is None or self._client.is_closed:
                self._client = await connected(self._url, lasting=True)
                self._stream = self._client.jetstream(timeout=QUICK_S)
                self._pulls = Pulls(self._client, "$JS.API")
                self._forget()
                await self._pulls.open()
                for worker, told in self._told.items():
                    await self._subscribe(worker, told)
            if not self._client.is_connected:
                raise Away
            return self._stream

    async def close(self) -> None:
        if self._client is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await self._client.close()

    @contextlib.asynccontextmanager
    async def _reached(self) -> AsyncIterator[JetStreamContext]:
        with heeding_cancel():
            try:
                yield await self._open()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                if isinstance(error, nats.js.errors.NotFoundError | nats.js.errors.NoStreamResponseError):
                    self._forget()
                raise Away from error

    def _forget(self) -> None:
        """The server lost what we had made there: it is made again when it is next needed."""
        self._consumers.clear()
        self._bucket = None
        self._parts.forget()

    def _subject(self, *words: object) -> str:
        return ".".join(("treadle", self._space, *map(str, words)))

    def _name(self, what: str) -> str:
        return f"TREADLE_{self._space}_{what}"

    # --- tickets ---

    async def _queue(self, stream: JetStreamContext, pool: str) -> str:
        """The work queue of a pool, made if it is missing."""
        name = self._name(f"WORK_{pool}")
        if name not in self._consumers:
            config = api.StreamConfig(
                name=name,
                subjects=[self._subject("work", pool)],
                retention=api.RetentionPolicy.WORK_QUEUE,
                storage=api.StorageType.MEMORY,
                discard=api.DiscardPolicy.NEW,
                max_msgs=self._queue_max,
                duplicate_window=DUPLICATES_S,
            )
            with contextlib.suppress(nats.js.errors.BadRequestError):  # it is there, with other bounds
                await stream.add_stream(config)
            consumer = api.ConsumerConfig(
                durable_name="workers",
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=TICKET_S,
                max_ack_pending=self._queue_max,
                max_waiting=10_000,
            )
            with contextlib.suppress(nats.js.errors.BadRequestError):
                await stream.add_consumer(name, consumer)
            self._consumers.add(name)
        return name

    async def push(self, tickets: Sequence[Ticket]) -> None:
        async with self._reached() as stream:
            for pool in {ticket.pool for ticket in tickets}:
                await self._queue(stream, pool)
            for start in range(0, len(tickets), PUSH_AT_ONCE):
                some = tickets[start : start + PUSH_AT_ONCE]
                await asyncio.gather(*(self._push(stream, ticket) for ticket in some))

    async def _push(self, stream: JetStreamContext, ticket: Ticket) -> None:
        body = encode([ticket.id, ticket.intent, ticket.shard, ticket.pool])
        try:
            subject = self._subject("work", ticket.pool)
            await stream.publish(subject, body, headers={"Nats-Msg-Id": ticket.id})
        except nats.js.errors.APIError as error:
            if error.err_code not in _FULL:
                raise

    async def pull(self, pools: Collection[str], limit: int, wait_s: float) -> Sequence[_Held]:
        async with self._reached() as stream:
            assert self._pulls is not None
            names = [await self._queue(stream, pool) for pool in pools]
            asked = [await self._pulls.ask(name, "workers", limit, 0) for name in names]
            found = await self._pulls.gather(asked, limit, QUICK_S)
            if not found and wait_s > 0:
                asked = [await self._pulls.ask(name, "workers", 1, wait_s) for name in names]
                found = await self._pulls.gather(asked, 1, wait_s + LOOK_S)
                if not found:
                    await self._check(stream, names)
        return [held for held in [await _held(message) for message in found] if held is not None]

    async def _check(self, stream: JetStreamContext, names: Sequence[str]) -> None:
        """Nothing came: is there still somebody to ask?"""
        for name in names:
            await stream.consumer_info(name, "workers")

    async def queued(self, pools: Collection[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        async with self._reached() as stream:
            for pool in pools:
                info = await stream.stream_info(await self._queue(stream, pool))
                found[pool] = info.state.messages
        return found

    # --- questions ---

    async def ask(self, shard: int, body: bytes, *, lasting: bool, limit_s: float) -> bytes:
        until = asyncio.get_running_loop().time() + limit_s
        patience = asyncio.get_running_loop().time() + PATIENCE_S
        async with self._reached() as stream:
            while True:
                left = until - asyncio.get_running_loop().time()
                try:
                    if lasting:
                        return await self._ask_lasting(stream, shard, body, left)
                    return await self._ask_now(shard, body, min(left, ATTEMPT_S))
                except nats.errors.TimeoutError:
                    # Whoever owned the shard died with the question in hand. All of them may be asked again.
                    if lasting or asyncio.get_running_loop().time() >= until:
                        raise
                except (nats.errors.NoRespondersError, nats.js.errors.Error):
                    # The shard is on its way to another owner, or the server lost its files: soon, or not now.
                    self._forget()
                    if asyncio.get_running_loop().time() > patience:
                        raise
                    await asyncio.sleep(SHORT_S)

    async def _ask_now(self, shard: int, body: bytes, limit_s: float) -> bytes:
        assert self._client is not None
        sent, headers = await self._parts.cut(self._client, body)
        answer: Msg | None = None
        try:
            subject = self._subject("shard", shard)
            answer = await self._client.request(subject, sent, timeout=limit_s, headers=headers or None)
            return _good(await self._parts.whole(self._client, answer))
        finally:
            await self._parts.drop(self._client, headers, answer.headers if answer else None)

    async def _ask_lasting(self, stream: JetStreamContext, shard: int, body: bytes, limit_s: float) -> bytes:
        assert self._client is not None
        await self._receipts(stream)
        reply = self._client.new_inbox()
        subscription = await self._client.subscribe(reply, max_msgs=1)
        try:
            sent, parts = await self._parts.cut(self._client, body)
            await stream.publish(self._subject("receipts", shard), sent, headers={REPLY: reply, **parts})
            answer = await subscription.next_msg(timeout=limit_s)
            found = _good(await self._parts.whole(self._client, answer))
            await self._parts.drop(self._client, parts, answer.headers)
            return found
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _receipts(self, stream: JetStreamContext) -> str:
        name = self._name("RECEIPTS")
        if name not in self._consumers:
            config = api.StreamConfig(
                name=name,
                subjects=[self._subject("receipts", "*")],
                max_age=LASTING_S,
            )
            with contextlib.suppress(nats.js.errors.BadRequestError):
                await stream.add_stream(config)
            self._consumers.add(name)
        return name

    async def answer(self, shards: Shards, answering: Answering) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer_shards(shards, answering))
            tasks.create_task(self._answer_receipts(shards, answering))

    async def _answer_shards(self, shards: Shards, answering: Answering) -> None:
        at_work: set[asyncio.Task[None]] = set()
        listening: dict[int, Any] = {}
        client: Client | None = None

        def listener(shard: int) -> Any:
            async def asked(message: Msg) -> None:
                task = asyncio.ensure_future(self._reply(message, shard, answering))
                at_work.add(task)
                task.add_done_callback(at_work.discard)

            return asked

        while True:
            with contextlib.suppress(Away):
                async with self._reached():
                    assert self._client is not None
                    if client is not self._client:
                        client, listening = self._client, {}
                    wanted = set(shards())
                    for shard in wanted - listening.keys():
                        subject = self._subject("shard", shard)
                        listening[shard] = await client.subscribe(subject, cb=listener(shard))
                    for shard in listening.keys() - wanted:
                        await listening.pop(shard).unsubscribe()
            await asyncio.sleep(LOOK_S)

    async def _reply(self, message: Msg, shard: int, answering: Answering) -> None:
        assert self._client is not None
        with contextlib.suppress(nats.errors.Error, OSError):
            try:
                answer = await answering(shard, await self._parts.whole(self._client, message))
                sent, headers = await self._parts.cut(self._client, b"+" + answer)
            except Away:
                sent, headers = b"-", {}
            await self._client.publish(message.reply, sent, headers=headers or None)

    async def _answer_receipts(self, shards: Shards, answering: Answering) -> None:
        """One consumer of ours, over the shards that are ours now."""
        held: set[int] = set()
        name = ""
        at_work: set[asyncio.Task[None]] = set()
        while True:
            try:
                async with self._reached() as stream:
                    stream_name = await self._receipts(stream)
                    wanted = set(shards())
                    if not name or wanted != held:
                        name, held = await self._consumer(stream, stream_name, name, wanted), wanted
                    for message in await self._next_receipts(stream, stream_name, name) if held else ():
                        task = asyncio.ensure_future(self._settle(stream, stream_name, message, answering))
                        at_work.add(task)
                        task.add_done_callback(at_work.discard)
                if not held:
                    await asyncio.sleep(LOOK_S)
            except Away:
                name = ""
                await asyncio.sleep(AGAIN_S)

    async def _consumer(
        self, stream: JetStreamContext, stream_name: str, before: str, shards: Collection[int]
    ) -> str:
        if before:
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await stream.delete_consumer(stream_name, before)
        if not shards:
            return ""
        config = api.ConsumerConfig(
            filter_subjects=[self._subject("receipts", shard) for shard in sorted(shards)],
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=RECEIPT_S,
            deliver_policy=api.DeliverPolicy.ALL,
            inactive_threshold=60.0,
        )
        return str((await stream.add_consumer(stream_name, config)).name)

    async def _next_receipts(self, stream: JetStreamContext, stream_name: str, consumer: str) -> list[Msg]:
        found = await self._pull_receipts(stream, stream_name, consumer)
        if not found:
            await stream.consumer_info(stream_name, consumer)
        return found

    async def _pull_receipts(self, stream: JetStreamContext, stream_name: str, consumer: str) -> list[Msg]:
        subscription = await stream.pull_subscribe_bind(consumer, stream=stream_name)
        try:
            return list(await subscription.fetch(RECEIPTS_AT_ONCE, timeout=AGAIN_S))
        except nats.errors.TimeoutError:
            return []
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _settle(
        self, stream: JetStreamContext, stream_name: str, message: Msg, answering: Answering
    ) -> None:
        shard = int(message.subject.rpartition(".")[2])
        try:
            assert self._client is not None
            answer = await answering(shard, await self._parts.whole(self._client, message))
            if reply := (message.headers or {}).get(REPLY):
                sent, headers = await self._parts.cut(self._client, b"+" + answer)
                await self._client.publish(reply, sent, headers=headers or None)
            await message.ack()
            await stream.delete_msg(stream_name, message.metadata.sequence.stream)
        except Away:
            with contextlib.suppress(nats.errors.Error):
                await message.nak(delay=AGAIN_S)
        except (nats.errors.Error, OSError):
            log.debug("NATS does not answer: the receipt comes again, and is stale then")

    # --- who is there ---

    async def tell(self, worker: str) -> None:
        async with self._reached():
            assert self._client is not None
            await self._client.publish(self._subject("told", _token(worker)), b"")

    async def hear(self, worker: str, told: Callable[[], None]) -> None:
        self._told[worker] = told
        async with self._reached():
            await self._subscribe(worker, told)

    async def _subscribe(self, worker: str, told: Callable[[], None]) -> None:
        async def heard(message: Msg) -> None:
            told()

        assert self._client is not None
        await self._client.subscribe(self._subject("told", _token(worker)), cb=heard)

    async def _members(self, stream: JetStreamContext) -> KeyValue:
        if self._bucket is None:
            config = api.KeyValueConfig(
                bucket=self._name("WORKERS"), ttl=MEMBER_S, storage=api.StorageType.MEMORY
            )
            self._bucket = await stream.create_key_value(config)
        return self._bucket

    async def sign_in(self, worker: str, row: bytes) -> None:
        async with self._reached() as stream:
            await (await self._members(stream)).put(_token(worker), encode([worker, row]))

    async def sign_out(self, worker: str, row: bytes) -> None:
        async with self._reached() as stream:
            bucket = await self._members(stream)
            # Forgotten already, or said anew in between.
            with contextlib.suppress(nats.js.errors.KeyNotFoundError, nats.js.errors.BadRequestError):
                last = await bucket.get(_token(worker))
                if last.value == encode([worker, row]):
                    await bucket.delete(_token(worker), last=last.revision)

    async def members(self) -> Mapping[str, bytes]:
        async with self._reached() as stream:
            bucket = await self._members(stream)
            try:
                keys = await bucket.keys()
            except nats.js.errors.NoKeysError:
                return {}
            found: dict[str, bytes] = {}
            for key in keys:
                with contextlib.suppress(nats.js.errors.KeyNotFoundError, TreadleError):
                    name, row = decode((await bucket.get(key)).value or b"")
                    found[str(name)] = bytes(row)
            return found


async def _held(message: Msg) -> _Held | None:
    try:
        id, intent, shard, pool = decode(message.data)
        return _Held(message, Ticket(str(id), str(intent), int(shard), str(pool)))
    except (TreadleError, TypeError, ValueError):
        # Whatever that is, it is no ticket of ours: nobody is to get it again.
        log.warning("a message on %s is no ticket; it is dropped", message.subject)
        await message.term()
        return None


def _good(answer: bytes) -> bytes:
    """An answer; or the word that there is none now."""
    if answer[:1] != b"+":
        raise Away
    return answer[1:]


def _token(worker: str) -> str:
    """A worker's name as a word of a subject."""
    return sha256(worker.encode()).hexdigest()[:24]
