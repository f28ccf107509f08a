"""Treadle, business processes: written with the builder, calls over a registered transport."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from peers.treadle_base import TreadlePeer, count, slow
from treadle import Engine
from treadle.process import concat, process, result, start, state

MOST = 1_000_000


@process("chain", version="1.0.0")
def chain(p: Any) -> None:
    p.set(state.n, 0)
    with p.while_(state.n < start.steps, max=MOST):
        p.call("count", payload={"n": state.n}, into="n")
        p.set(state.n, result.n)
    p.complete(state.n)


@process("leaf", version="1.0.0")
def leaf(p: Any) -> None:
    p.call("count", payload={"n": 0}, into="n")
    p.complete(result.n)


@process("wait", version="1.0.0")
def wait(p: Any) -> None:
    p.await_signal("go", into="sent")
    p.complete(result.sent)


@process("slow", version="1.0.0")
def slowly(p: Any) -> None:
    p.set({state.n: 0, state.tokens: ""})
    with p.while_(state.n <= start.steps, max=MOST):
        p.call("slow", payload={"run": start.run, "step": state.n}, into="token")
        p.set({state.n: state.n + 1, state.tokens: concat(state.tokens, " ", result.token)})
    p.complete(state.tokens)


def fan(width: int) -> Any:
    """A fork's branches stand in the definition, so there is one definition a width."""

    def branch(number: int) -> Any:
        def body(p: Any) -> None:
            p.call("count", payload={"n": 0}, into=f"n{number}")
            p.set(state.sum, state.sum + getattr(result, f"n{number}"))

        return body

    @process(f"fan{width}", version="1.0.0")
    def fanned(p: Any) -> None:
        p.set(state.sum, 0)
        p.fork(**{f"b{number}": branch(number) for number in range(width)})
        p.complete(state.sum)

    return fanned


def parent(count: int) -> Any:
    def branch(number: int) -> Any:
        def body(p: Any) -> None:
            p.child("leaf", input={}, into=f"n{number}")
            p.set(state.sum, state.sum + getattr(result, f"n{number}"))

        return body

    @process(f"parent{count}", version="1.0.0")
    def parented(p: Any) -> None:
        p.set(state.sum, 0)
        p.fork(**{f"b{number}": branch(number) for number in range(count)})
        p.complete(state.sum)

    return parented


SERVED = """\
dialect: process
name: served
version: 1.0.0
steps:
  - call: {transport: python, code: "result = 1", into: n}
  - complete: {$: result.n}
"""


class Peer(TreadlePeer):
    names = {"chain": "chain", "wait": "wait", "slow": "slow"}  # noqa: RUF012
    served_file = ("served.yaml", SERVED)

    def prepare(self, engine: Engine, folder: Path, program: str) -> None:
        engine.transport("count", pure=program == "pure")(count)
        engine.transport("slow")(slow)
        programs: dict[str, Any] = {
            "chain": chain,
            "pure": chain,
            "wait": wait,
            "slow": slowly,
            "children": leaf,
        }
        if program in programs:
            engine.deploy(programs[program])
        self._wide: dict[int, str] = {}

    async def fan(self, width: int) -> Any:
        return await self._spread(width, fan)

    async def children(self, count: int) -> Any:
        return await self._spread(count, parent)

    async def _spread(self, width: int, make: Callable[[int], Any]) -> Any:
        if width not in self._wide:
            (definition,) = self.engine.deploy(make(width))
            self._wide[width] = definition.name
        return await (await self.engine.start(self._wide[width], {})).result()

    async def slow_result(self, run: str, steps: int) -> Any:
        """Expressions of a process join texts, not lists."""
        return (await super().slow_result(run, steps)).split()
