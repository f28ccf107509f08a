"""An engine as those see it who do its work, here with what they lend to it, or from outside: the bus, and ways to
hand in what they bring."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from treadle.bus.local import LocalBus
from treadle.kernel.model import Receipt, shard_of
from treadle.lang.names import KnownNames
from treadle.runtime.commands import Progress
from treadle.runtime.ports import Work

from .reach import Reaches

if TYPE_CHECKING:
    from treadle.lang.fields import Fields
    from treadle.performers.process.transports import Transports
    from treadle.tools.registry import ToolRegistry


class WorkMethods(Reaches):
    """What an engine offers to those who do its work."""

    @cached_property
    def tools(self) -> ToolRegistry:
        """Tools by kind, imported when somebody asks for one or registers one."""
        from treadle.tools.registry import ToolRegistry

        # Two threads may be the first: both get the same.
        found: ToolRegistry = vars(self).setdefault("tools", ToolRegistry())
        return found

    @cached_property
    def transports(self) -> Transports:
        """What calls of processes go over, imported when somebody asks for one."""
        from treadle.performers.process.transports import Transports

        return Transports(self.tools)

    def _callables(self) -> KnownNames:
        """The names of what can be called. What is no tool here is looked for among the transports."""
        return KnownNames(self.tools.registered, lambda: self.transports.names())

    def _declared(self, kind: str) -> Fields | None:
        return self.tools.declared(kind)

    def transport(
        self, name: str, *, pure: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers a function of the payload that processes can call: `@engine.transport("billing")`."""
        return self.transports.transport(name, pure=pure)

    @property
    def bus(self) -> LocalBus:
        """What carries this engine's work to workers."""
        return self._host.bus

    @property
    def work_key(self) -> bytes:
        """What leases and workers of this store are known by."""
        return self._host.vouching.work_key

    def shards_held(self) -> frozenset[int]:
        """The shards of the store that this engine holds now."""
        core = self._host.seat.core
        return frozenset() if core is None else frozenset(tuple(core.store.held))

    def shard_of(self, run: str) -> int:
        core = self._host.seat.core
        return 0 if core is None else shard_of(run, core.store.shards)

    def _is_at_home(self, work: Work) -> bool:
        return work.dialect in self.dialects and self.dialects[work.dialect].is_at_home(work.intent)

    def hand_in(self, progress: Progress) -> None:
        """Progress of an intent; of one that is not open any more, nothing."""
        self._host.asks.submit(progress)

    def vouched(self, dialect: str, receipt: Receipt) -> Receipt:
        """A receipt with the node's signature, where its dialect asks for one: whoever brought it was known by
        the lease."""
        if dialect not in self.dialects or not self.dialects[dialect].machine.traits.signed:
            return receipt
        return self._host.vouching.vouched(receipt)

    def unavailable(self) -> dict[str, str]:
        """Intents that nobody here can do, and why."""
        unknown, bus = self.worker.unknown, self._host.bus
        for intent in list(unknown):
            if bus.find(intent) is None:  # it is settled, or somebody did it after all
                unknown.pop(intent, None)
        return {**unknown, **bus.undoable()}

    def resident_row(self, busy: int) -> dict[str, Any] | None:
        """The worker inside this engine, if it has one."""
        if self.worker.is_clerk:
            return None
        pools = self.worker.pools
        return {
            "id": "embedded",
            "name": "embedded",
            "pools": ["*"] if pools is None else sorted(pools),
            "concurrency": self.worker.concurrency,
            "busy": busy,
        }
