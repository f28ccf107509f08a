"""An order as a saga: charged, approved by a person, shipped; refunded if that fails.

treadle run examples/functions/order.py:order --input '{"id": "o-1", "cents": 500}'
treadle signal ID approved
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle import flow


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Receipt:
    payment: str
    shipped: str


@flow.step(
    name="orders.charge", retry={"attempts": 3, "backoff": "exponential", "delay": "1s"}, timeout="30s"
)
async def charge(order: str, cents: int) -> str:
    return f"p-{order}-{cents}"


@flow.step(name="orders.refund")
def refund(payment: str) -> None:
    print(f"refunded {payment}")


@flow.step(name="orders.ship")
def ship(order: str) -> str:
    return f"s-{order}"


@flow.workflow(version="1")
async def order(ctx: flow.Context, request: Order) -> Receipt:
    payment = await charge(request.id, request.cents)
    ctx.compensate(refund, payment)
    ctx.state["stage"] = "paid"
    approved = await ctx.signal("approved", timeout="3d", default=False)
    if approved is False:
        raise TimeoutError("nobody approved the order")
    shipped = await ship(request.id)
    ctx.state["stage"] = "shipped"
    return Receipt(payment, shipped)
