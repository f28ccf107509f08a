"""Pattern A: one state machine. An order is charged; a failed charge is tried again, with back-off.

    python examples/reactive/order.py

or, with the command line and a store of its own:

    treadle publish com.acme/OrderCreated@1 --data '{"order_id": "o-1", "amount_cents": 500}' \
        --app examples/reactive/order.py:app
    treadle cell com.acme/order@1 o-1 --app examples/reactive/order.py:app
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from treadle import Engine
from treadle import reactive as rx

ATTEMPTS_MAX = 4


@rx.schema("com.acme/OrderCreated@1")
@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: str
    amount_cents: int


@rx.schema("com.acme/Order@1")
@dataclass(frozen=True, slots=True)
class Order:
    order_id: str
    amount_cents: int
    pc: Literal["charging", "backoff", "done", "failed"] = "charging"
    attempt: int = 1
    payment: str | None = None


@rx.schema("com.acme/ChargeParams@1")
@dataclass(frozen=True, slots=True)
class ChargeParams:
    order_id: str
    amount_cents: int


@rx.schema("com.acme/ChargeReceipt@1")
@dataclass(frozen=True, slots=True)
class ChargeReceipt:
    payment_id: str


charge = rx.effect("payment/charge@1", params=ChargeParams, receipt=ChargeReceipt)


def charging(order: Order) -> rx.Output[Order]:
    """Asks for the charge of this attempt. All attempts carry the same key, so no one pays twice."""
    params = ChargeParams(order.order_id, order.amount_cents)
    asked = charge(params, ref=f"charge:{order.attempt}", idempotency_key=f"order:{order.order_id}")
    return rx.Output(replace(order, pc="charging"), effects=[asked])


@rx.workflow(
    "com.acme/order@1",
    state=Order,
    events=[OrderCreated],
    key="order_id",
    effects=[charge, rx.timer],
    terminal=lambda order: order.pc in ("done", "failed"),
)
def order(o: Order | None, event: Any, ctx: rx.Context) -> rx.Output[Order]:
    match o, event:
        case None, OrderCreated(order_id, amount_cents):
            return charging(Order(order_id, amount_cents))
        case Order(pc="charging"), rx.Receipt(ref=ref, status="ok") if ref == f"charge:{o.attempt}":
            return rx.Output(replace(o, pc="done", payment=event.value.payment_id))
        case Order(pc="charging"), rx.Receipt(ref=ref) | rx.Rejected(ref=ref) if ref == f"charge:{o.attempt}":
            if o.attempt == ATTEMPTS_MAX:
                return rx.Output(replace(o, pc="failed"))
            wait = timedelta(milliseconds=50 * 2**o.attempt)
            return rx.Output(
                replace(o, pc="backoff"), effects=[rx.timer(ctx.now + wait, ref=f"retry:{o.attempt}")]
            )
        case Order(pc="backoff"), rx.Receipt(ref=ref) if ref == f"retry:{o.attempt}":
            return charging(replace(o, attempt=o.attempt + 1))
        case _:
            return rx.Output(o)  # a duplicate, or too late: the fence stands in the state


@charge.executor
async def do_charge(call: rx.Call[ChargeParams]) -> ChargeReceipt:
    """The outside: here, a payment service that is down for the first two attempts."""
    attempt = int((call.ref or "charge:1").partition(":")[2])
    await call.progress("contacting", attempt=attempt)
    if attempt < 3:
        raise ConnectionError("the payment service does not answer")
    return ChargeReceipt(f"pay-{call.idempotency_key}")


app = rx.App("orders", [order])


async def main() -> None:
    engine = Engine("memory:")
    engine.deploy(app)
    async with engine:
        (run,) = await engine.publish(OrderCreated("o-1", 500), submission_id="demo-1")
        async for event in (await engine.run(run)).events():
            print(event["type"], {k: v for k, v in event.items() if k in ("attempt", "schema")})
        cell = await engine.cell(order, "o-1")
        assert cell is not None
        shown = await cell.show()
        print(shown["status"], shown["state"])


if __name__ == "__main__":
    asyncio.run(main())
