"""How a worker joins: over HTTP to a server, over a carrier that the server names, or on a store with its rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle.bus.carrier import Away
from treadle.bus.far import FarBus
from treadle.bus.http import HttpBus, Refused
from treadle.bus.seal import Seal
from treadle.kernel.errors import Unsupported
from treadle.kernel.values import Value
from treadle.store.open import shown

from .carrying import MEMORY, POSTGRES, carrier_for
from .goods import StoreGoods

if TYPE_CHECKING:
    from treadle.bus.protocol import FarSide, Goods


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Joined:
    far: FarSide
    goods: Goods
    # For people: what carries the work, and on which store.
    bus: str
    store: str = ""

    async def close(self) -> None:
        await self.far.close()
        await self.goods.close()


async def join(
    name: str,
    about: Mapping[str, Value],
    *,
    servers: Sequence[str],
    store: str,
    bus: str | None,
    token: str | None,
    say: Say,
) -> Joined:
    if not servers:
        return await _on_store(name, about, store, bus or POSTGRES)
    http = HttpBus(servers, name, token=token, about=about)
    try:
        await _register(http, servers[0], say)
        far = None if http.go_on.get("kind") != "nats" else await _on_nats(name, about, http.go_on, bus, say)
    except BaseException:
        await http.close()
        raise
    return Joined(http, http, "http") if far is None else Joined(far, http, "nats")


async def _register(http: HttpBus, server: str, say: Say) -> None:
    """A server that is away, or of another version, may come back; one that refuses us is the end."""
    try:
        await http.register()
    except Away:
        say(f"{server} does not answer; it is tried again until it does")
    except Refused as error:
        if error.status != 426:
            raise
        say(error.message)


async def _on_nats(
    name: str, about: Mapping[str, Value], told: Mapping[str, Any], bus: str | None, say: Say
) -> FarSide | None:
    """The carrier that the server named; None where it cannot be reached from here."""
    from treadle.bus.nats import NatsCarrier

    url = bus or str(told["url"])
    far = FarBus(NatsCarrier(url, str(told["space"])), name, bytes(told["key"]), about=about)
    try:
        await far.register()
    except Away:
        await far.close()
        say(f"{shown(url)} cannot be reached from here; work comes over HTTP")
        return None
    return far


async def _on_store(name: str, about: Mapping[str, Value], store: str, bus: str) -> Joined:
    goods = StoreGoods(store)
    try:
        key = await goods.work_key()
        carrier = carrier_for(store, bus, key)
        if carrier is None:
            raise Unsupported(f"a worker on a store takes work from postgres or nats://…, not from {MEMORY}")
        far = FarBus(carrier, name, Seal(key).key_of(name), about=about)
        await far.register()
    except Away as error:
        await goods.close()
        raise Unsupported(f"{shown(store)} or its bus does not answer", code="STORE_UNAVAILABLE") from error
    except BaseException:
        await goods.close()
        raise
    return Joined(far, goods, bus.partition(":")[0], shown(store))
