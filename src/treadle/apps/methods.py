"""Reactive applications, as an engine offers them: publish, look at cells, apply, shadow, govern."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.kernel.values import Value

if TYPE_CHECKING:
    from .operations import Applications


class AppMethods(ABC):
    """What an engine can do with applications."""

    @property
    @abstractmethod
    def applications(self) -> Applications: ...

    async def publish(
        self, event: Any, value: Any = None, *, key: Value = None, submission_id: str | None = None
    ) -> Sequence[str]:
        """Publishes a domain event: a typed object, or a schema's name and a value. Returns the runs
        it was delivered to, once that is durable. The same submission id again changes nothing."""
        return await self.applications.publish(event, value, key=key, submission_id=submission_id)

    async def cells(self, workflow: Any, *, limit: int | None = None) -> list[dict[str, Any]]:
        """The cells of a reactive workflow."""
        return await self.applications.cells(workflow, limit=limit)

    async def reset(self, id: str) -> dict[str, Any]:
        """Lets a failed cell take events again, from the state it had."""
        return await self.applications.reset(id)

    async def apply(self, what: Any, *, app: str | None = None, wait: bool = False) -> dict[str, Any]:
        """Moves an application to new code (or to an approved proposal); refused with
        details["blockers"] unless it is quiet."""
        return await self.applications.apply(what, app=app, wait=wait)

    async def shadow(self, what: Any, *, app: str | None = None, run: str | None = None) -> dict[str, Any]:
        """What a candidate does with what has happened so far; touches nothing."""
        return await self.applications.shadow(what, app=app, run=run)

    async def snapshot(self) -> dict[str, Any]:
        """Writes the cells' states into content-addressed indexes and returns their roots."""
        return await self.applications.snapshot()

    async def propose(self, app: Any) -> int:
        """Submits a new version of an application; the number of the proposal."""
        return await self.applications.propose(app)

    async def approve(self, number: int, *, app: str | None = None) -> None:
        """Approves a proposal, so that it can be applied."""
        await self.applications.decide(number, "approve", app=app)

    async def reject(self, number: int, *, app: str | None = None) -> None:
        """Rejects a proposal."""
        await self.applications.decide(number, "reject", app=app)

    async def proposals(self, app: str | None = None) -> list[dict[str, Any]]:
        """The proposals of an application and where each stands."""
        return await self.applications.proposals(app)
