"""What a worker does for each dialect's intents: one folder a dialect.

Each folder has a function `performers(house)` that gives the rows of the worker's table. It imports what it
needs when it is called: a missing extra only matters to those who use it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeVar

from treadle.dialects import INSTALLED

if TYPE_CHECKING:
    from treadle.kernel.values import Value
    from treadle.lang.definition import Dialect
    from treadle.secrets.providers import Secrets
    from treadle.store.protocol import Reads
    from treadle.tools.registry import ToolRegistry
    from treadle.work.performers import Performs

    from .agent.agents import Agents
    from .process.transports import Transports

T = TypeVar("T")


if TYPE_CHECKING:

    class House(Protocol):
        """What an engine lends to the performers of its dialects."""

        @property
        def tools(self) -> ToolRegistry: ...

        @property
        def secrets(self) -> Secrets: ...

        def read(self, question: Callable[[Reads], T]) -> Awaitable[T]:
            """Asks the store, off the core's thread."""
            ...

        @property
        def dialects(self) -> Mapping[str, Dialect]: ...

        @property
        def transports(self) -> Transports: ...

        @property
        def agents(self) -> Agents: ...

        def signal(
            self, id: str, name: str, data: Value = None, *, key: str | None = None
        ) -> Awaitable[object]:
            """Signals a run; the same `key` twice is one signal."""
            ...

        def publish(
            self, event: object, value: Value = None, *, submission_id: str | None = None
        ) -> Awaitable[object]:
            """Publishes a domain event; the same submission twice is one."""
            ...


def performers_of(dialect: str, house: House) -> Iterable[Performs]:
    """The rows of a dialect that is built in; none for any other."""
    if dialect not in INSTALLED:
        return ()
    make: Callable[[House], Iterable[Performs]] = import_module(f"{__name__}.{dialect}").performers
    return make(house)
