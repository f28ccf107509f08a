"""What commands ask of whatever holds the runs: an engine on a store (`treadle.engine.Engine`), or a server.

A command that is written against `TreadleClient` prints the same and exits the same on both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Protocol, Self, Unpack

from treadle.arguments import StartOptions
from treadle.kernel.values import Value
from treadle.lang.definition import Definition, Dialect
from treadle.lang.graph import Graph
from treadle.store.protocol import DefinitionRow

Row = dict[str, Any]
Rows = list[dict[str, Any]]


class RunHandle(Protocol):
    """One run."""

    @property
    def id(self) -> str: ...
    async def show(self, *, engine: bool = False, at: int | None = None) -> Row: ...
    async def journal(self, *, after: int = 0, limit: int | None = None) -> Rows: ...
    def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[Row]: ...
    async def settled(self, *, until_wait: bool = False) -> Row: ...
    async def result(self, timeout: float | None = None) -> Value: ...


class DefinitionDoor(Protocol):
    """Definitions: what files say is compiled here, what is deployed is asked for."""

    @property
    def dialects(self) -> Mapping[str, Dialect]: ...
    def load(self, target: Any, *, strict: bool = False) -> list[Definition]: ...
    def deploy(self, target: Any, *, strict: bool = False, by: str | None = None) -> list[Definition]: ...
    async def definition(self, workflow: Any) -> DefinitionRow: ...
    async def definitions(self) -> Rows: ...
    async def graph(self, target: Any, *, at: int | None = None) -> Graph: ...


class TaskDoor(Protocol):
    """The inbox."""

    async def tasks(
        self,
        *,
        role: str | None = None,
        assignee: str | None = None,
        status: str | Sequence[str] = ...,
        reference: str | None = None,
        run: str | None = None,
        limit: int = 100,
    ) -> Rows: ...
    async def task(self, id: str) -> Row: ...
    async def task_claim(self, id: str, *, user: str | None, roles: Collection[str] = ()) -> Row: ...
    async def task_release(self, id: str, *, user: str | None, roles: Collection[str] = ()) -> Row: ...
    async def task_assign(
        self, id: str, *, to: str, user: str | None, roles: Collection[str] = ()
    ) -> Row: ...
    async def task_comment(
        self, id: str, *, text: str, user: str | None, roles: Collection[str] = ()
    ) -> Row: ...
    async def task_complete(
        self,
        id: str,
        data: Value = None,
        *,
        user: str | None,
        roles: Collection[str] = (),
        expected_version: int | None = None,
    ) -> Row: ...


class TreadleClient(DefinitionDoor, TaskDoor, Protocol):
    """Definitions, tasks, and runs: start, find, steer."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...

    async def start(self, workflow: Any, input: Any = None, **more: Unpack[StartOptions]) -> RunHandle: ...
    async def run(self, id: str) -> RunHandle: ...
    def rows(
        self,
        *,
        status: str | Sequence[str] = (),
        workflow: str | None = None,
        reference: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        search: str | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[Row]:
        """Every run that matches, newest first."""
        ...

    async def want(self, *runs: str) -> None: ...
    async def signal(
        self,
        id: str,
        name: str,
        data: Value = None,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> Row: ...
    async def signal_reference(
        self, reference: str, name: str, data: Value = None, *, by: str | None = None
    ) -> Sequence[str]: ...
    async def cancel(self, id: str, reason: str = "", *, by: str | None = None) -> Row: ...
    async def patch(self, id: str, data: dict[str, Any], *, by: str | None = None) -> Row: ...
    async def retry(
        self, /, id: str, *, by: str | None = None, definition: Any = None, **how: Any
    ) -> Row: ...
    async def fork(
        self,
        id: str,
        *,
        at: int | None = None,
        definition: Any = None,
        new_id: str | None = None,
        by: str | None = None,
    ) -> RunHandle: ...
    async def replay(self, id: str, *, against: Any = None) -> Row: ...
    async def transcript(self, id: str, *, node: str | None = None) -> Rows: ...
    async def publish(
        self, event: Any, value: Any = None, *, key: Value = None, submission_id: str | None = None
    ) -> Sequence[str]: ...
    async def cells(self, workflow: Any, *, limit: int | None = None) -> Rows: ...
    async def cell(self, workflow: Any, key: Any = None) -> RunHandle | None: ...
    async def gc(
        self, *, now_ns: int | None = None, dry_run: bool = False, by: str | None = None
    ) -> dict[str, int]: ...
