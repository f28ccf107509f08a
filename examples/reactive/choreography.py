"""Pattern B: several state machines that know of one another's events only.

An order settles and says so; a ledger books it and says so; a notification is sent for each booking.

    python examples/reactive/choreography.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from treadle import Engine
from treadle import reactive as rx


@rx.schema("shop/OrderPlaced@1")
@dataclass(frozen=True, slots=True)
class OrderPlaced:
    order_id: str
    cents: int


@rx.schema("shop/OrderSettled@1")
@dataclass(frozen=True, slots=True)
class OrderSettled:
    order_id: str
    cents: int


@rx.schema("shop/Booked@1")
@dataclass(frozen=True, slots=True)
class Booked:
    order_id: str
    balance: int


@rx.schema("shop/Order@1")
@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    cents: int
    paid: bool = False


@rx.schema("shop/Ledger@1")
@dataclass(frozen=True, slots=True)
class Ledger:
    balance: int = 0
    booked: frozenset[str] = frozenset()


@rx.schema("shop/Notice@1")
@dataclass(frozen=True, slots=True)
class Notice:
    text: str
    sent: bool = False


pay = rx.effect("shop/pay@1", params=Order, receipt=str)
send = rx.effect("shop/send@1", params=Notice, receipt=None)


@rx.workflow(
    "shop/order@1",
    state=Order,
    events=[OrderPlaced],
    key="order_id",
    effects=[pay],
    terminal=lambda order: order.paid,
)
def order(o: Order | None, event: Any, ctx: rx.Context) -> rx.Output[Order]:
    match o, event:
        case None, OrderPlaced(order_id, cents):
            o = Order(order_id, cents)
            return rx.Output(o, effects=[pay(o, ref="pay", idempotency_key=f"pay:{order_id}")])
        case Order(paid=False), rx.Receipt(ref="pay", status="ok"):
            return rx.Output(replace(o, paid=True), events=[OrderSettled(o.order_id, o.cents)])
        case _:
            return rx.Output(o)


@rx.workflow("shop/ledger@1", state=Ledger, events=[OrderSettled], effects=[], terminal=lambda ledger: True)
def ledger(state: Ledger | None, event: OrderSettled) -> rx.Output[Ledger]:
    """One for the whole shop: it has no key. An order that is booked already is not booked again."""
    books = state or Ledger()
    if event.order_id in books.booked:
        return rx.Output(books)
    after = Ledger(books.balance + event.cents, books.booked | {event.order_id})
    return rx.Output(after, events=[Booked(event.order_id, after.balance)])


@rx.workflow(
    "shop/notice@1",
    state=Notice,
    events=[Booked],
    key="order_id",
    effects=[send],
    terminal=lambda notice: notice.sent,
)
def notice(n: Notice | None, event: Any, ctx: rx.Context) -> rx.Output[Notice]:
    match n, event:
        case None, Booked(order_id, balance):
            n = Notice(f"{order_id} is paid; the balance is {balance}")
            return rx.Output(n, effects=[send(n, ref="send")])
        case Notice(sent=False), rx.Receipt(ref="send", status="ok"):
            return rx.Output(replace(n, sent=True))
        case _:
            return rx.Output(n)


@pay.executor
async def do_pay(call: rx.Call[Order]) -> str:
    return f"payment of {call.params.cents} for {call.params.order_id}"


@send.executor
async def do_send(call: rx.Call[Notice]) -> None:
    print("->", call.params.text)


app = rx.App("shop", [order, ledger, notice])


async def main() -> None:
    engine = Engine("memory:")
    engine.deploy(app)
    async with engine:
        for n in range(1, 4):
            await engine.publish(OrderPlaced(f"o-{n}", n * 100))
        with engine.watch("") as watch:
            while sum(cell["status"] == "completed" for cell in await engine.cells(notice)) < 3:
                await watch.changed(poll_s=0.05)
        books = await engine.cell(ledger)
        assert books is not None
        print("balance", (await books.show())["state"]["balance"])


if __name__ == "__main__":
    asyncio.run(main())
