"""An engine as its applications see it, on a simulated process: the real operations on the real core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from treadle.apps.barrier import BARRIER
from treadle.apps.operations import Applications
from treadle.definitions.dialects import Dialects
from treadle.definitions.library import Library
from treadle.host.acting import stamped
from treadle.kernel.errors import EngineStopped, TreadleError
from treadle.kernel.model import Event
from treadle.lang.definition import Definition
from treadle.runtime.commands import Command, Deliver, Operate
from treadle.runtime.ports import Ack

from .loop import SimLoop
from .workload import Housed

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .process import SimProcess

T = TypeVar("T")
# How long an apply to which everybody has agreed takes on its way, at most.
PAUSE_MS: Final = 600


class Poll:
    """A watch of a store that nobody announces anything about."""

    async def changed(self, poll_s: float) -> None:
        await asyncio.sleep(poll_s)


class SimHouse:
    """Its engine, its loop and its applications; all of it gone with the process."""

    validation = "strict"

    def __init__(self, process: SimProcess, workload: Housed) -> None:
        self._process = process
        self._workload = workload
        self.dialects = dialects = Dialects()
        self.library = Library(dialects)
        for app in workload.code:
            self.library.load(app)
        self.loop = SimLoop(process.world)  # type: ignore[abstract]  # nobody asks it for sockets or processes
        self.applications = Applications(
            self, self.ask, self.decides, token=lambda size: process.world.entropy(size).hex()
        )

    def decides(self, run: str) -> bool:
        return self._process.core.held.holds(run)

    def homes(self) -> list[str]:
        sharing = self._process.sharing
        return [""] if sharing is None else sharing.homes()

    def load(self, target: Any, *, strict: bool = False) -> list[Definition]:
        return self.library.load(target, strict=strict)

    def deploy(self, target: Any, *, strict: bool = False) -> list[Definition]:
        raise AssertionError("what is deployed here is deployed by an apply")

    @contextlib.contextmanager
    def watch(self, run: str) -> Iterator[Poll]:
        yield Poll()

    async def read(self, question: Callable[[Reads], T]) -> T:
        await asyncio.sleep(0)
        return question(self._process.world.store)

    async def ask(self, make: Callable[[Ack], Command]) -> Any:
        if self.loop.closed:
            raise EngineStopped("the process is gone (simulated)")
        answer = self.loop.create_future()

        def ack(value: Any, error: TreadleError | None) -> None:
            assert not self._process.world.disk.live.in_transaction, "answered before the commit"
            if answer.done():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        self._process.core.submit(stamped(make(ack)))
        return await answer

    async def submit(self, run: str, event: Event, /) -> dict[str, Any]:
        return dict(await self.ask(lambda ack: Deliver(run, event, ack=ack)))

    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any:
        dawdles_ms = self._workload.dawdles_ms
        if dawdles_ms and name in ("apply", BARRIER) and not self.loop.closed:
            await asyncio.sleep(self._process.world.rng.randrange(dawdles_ms) / 1000)
        if name == "apply" and "token" in body and not self.loop.closed:
            with self._workload.agreed(self._process.world):
                await asyncio.sleep(self._process.world.rng.randrange(PAUSE_MS) / 1000)
                return await self.ask(lambda ack: Operate(home, name, body, ack))
        return await self.ask(lambda ack: Operate(home, name, body, ack))
