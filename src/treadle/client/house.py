"""The house of a server: schedules, tokens, webhooks, secrets, the audit log, the doctor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.kernel.values import Value
from treadle.lang.duration import instant_text

from .protocol import Row, Rows
from .runs import path_of
from .wire import Wire, value_of


class HouseAtServer:
    _wire: Wire

    # --- limits ---

    async def limits(self) -> Rows:
        return await self._items("/limits")

    async def limit_set(self, workflow: str, /, **limits: Any) -> Row:
        return await self._row("PUT", path_of("limits", workflow), limits, again=True)

    async def limit_remove(self, workflow: str) -> Row:
        return await self._row("DELETE", path_of("limits", workflow))

    # --- schedules ---

    async def schedules(self) -> Rows:
        return await self._items("/schedules")

    async def schedule(self, name: str) -> Row:
        return await self._row("GET", path_of("schedules", name))

    async def schedule_add(self, /, name: str, workflow: str, input: Value = None, **when: Any) -> Row:
        body = {**when, "name": name, "workflow": workflow, "input": input}
        # The same again is the same schedule.
        return await self._row("POST", "/schedules", body, again=True)

    async def schedule_change(self, /, name: str, **fields: Any) -> Row:
        return await self._row("PATCH", path_of("schedules", name), fields, again=True)

    async def schedule_pause(self, name: str) -> Row:
        return await self.schedule_change(name, paused=True)

    async def schedule_resume(self, name: str) -> Row:
        return await self.schedule_change(name, paused=False)

    async def schedule_remove(self, name: str) -> Row:
        return await self._row("DELETE", path_of("schedules", name))

    async def schedule_trigger(self, name: str) -> str:
        return str((await self._row("POST", path_of("schedules", name, "trigger")))["id"])

    async def schedule_backfill(
        self, name: str, *, since_ns: int, until_ns: int | None = None
    ) -> Sequence[str]:
        until = None if until_ns is None else instant_text(until_ns)
        path = path_of("schedules", name, "backfill")
        made = await self._wire.post(path, again=True, since=instant_text(since_ns), until=until)
        found: list[str] = made["runs"]
        return found

    # --- how long runs are kept ---

    async def retentions(self) -> Rows:
        return await self._items("/retention")

    async def retention_set(self, workflow: str, keep: Any) -> Row:
        return await self._row("PUT", path_of("retention", workflow), {"keep": keep}, again=True)

    async def retention_remove(self, workflow: str) -> Row:
        return await self._row("DELETE", path_of("retention", workflow))

    # --- who may ask ---

    async def token_create(
        self, user: str, roles: Sequence[str], *, workflow: str | None = None, expires: str | None = None
    ) -> Row:
        body = {"user": user, "roles": [*roles], "workflow": workflow, "expires": expires}
        return await self._row("POST", "/tokens", body)

    async def token_list(self) -> Rows:
        return await self._items("/tokens")

    async def token_revoke(self, id: str) -> Row:
        return await self._row("DELETE", path_of("tokens", id), again=True)

    async def hook_set(self, name: str, hook: Mapping[str, Any]) -> Row:
        return await self._row("PUT", path_of("hooks", name), dict(hook), again=True)

    async def hook_list(self) -> Rows:
        return await self._items("/hooks")

    async def hook_remove(self, name: str) -> None:
        await self._row("DELETE", path_of("hooks", name))

    async def secret_set(self, name: str, value: str | dict[str, str]) -> None:
        await self._row("PUT", path_of("secrets", name), {"value": value}, again=True)

    async def secret_list(self) -> Sequence[str]:
        return [row["name"] for row in await self._items("/secrets")]

    async def secret_remove(self, name: str) -> None:
        await self._row("DELETE", path_of("secrets", name))

    async def dead_letters(self) -> Rows:
        return await self._items("/deadletters")

    async def dead_letter(self, id: str) -> Row:
        return await self._row("GET", path_of("deadletters", id), again=True)

    async def dead_letter_replay(self, id: str) -> Row:
        return await self._row("POST", path_of("deadletters", id, "replay"))

    async def dead_letter_discard(self, id: str) -> Row:
        return await self._row("POST", path_of("deadletters", id, "discard"))

    async def audit(self, *, limit: int = 100, **filters: Any) -> Rows:
        asked = {name: value for name, value in filters.items() if not name.endswith("_ns")}
        for name in ("since", "until"):
            if (at := filters.get(f"{name}_ns")) is not None:
                asked[name] = instant_text(at)
        found: Rows = []
        async for row in self._wire.pages("/audit", asked):
            if len(found) >= limit:
                break
            found.append(row)
        return found

    # --- its health ---

    async def doctor(self, *, deep: bool = False) -> Row:
        return await self._row("GET", "/doctor?deep=true" if deep else "/doctor", again=True)

    async def record(self, id: str) -> Row:
        return await self._row("GET", path_of("runs", id, "record"), again=True)

    async def _items(self, path: str) -> Rows:
        found: Rows = (await self._wire.get(path))["items"]
        return found

    async def _row(self, method: str, path: str, body: object = None, *, again: bool = False) -> Row:
        found: Row = value_of(await self._wire.ask(method, path, body=body, again=again))
        return found
