"""Which carrier a server's work travels over, besides HTTP, which is always there; and what workers are told of it.

`memory` is none. `postgres` is the database of the store itself. `nats://…` is a server of NATS, on which stores are
kept apart by a name made of their key.
"""

from __future__ import annotations

import asyncio
import contextlib
from hashlib import sha256
from typing import Any, Final

from treadle.bus.carrier import Away, Carrier
from treadle.bus.far import RESIDENT_FIRST_S, Relay, rows_of
from treadle.bus.hatch import Hatch
from treadle.bus.seal import Seal
from treadle.engine import Engine
from treadle.host import checkup
from treadle.kernel.errors import Unsupported
from treadle.store.open import has_host, is_postgres, read_store, shown

MEMORY: Final = "memory"
POSTGRES: Final = "postgres"
LOOK_S: Final = 0.25
ANSWER_S: Final = 5.0
# A server looks for questions, answers others and offers work at the same time; a worker does one thing at a time.
CONNECTIONS: Final = 3


def bus_for(store: str, asked: str | None) -> str:
    """The bus of a server: as asked, else what suits its store. A bus that cannot be is refused."""
    bus = asked or (POSTGRES if is_postgres(store) else MEMORY)
    if bus == POSTGRES and not is_postgres(store):
        raise Unsupported(
            "the bus on PostgreSQL is for stores there; use --bus memory or --bus nats://host:port"
        )
    if bus not in (MEMORY, POSTGRES) and not (bus.startswith(("nats://", "tls://")) and has_host(bus)):
        raise Unsupported(f"--bus is memory, postgres or nats://host:port, not {shown(bus)!r}")
    return bus


def space_of(key: bytes) -> str:
    """What keeps a store's messages apart from others', on a server that they share."""
    return sha256(b"space" + key).hexdigest()[:12]


def carrier_for(store: str, bus: str, key: bytes, *, connections: int = 1) -> Carrier | None:
    if bus == MEMORY:
        return None
    if bus == POSTGRES:
        from treadle.bus.postgres import PostgresCarrier

        return PostgresCarrier(store, connections=connections)
    try:
        from treadle.bus.nats import NatsCarrier
    except ModuleNotFoundError as error:
        raise Unsupported(f"--bus {shown(bus)} needs {error.name}: pip install 'treadle[nats]'") from error
    return NatsCarrier(bus, space_of(key))


async def _answers(carrier: Carrier, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            await carrier.members()
    except (Away, TimeoutError):
        return False
    return True


async def examine_bus(
    store: str, bus: str, found: dict[str, Any], *, answer_s: float = ANSWER_S
) -> dict[str, Any]:
    """What the doctor says of a store (`found`), and of the bus that its servers and workers share."""
    if bus == MEMORY or not found["exists"]:
        return found

    def key_of() -> bytes:
        with contextlib.closing(read_store(store)) as reads:
            return reads.work_key() if reads.has_key() else b""

    carrier = carrier_for(store, bus, await asyncio.to_thread(key_of))
    assert carrier is not None, "only memory has none"
    try:
        well = await _answers(carrier, answer_s)
    finally:
        with contextlib.suppress(Away):
            await carrier.close()
    return {**found, "bus": shown(bus)} if well else checkup.bus_away(found, bus)


class Carrying:
    """A server's side of its bus. It begins with the store's key, which a guest has when it becomes the owner."""

    def __init__(self, engine: Engine, hatch: Hatch, bus: str) -> None:
        self._engine = engine
        self._hatch = hatch
        self.bus = bus
        self._carrier: Carrier | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while not (key := self._engine.work_key):  # noqa: ASYNC110 (the core sets it on its own thread)
            await asyncio.sleep(LOOK_S)
        await self.close()  # of one that failed
        self._carrier = carrier_for(self._engine.store_url, self.bus, key, connections=CONNECTIONS)
        if self._carrier is not None:
            held, shard_of = self._engine.shards_held, self._engine.shard_of
            alone = self._engine.resident_row(0) is None
            patience_s = 0.0 if alone else RESIDENT_FIRST_S
            await Relay(
                self._hatch, self._carrier, Seal(key), shards=held, shard_of=shard_of, patience_s=patience_s
            ).run()

    async def close(self) -> None:
        if self._carrier is not None:
            with contextlib.suppress(Away):
                await self._carrier.close()

    async def members(self) -> dict[str, dict[str, Any]]:
        """The workers that are there over the carrier, as they say; none while it does not answer."""
        if self._carrier is None:
            return {}
        try:
            async with asyncio.timeout(ANSWER_S):
                return rows_of(await self._carrier.members())
        except (Away, TimeoutError):
            return {}

    async def is_well(self, limit_s: float = ANSWER_S) -> bool:
        """Whether the carrier answers, if there is one."""
        return self._carrier is None or await _answers(self._carrier, limit_s)

    def told(self, worker: str) -> dict[str, Any]:
        """How a worker goes on. Over PostgreSQL go only those that have the database's rights, and ask nobody."""
        key = self._engine.work_key
        if self.bus in (MEMORY, POSTGRES) or not key:
            return {"kind": "http"}
        return {"kind": "nats", "url": self.bus, "space": space_of(key), "key": Seal(key).key_of(worker)}
