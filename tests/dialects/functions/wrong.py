"""Mistakes with durable functions that a type checker must find. Checked, never executed."""

from __future__ import annotations

from treadle import Engine, flow


@flow.step
async def charge(order: str, cents: int) -> str:
    return order


@flow.step(timeout="1s")
def ship(order: str) -> int:
    return 1


@flow.workflow
async def other(ctx: flow.Context, n: int) -> bool:
    return n > 0


@flow.workflow(version="2")
async def right(ctx: flow.Context, name: str) -> list[str]:
    payment: str = await charge(name, 5)
    number: int = await ship(order=name)
    answer: bool = await ctx.run(other, number)
    got: int = await ctx.signal("n", type=int)
    both: list[str] = await flow.gather(charge("a", got), charge("b", 2))
    return [payment, str(answer), *both]


@flow.workflow
async def wrong(ctx: flow.Context) -> None:
    await charge("o", "five")  # expect: arg-type
    await charge("o")  # expect: call-arg
    number: int = await charge("o", 5)  # expect: assignment
    text: str = await ship("o")  # expect: assignment
    answer: str = await ctx.run(other, 1)  # expect: arg-type
    maybe: int = await ctx.signal("n", type=int, timeout="1s")  # expect: assignment
    ctx.nowhere()  # expect: attr-defined
    await ctx.run(other, "one")  # expect: misc
    await ctx.start(other)  # expect: arg-type
    print(number, text, answer, maybe)


async def starts(engine: Engine) -> None:
    run = await engine.start(other, 1, id="o")
    good: bool = await run.result()
    bad: str = await run.result()  # expect: assignment
    await engine.start(other, "one")  # expect: misc
    await engine.start(other, 1, idd="o")  # expect: call-overload
    print(good, bad)
