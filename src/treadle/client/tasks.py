"""The inbox of a server. Who acts is the token's user; an open server believes `--user` and `--role`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from treadle.arguments import checked_actor, checked_statuses
from treadle.kernel.values import Value
from treadle.runtime import tasks

from .protocol import Row, Rows
from .runs import path_of
from .wire import Wire

if TYPE_CHECKING:
    from treadle.arguments import TaskFilters


class RemoteTasks:
    _wire: Wire

    async def tasks(self, *, limit: int = 100, **filters: Unpack[TaskFilters]) -> Rows:
        asked = {
            **filters,
            "status": [*checked_statuses(filters.get("status", tasks.OPEN), tasks.STATUSES)],
        }
        found: Rows = []
        async for row in self._wire.pages("/tasks", asked):
            if len(found) >= limit:
                break
            found.append(row)
        return found

    async def task(self, id: str) -> Row:
        found: Row = await self._wire.get(path_of("tasks", id))
        return found

    async def task_claim(self, id: str, *, user: str | None, roles: Collection[str] = ()) -> Row:
        return await self._task("claim", id, user, roles, {}, again=True)

    async def task_release(self, id: str, *, user: str | None, roles: Collection[str] = ()) -> Row:
        return await self._task("release", id, user, roles, {})

    async def task_assign(self, id: str, *, to: str, user: str | None, roles: Collection[str] = ()) -> Row:
        return await self._task("assign", id, user, roles, {"to": to})

    async def task_comment(self, id: str, *, text: str, user: str | None, roles: Collection[str] = ()) -> Row:
        return await self._task("comment", id, user, roles, {"text": text})

    async def task_complete(
        self,
        id: str,
        data: Value = None,
        *,
        user: str | None,
        roles: Collection[str] = (),
        expected_version: int | None = None,
    ) -> Row:
        body = {"data": data, "expected_version": expected_version}
        return await self._task("complete", id, user, roles, body)

    async def _task(
        self,
        name: str,
        id: str,
        user: str | None,
        roles: Collection[str],
        body: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> Row:
        checked_actor(user, roles, body.get("to"))
        headers: dict[str, str] = {}
        if not self._wire.has_token:
            headers = {"X-Treadle-Roles": ",".join(roles)}
        found: Row = await self._wire.post(path_of("tasks", id, name), body, again=again, headers=headers)
        return found
