"""The inbox of human tasks, as an engine offers it: look, claim, give away, answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Unpack

from treadle.arguments import checked_actor, checked_statuses, for_operation
from treadle.kernel.values import Value
from treadle.runtime.commands import TASK

from .reach import Reaches

if TYPE_CHECKING:
    from treadle.arguments import TaskFilters


class TaskMethods(Reaches):
    """What an engine can do with tasks."""

    async def tasks(
        self, *, after_no: int = 0, limit: int = 100, **filters: Unpack[TaskFilters]
    ) -> list[dict[str, Any]]:
        """The inbox: the tasks that are open or claimed, or those of another status."""
        from treadle.runtime import tasks

        status = checked_statuses(filters.get("status", tasks.OPEN), tasks.STATUSES)
        asked: dict[str, Any] = {**filters, "status": status}
        return await self._host.reading.read(
            lambda reads: [
                tasks.task_value(row, reads) for row in reads.tasks(**asked, after_no=after_no, limit=limit)
            ]
        )

    async def task(self, id: str) -> dict[str, Any]:
        """One task of the inbox."""
        from treadle.runtime import tasks

        return await self._host.reading.read(lambda reads: tasks.shown(reads, id))

    async def task_claim(self, id: str, *, user: str | None, roles: Collection[str] = ()) -> dict[str, Any]:
        """Claims a task for a user who holds one of its roles."""
        return await self._task("claim", id, user, roles)

    async def task_release(self, id: str, *, user: str | None, roles: Collection[str] = ()) -> dict[str, Any]:
        """Gives a claimed task back."""
        return await self._task("release", id, user, roles)

    async def task_assign(
        self, id: str, *, to: str, user: str | None, roles: Collection[str] = ()
    ) -> dict[str, Any]:
        """Gives a task to somebody."""
        return await self._task("assign", id, user, roles, to=to)

    async def task_comment(
        self, id: str, *, text: str, user: str | None, roles: Collection[str] = ()
    ) -> dict[str, Any]:
        """Adds a comment to a task's history."""
        return await self._task("comment", id, user, roles, text=text)

    async def task_complete(
        self,
        id: str,
        data: Value = None,
        *,
        user: str | None,
        roles: Collection[str] = (),
        expected_version: int | None = None,
    ) -> dict[str, Any]:
        """Answers a task; the run goes on when this returns."""
        return await self._task(
            "complete", id, user, roles, data=for_operation(data), expected_version=expected_version
        )

    async def _task(
        self, name: str, id: str, user: str | None, roles: Collection[str], **more: Any
    ) -> dict[str, Any]:
        from treadle.runtime import tasks

        actor = tasks.Actor(*checked_actor(user, roles, more.get("to")))
        asked = tasks.Operation(name=name, task=id, actor=actor, **more)
        host, home = self._host, ""
        if host.seat.member is not None:
            # Of several who share a store, the one decides that has its run; else there is one for all.
            home = await host.reading.read(lambda reads: tasks.home(reads, id))
        return dict(await host.asks.operate(TASK, asked.to_value(), home=home))
