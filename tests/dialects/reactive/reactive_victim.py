"""Publishes orders until it is killed; prints a line for each that was acknowledged."""

from __future__ import annotations

import asyncio
import sys

from reactive_shop import ChargeReceipt, OrderCreated, app, charge, mail

from treadle import Engine


@charge.executor
async def do_charge(call):
    return ChargeReceipt("p")


@mail.executor
async def send(call):
    return None


async def main(store: str, first: int, count: int) -> None:
    engine = Engine(store)
    engine.deploy(app())
    async with engine:
        for n in range(first, first + count):
            await engine.publish(OrderCreated(f"o-{n}", 1), submission_id=f"s-{n}")
            print(n, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
