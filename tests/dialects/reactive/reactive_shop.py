"""A small shop: orders that charge, retry and settle; a ledger and notes that hear of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from treadle import reactive as rx


@rx.schema("com.acme/OrderCreated@1")
@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: str
    amount_cents: int


@rx.schema("com.acme/OrderCancelled@1")
@dataclass(frozen=True, slots=True)
class OrderCancelled:
    order_id: str


@rx.schema("com.acme/OrderSettled@1")
@dataclass(frozen=True, slots=True)
class OrderSettled:
    order_id: str
    amount_cents: int


@rx.schema("com.acme/ChargeParams@1")
@dataclass(frozen=True, slots=True)
class ChargeParams:
    order_id: str
    amount_cents: int


@rx.schema("com.acme/ChargeReceipt@1")
@dataclass(frozen=True, slots=True)
class ChargeReceipt:
    payment_id: str


@rx.schema("com.acme/Order@1")
@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    amount_cents: int
    pc: Literal["charging", "backoff", "done", "failed"] = "charging"
    attempt: int = 1


@rx.schema("com.acme/Ledger@1")
@dataclass(frozen=True, slots=True)
class Ledger:
    total_cents: int
    orders: tuple[str, ...] = ()


@rx.schema("com.acme/Booked@1")
@dataclass(frozen=True, slots=True)
class Booked:
    order_id: str


@rx.schema("com.acme/Note@1")
@dataclass(frozen=True, slots=True)
class Note:
    order_id: str
    sent: bool = False


@rx.schema("com.acme/MailParams@1")
@dataclass(frozen=True, slots=True)
class MailParams:
    text: str


charge = rx.effect("payment/charge@1", params=ChargeParams, receipt=ChargeReceipt)
mail = rx.effect("mail/send@1", params=MailParams, receipt=None)

ATTEMPTS_MAX = 3


@rx.workflow(
    "com.acme/order@1",
    state=Order,
    events=[OrderCreated, OrderCancelled],
    key="order_id",
    effects=[charge, rx.timer],
    terminal=lambda o: o.pc in ("done", "failed"),
)
def order(o: Order | None, event: Any, ctx: rx.Context) -> rx.Output[Order]:
    match o, event:
        case None, OrderCreated(oid, cents):
            return rx.Output(Order(oid, cents), effects=[charge(ChargeParams(oid, cents), ref="charge:1")])
        case Order(), OrderCancelled():
            return rx.delete()
        case Order(pc="charging"), rx.Receipt(ref=r, status="ok") if r == f"charge:{o.attempt}":
            return rx.Output(replace(o, pc="done"), events=[OrderSettled(o.order_id, o.amount_cents)])
        case Order(pc="charging"), rx.Receipt(ref=r) | rx.Rejected(ref=r) if r == f"charge:{o.attempt}":
            if o.attempt == ATTEMPTS_MAX:
                return rx.Output(replace(o, pc="failed"))
            delay = timedelta(seconds=2**o.attempt)
            return rx.Output(
                replace(o, pc="backoff"), effects=[rx.timer(ctx.now + delay, ref=f"retry:{o.attempt}")]
            )
        case Order(pc="backoff"), rx.Receipt(ref=r) if r == f"retry:{o.attempt}":
            n = o.attempt + 1
            again = charge(ChargeParams(o.order_id, o.amount_cents), ref=f"charge:{n}")
            return rx.Output(replace(o, pc="charging", attempt=n), effects=[again])
        case _:
            return rx.Output(o)


@rx.workflow("com.acme/ledger@1", state=Ledger, events=[OrderSettled], effects=[])
def ledger(state: Ledger | None, event: Any) -> rx.Output[Ledger]:
    state = state or Ledger(0)
    if event.order_id in state.orders:
        return rx.Output(state)
    after = Ledger(state.total_cents + event.amount_cents, (*state.orders, event.order_id))
    return rx.Output(after, events=[Booked(event.order_id)])


@rx.workflow(
    "com.acme/notes@1", state=Note, events=[Booked], key="order_id", effects=[mail], terminal=lambda n: n.sent
)
def notes(note: Note | None, event: Any, ctx: rx.Context) -> rx.Output[Note]:
    match note, event:
        case None, Booked(order_id):
            return rx.Output(Note(order_id), effects=[mail(MailParams(f"paid {order_id}"), ref="mail")])
        case Note(), rx.Receipt(status="ok"):
            return rx.Output(replace(note, sent=True))
        case _:
            return rx.Output(note)


def app() -> rx.App:
    return rx.App("shop", [order, ledger, notes])
