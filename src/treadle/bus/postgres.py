"""PostgreSQL as a carrier of work: rows for tickets, questions and answers, and notices so that nobody has to look often.

Tickets are handed out with SKIP LOCKED and a lease of a few seconds, within which whoever has one claims the work.
A question is a row that the owner of its shard finds; it is removed by the transaction that writes the answer, after
the commit that it asked for. None of the tables is logged: a crash of the server empties them, and owners fill them
again. Behind PgBouncer in transaction mode no notices come; then everybody looks twice a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import AsyncConnection, sql

from treadle.kernel.limits import POOL_QUEUE_MAX
from treadle.store.postgres import PostgresDialect
from treadle.store.postgres_link import KEPT_ALIVE

from .carrier import Answering, Away, Shards, Ticket
from .waiting import SharedCalls, at_most

log = logging.getLogger("treadle.bus")

CHANNEL: Final = "treadle_work"
TICKET_NS: Final = 5_000_000_000
MEMBER_NS: Final = 11_000_000_000
POLL_S: Final = 0.5
# Questions that nobody waits for any more, and answers that nobody fetched.
OLD_NS: Final = 60_000_000_000
LASTING_NS: Final = 3_600_000_000_000
TIDY_S: Final = 10.0
LETTERS_MAX: Final = 200
# What is said in one statement; a notice has room for as many keys.
TOGETHER_MAX: Final = 200
CONNECT_S: Final = 5
# Every statement here is short; a server that says nothing for so long is away.
ANSWER_S: Final = 15.0
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"

_PUSH: Final = """
INSERT INTO work_tickets (id, intent, shard, pool)
SELECT id, intent, shard, pool FROM unnest(%s::text[], %s::text[], %s::integer[], %s::text[]) AS t(id, intent, shard, pool)
WHERE (SELECT count(*) FROM work_tickets w WHERE w.pool = t.pool) < %s
ON CONFLICT (id) DO NOTHING"""
_PULL: Final = f"""
UPDATE work_tickets SET until_ns = {_NOW} + {TICKET_NS} WHERE no IN (
  SELECT no FROM work_tickets WHERE pool = ANY(%s) AND until_ns < {_NOW} ORDER BY no LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING no, id, intent, shard, pool"""
_FIND: Final = """
SELECT key, shard, body FROM work_letters WHERE shard = ANY(%s) AND NOT (key = ANY(%s)) ORDER BY no LIMIT %s"""
# A change and the notice of it are one statement: one way to the server and back.
_TELL: Final = f"SELECT pg_notify('{CHANNEL}', %s)"
_PUSH_TELLING: Final = f"WITH done AS ({_PUSH}) {_TELL}"
_ASK: Final = f"""
WITH done AS (
  INSERT INTO work_letters (key, shard, lasting, at_ns, body) SELECT key, shard, lasting, {_NOW}, body
  FROM unnest(%s::text[], %s::integer[], %s::boolean[], %s::bytea[]) AS t(key, shard, lasting, body)
) {_TELL}"""
_ANSWERED: Final = f"""
WITH asked AS (DELETE FROM work_letters WHERE key = ANY(%s) RETURNING key),
done AS (
  INSERT INTO work_answers (key, at_ns, body) SELECT key, {_NOW}, body
  FROM unnest(%s::text[], %s::bytea[]) AS t(key, body) JOIN asked USING (key) ON CONFLICT (key) DO NOTHING
) {_TELL}"""
_READ: Final = "DELETE FROM work_answers WHERE key = ANY(%s) RETURNING key, body"
_SPEND: Final = "DELETE FROM work_tickets WHERE no = ANY(%s)"


class _Letter(NamedTuple):
    """A question on its way to the owner of a shard."""

    key: str
    shard: int
    lasting: bool
    body: bytes


class _Held:
    """A ticket in hand (`carrier.Pulled`)."""

    def __init__(self, carrier: PostgresCarrier, no: int, ticket: Ticket) -> None:
        self._carrier = carrier
        self._no = no
        self.ticket = ticket

    async def spend(self) -> None:
        await self._carrier.spend(self._no)

    async def put_back(self, after_s: float) -> None:
        await self._carrier.put_back(self._no, after_s)


async def _drop(connection: AsyncConnection[Any]) -> None:
    with contextlib.suppress(psycopg.Error):
        await connection.close()


class PostgresCarrier:
    kind = "postgres"

    def __init__(self, url: str, *, queue_max: int = POOL_QUEUE_MAX, connections: int = 1) -> None:
        """`connections`: so many statements at once, each on a connection that is made when it is needed first; one more
        listens."""
        self._url = PostgresDialect(url).address
        self._queue_max = queue_max
        self._connections = connections
        self._free: list[AsyncConnection[Any]] = []
        self._places = asyncio.Semaphore(connections)
        self._listening: asyncio.Task[None] | None = None
        # Whoever waits for a notice, by what it is about.
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._told: dict[str, Callable[[], None]] = {}
        self.spend = SharedCalls(self._spend, at_once=TOGETHER_MAX)
        self._send = SharedCalls(self._send_letters, at_once=TOGETHER_MAX)
        self._answered = SharedCalls(self._send_answers, at_once=TOGETHER_MAX)
        self._read = SharedCalls(self._read_answers, at_once=TOGETHER_MAX)

    async def close(self) -> None:
        for calls in (self.spend, self._send, self._answered, self._read):
            await calls.end()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        for _ in range(self._connections):
            await self._places.acquire()
        await self._drop_free()
        for _ in range(self._connections):
            self._places.release()

    # --- the connection ---

    async def _drop_free(self) -> None:
        free, self._free = self._free, []
        for connection in free:
            await _drop(connection)

    async def _connect(self) -> AsyncConnection[Any]:
        return await AsyncConnection.connect(
            self._url,
            autocommit=True,
            connect_timeout=CONNECT_S,
            prepare_threshold=None,
            application_name=f"treadle bus {socket.gethostname()} {os.getpid()}",
            **KEPT_ALIVE,
        )

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[AsyncConnection[Any]]:
        """A connection, for one at a time. One that was cut, or cancelled in the middle, is not used again."""
        async with self._places:
            if self._listening is None:
                self._listening = asyncio.ensure_future(self._listen())
            connection = self._free.pop() if self._free else None
            done = False
            try:
                async with asyncio.timeout(ANSWER_S):
                    if connection is None:
                        connection = await self._connect()
                    yield connection
                done = True
            except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
                await self._drop_free()  # who cut one has cut them all
                raise Away from error
            finally:
                if done and connection is not None:
                    self._free.append(connection)
                elif connection is not None:
                    await _drop(connection)

    async def _execute(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        async with self._turn() as connection:
            cursor = await connection.execute(sql.SQL(query), values)
            return await cursor.fetchall() if cursor.description else []

    # --- notices ---

    async def _listen(self) -> None:
        """On a connection of its own; without one everybody looks by the clock."""
        while True:
            try:
                async with await self._connect() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._wake(*self._waiting)
                    async for notice in connection.notifies():
                        self._heard(notice.payload)
            except (psycopg.Error, OSError):
                await asyncio.sleep(POLL_S)

    def _heard(self, payload: str) -> None:
        about, _, whom = payload.partition(" ")
        if about == "told":
            if whom in self._told:
                self._told[whom]()
        elif about == "answers":
            self._wake(*whom.split(" "))
        else:
            self._wake(about)

    def _wake(self, *about: str) -> None:
        for one in about:
            for event in self._waiting.get(one, ()):
                event.set()

    @contextlib.contextmanager
    def _noticing(self, about: str) -> Any:
        event = asyncio.Event()
        self._waiting.setdefault(about, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[about].discard(event)
            if not self._waiting[about]:
                del self._waiting[about]

    # --- tickets ---

    async def push(self, tickets: Sequence[Ticket]) -> None:
        columns = [[t.id for t in tickets], [t.intent for t in tickets], [t.shard for t in tickets]]
        await self._execute(_PUSH_TELLING, *columns, [t.pool for t in tickets], self._queue_max, "tickets")

    async def pull(self, pools: Collection[str], limit: int, wait_s: float) -> Sequence[_Held]:
        until = asyncio.get_running_loop().time() + wait_s
        with self._noticing("tickets") as noticed:
            while True:
                noticed.clear()
                rows = await self._execute(_PULL, list(pools), limit)
                left = until - asyncio.get_running_loop().time()
                if rows or left <= 0:
                    return [_Held(self, no, Ticket(*rest)) for no, *rest in sorted(rows)]
                await at_most(min(left, POLL_S), noticed)

    async def _spend(self, numbers: Sequence[int]) -> Sequence[None]:
        await self._execute(_SPEND, list(numbers))
        return [None] * len(numbers)

    async def put_back(self, no: int, after_s: float) -> None:
        query = f"UPDATE work_tickets SET until_ns = {_NOW} + %s WHERE no = %s"
        await self._execute(query, int(after_s * 1e9), no)

    async def queued(self, pools: Collection[str]) -> Mapping[str, int]:
        query = "SELECT pool, count(*) FROM work_tickets WHERE pool = ANY(%s) GROUP BY pool"
        return {pool: int(count) for pool, count in await self._execute(query, list(pools))}

    # --- questions ---

    async def ask(self, shard: int, body: bytes, *, lasting: bool, limit_s: float) -> bytes:
        key = secrets.token_hex(12)
        until = asyncio.get_running_loop().time() + limit_s
        with self._noticing(key) as noticed:
            await self._send(_Letter(key, shard, lasting, body))
            while (left := until - asyncio.get_running_loop().time()) > 0:
                await at_most(min(left, POLL_S), noticed)
                noticed.clear()
                if (found := await self._read(key)) is not None:
                    return found
        if not lasting:
            with contextlib.suppress(Away):
                await self._execute("DELETE FROM work_letters WHERE key = %s", key)
        raise Away

    async def _send_letters(self, letters: Sequence[_Letter]) -> Sequence[None]:
        await self._execute(_ASK, *[list(column) for column in zip(*letters, strict=True)], "letters")
        return [None] * len(letters)

    async def _read_answers(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        found = {key: bytes(body) for key, body in await self._execute(_READ, list(keys))}
        return [found.get(key) for key in keys]

    async def answer(self, shards: Shards, answering: Answering) -> None:
        at_work: dict[str, asyncio.Task[None]] = {}
        tidied = 0.0
        with self._noticing("letters") as noticed:
            try:
                while True:
                    noticed.clear()
                    try:
                        found = await self._execute(_FIND, list(shards()), list(at_work), LETTERS_MAX)
                        if asyncio.get_running_loop().time() - tidied > TIDY_S:
                            tidied = asyncio.get_running_loop().time()
                            await self._tidy()
                    except Away:
                        await asyncio.sleep(POLL_S)
                        continue
                    for key, shard, body in found:
                        task = asyncio.ensure_future(self._one_answer(key, shard, bytes(body), answering))
                        at_work[key] = task
                        task.add_done_callback(lambda _, key=key: at_work.pop(key, None))  # type: ignore[misc]  # mypy cannot type a lambda with a default
                    await at_most(POLL_S, noticed)
            finally:
                for task in list(at_work.values()):
                    task.cancel()

    async def _one_answer(self, key: str, shard: int, body: bytes, answering: Answering) -> None:
        try:
            answer = await answering(shard, body)
            await self._answered((key, answer))
        except Away:
            await asyncio.sleep(POLL_S)  # it stays where it is, for whoever can answer

    async def _send_answers(self, answers: Sequence[tuple[str, bytes]]) -> Sequence[None]:
        keys = [key for key, _ in answers]
        bodies = [body for _, body in answers]
        await self._execute(_ANSWERED, keys, keys, bodies, " ".join(["answers", *keys]))
        return [None] * len(answers)

    async def _tidy(self) -> None:
        old = f"DELETE FROM work_letters WHERE at_ns < {_NOW} - CASE WHEN lasting THEN %s ELSE %s END"
        await self._execute(old, LASTING_NS, OLD_NS)
        await self._execute(f"DELETE FROM work_answers WHERE at_ns < {_NOW} - %s", OLD_NS)
        await self._execute(f"DELETE FROM work_members WHERE seen_ns < {_NOW} - %s", LASTING_NS)

    # --- who is there ---

    async def tell(self, worker: str) -> None:
        await self._execute(_TELL, f"told {worker}")

    async def hear(self, worker: str, told: Callable[[], None]) -> None:
        self._told[worker] = told

    async def sign_in(self, worker: str, row: bytes) -> None:
        query = f"""INSERT INTO work_members (name, seen_ns, body) VALUES (%s, {_NOW}, %s)
                    ON CONFLICT (name) DO UPDATE SET seen_ns = excluded.seen_ns, body = excluded.body"""
        await self._execute(query, worker, row)

    async def sign_out(self, worker: str, row: bytes) -> None:
        await self._execute("DELETE FROM work_members WHERE name = %s AND body = %s", worker, row)

    async def members(self) -> Mapping[str, bytes]:
        query = f"SELECT name, body FROM work_members WHERE seen_ns > {_NOW} - {MEMBER_NS}"
        return {name: bytes(body) for name, body in await self._execute(query)}
