"""`TreadleClient` over HTTP: definitions, runs and reactive applications of a server.

Files are compiled here first, so that what is wrong with them is said as on a store, with the names that the user
gave; the server compiles them again and has the last word.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import msgspec

from treadle.arguments import new_id
from treadle.kernel.errors import RunNotFound, TreadleError, Unsupported
from treadle.kernel.values import Value, decode
from treadle.lang.definition import Definition, Dialect
from treadle.lang.duration import instant_text
from treadle.lang.graph import Graph
from treadle.lang.json_text import to_json
from treadle.store.rows import DefinitionRow

from .bundle import bundled
from .house import HouseAtServer
from .protocol import Row, Rows
from .runs import RemoteRun, path_of
from .tasks import RemoteTasks
from .wire import PATIENCE_S, Wire

if TYPE_CHECKING:
    import httpx

    from treadle.arguments import RunFilters, StartOptions
    from treadle.engine import Engine

_MICRO_NS: Final = 1_000
# How often a bulk job is asked how far it has come.
_LOOK_S: Final = 0.25


class HttpClient(RemoteTasks, HouseAtServer):
    """One server. `user` is who acts: believed by an open server, and by one with tokens if the token is an admin's."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        user: str | None = None,
        validation: str | None = None,
        patience_s: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {}
        if user is not None:
            headers["X-Treadle-User" if token is None else "X-Treadle-Act-As"] = user
        self._wire = Wire(url, token=token, headers=headers, patience_s=patience_s, transport=transport)
        self._deploying: list[Definition] = []
        self._validation = validation

    async def __aenter__(self) -> Self:
        if self._deploying:
            bundle = bundled(self._near, self._deploying)
            try:
                asked = {"files": bundle.files, "validation": self._validation}
                await self._wire.post("/definitions", asked, again=True)
            except TreadleError as error:
                await self.__aexit__()
                raise bundle.told(error) from error
            self._deploying.clear()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._wire.close()

    # --- definitions ---

    @cached_property
    def _near(self) -> Engine:
        """Compiles files of this machine; never started."""
        from treadle.engine import Engine

        return Engine("memory:", work=False)

    @property
    def dialects(self) -> Mapping[str, Dialect]:
        return self._near.dialects

    def load(self, target: Any, *, strict: bool = False) -> list[Definition]:
        return self._near.load(target, strict=strict)

    def deploy(self, target: Any, *, strict: bool = False, by: str | None = None) -> list[Definition]:
        """Compiles; the server is given all of it at once, or nothing, when the client is opened."""
        if self._validation == "warn":
            sound, kept = self._near.library.load_or_keep(target, strict=strict)
            found = [*sound, *kept]
        else:
            found = self.load(target, strict=strict)
        bundled(self._near, found)  # what cannot be sent is said before anything is
        self._deploying += found
        return found

    async def definition(self, workflow: Any) -> DefinitionRow:
        if not isinstance(workflow, str):
            return await self._near.definition(workflow)
        answer = await self._wire.ask(
            "GET", path_of("definitions", workflow), headers={"Accept": "application/cbor"}, again=True
        )
        return msgspec.convert(decode(answer.content), DefinitionRow, builtin_types=(bytes,))

    async def definitions(self) -> Rows:
        return [row async for row in self._wire.pages("/definitions", {})]

    async def graph(self, target: Any, *, at: int | None = None) -> Graph:
        if not isinstance(target, str):
            return await self._near.graph(target)
        try:
            drawn = await self._wire.get(path_of("runs", target, "graph"), at=at)
        except RunNotFound:
            drawn = await self._wire.get(path_of("definitions", target, "graph"))
        return msgspec.convert(drawn, Graph)

    # --- runs ---

    async def start(self, workflow: Any, input: Any = None, **more: Unpack[StartOptions]) -> RemoteRun:
        for name in ("secrets", "config", "skills"):
            if more.get(name):
                raise Unsupported(
                    f"{name} live where the work is done: give them to the server, not to a run"
                )
        id = more.get("id") or new_id()
        body = {
            **({"workflow": workflow} if isinstance(workflow, str) else self._bundle(workflow)),
            "input": input,
            "id": id,
            **{
                name: value
                for name in ("key", "reference", "priority", "model", "offline", "dry_run", "templates")
                if (value := more.get(name)) not in (None, False, {})
            },
        }
        # The id makes it one run, however often it is asked for.
        headers = _key(id)
        if (trace := more.get("traceparent")) is not None:
            headers = {**headers, "traceparent": trace}
        await self._wire.post("/runs", body, again=True, headers=headers)
        return RemoteRun(self._wire, id)

    def _bundle(self, workflow: Any) -> dict[str, Any]:
        (definition,) = self.load(workflow)
        return {"files": bundled(self._near, [definition]).files, "main": definition.name}

    async def run(self, id: str) -> RemoteRun:
        found = RemoteRun(self._wire, id)
        await found.show()
        return found

    async def rows(self, **filters: Unpack[RunFilters]) -> AsyncIterator[Row]:
        status, state = filters.get("status", ()), filters.get("state")
        since_ns, until_ns = filters.get("since_ns"), filters.get("until_ns")
        asked = {
            "status": [status] if isinstance(status, str) else [*status],
            "workflow": filters.get("workflow"),
            "reference": filters.get("reference"),
            "since": None if since_ns is None else instant_text(since_ns),
            # Instants have microseconds here, and what began within this one is meant.
            "until": None if until_ns is None else instant_text(until_ns + _MICRO_NS - 1),
            "search": filters.get("search"),
            "state": to_json(state) if state else None,
        }
        async for row in self._wire.pages("/runs", asked):
            yield row

    async def want(self, *runs: str) -> None:
        """A server drives its runs on by itself."""

    async def signal(
        self,
        id: str,
        name: str,
        data: Value = None,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> Row:
        body = {"name": name, "data": data, "key": key, "expected_version": expected_version}
        return await self._steer(id, "signal", body, again=key is not None)

    async def signal_reference(
        self, reference: str, name: str, data: Value = None, *, by: str | None = None
    ) -> Sequence[str]:
        body = {"reference": reference, "name": name, "data": data}
        found: list[str] = (await self._wire.post("/signals", body))["runs"]
        return found

    async def cancel(self, id: str, reason: str = "", *, by: str | None = None) -> Row:
        return await self._steer(id, "cancel", {"reason": reason}, again=True)

    async def patch(self, id: str, data: dict[str, Any], *, by: str | None = None) -> Row:
        return await self._steer(id, "patch", {"data": data})

    async def retry(self, /, id: str, *, by: str | None = None, definition: Any = None, **how: Any) -> Row:
        body = {"from" if name == "from_" else name: value for name, value in how.items()}
        if "skip" in body:
            body |= {"skip": True, "value": body["skip"]}
        if definition is not None:
            body |= {"definition": definition} if isinstance(definition, str) else self._bundle(definition)
        return await self._steer(id, "retry", body)

    async def fork(
        self,
        id: str,
        *,
        at: int | None = None,
        definition: Any = None,
        new_id: str | None = None,
        by: str | None = None,
    ) -> RemoteRun:
        body: dict[str, Any] = {"at": at, "id": new_id}
        if definition is not None:
            body |= {"definition": definition} if isinstance(definition, str) else self._bundle(definition)
        made = await self._wire.post(path_of("runs", id, "fork"), body)
        return RemoteRun(self._wire, made["id"])

    async def delete(self, id: str, *, by: str | None = None) -> Row:
        answer = await self._wire.ask("DELETE", path_of("runs", id))
        found: Row = answer.json()
        return found

    async def bulk(
        self, action: str, ids: Sequence[str], arguments: Row, tell: Callable[[int], None]
    ) -> Mapping[str, TreadleError]:
        """One action on many runs, done by the server; what failed, of the first hundred. `tell` hears how many are done.
        The job goes on there whatever becomes of us."""
        body = {"action": action, "filter": {"ids": [*ids]}, "arguments": arguments}
        job: Row = await self._wire.post("/bulk", body)
        while True:
            row: Row = await self._wire.get(path_of("bulk", job["id"]))
            tell(row["done"] + row["failed"])
            if row["status"] != "running":
                return {one["id"]: TreadleError.from_value(one["error"]) for one in row["errors"]}
            await asyncio.sleep(_LOOK_S)

    async def replay(self, id: str, *, against: Any = None) -> Row:
        body: dict[str, Any] = {}
        if against is not None:
            body = {"against": against} if isinstance(against, str) else self._bundle(against)
        found: Row = await self._wire.post(path_of("runs", id, "replay"), body, again=True)
        return found

    async def transcript(self, id: str, *, node: str | None = None) -> Rows:
        found: Rows = await self._wire.get(path_of("runs", id, "transcript"), node=node)
        return found

    async def _steer(self, id: str, what: str, body: Row, *, again: bool = False) -> Row:
        found: Row = await self._wire.post(path_of("runs", id, what), body, again=again)
        return found

    # --- reactive applications, the house ---

    async def publish(
        self, event: Any, value: Any = None, *, key: Value = None, submission_id: str | None = None
    ) -> Sequence[str]:
        if not isinstance(event, str):
            raise Unsupported("a server is told the event's schema and its value")
        # The same submission is one publication, so it may be sent again.
        body = {"event": event, "value": value, "key": key, "submission_id": submission_id or token_hex(16)}
        found: list[str] = (await self._wire.post("/events", body, again=True))["runs"]
        return found

    async def apply(self, what: Any, *, app: str | None = None, wait: bool = False) -> Row:
        name, asked = self._application(what, app)
        body = {**asked, "wait": wait}
        found: Row = await self._wire.post(path_of("apps", name, "apply"), body, again=True)
        return found

    async def shadow(self, what: Any, *, app: str | None = None, run: str | None = None) -> Row:
        name, asked = self._application(what, app)
        body = {**asked, "run": run}
        found: Row = await self._wire.post(path_of("apps", name, "shadow"), body, again=True)
        return found

    async def snapshot(self) -> Row:
        found: Row = await self._wire.post("/apps/snapshot", again=True)
        return found

    def _application(self, what: Any, app: str | None) -> tuple[str, Row]:
        """An application by name, and which of its versions: an approved proposal, or code that the server has."""
        if isinstance(what, int):
            if app is None:
                raise Unsupported("a server is told whose proposal it is")
            return app, {"proposal": what}
        (body, *_) = [definition.body for definition in self.load(what)]
        return body["app"], {"manifest": body["manifest"]}

    async def cells(self, workflow: Any, *, limit: int | None = None) -> Rows:
        found: Rows = (await self._wire.get(path_of("cells", workflow)))["items"]
        return found[:limit]

    async def cell(self, workflow: Any, key: Any = None) -> RemoteRun | None:
        try:
            shown = await self._wire.get(
                path_of("cells", workflow, key if isinstance(key, str) else to_json(key))
            )
        except TreadleError as error:
            if error.code == "CELL_NOT_FOUND":
                return None
            raise
        return RemoteRun(self._wire, shown["id"])

    async def gc(self, *, now_ns: int | None = None, dry_run: bool = False, by: str | None = None) -> Row:
        found: Row = await self._wire.post("/gc", {"dry_run": dry_run}, again=True)
        return found


def _key(id: str) -> dict[str, str]:
    """The header that makes a repeated start the same; ids beyond ASCII are in the body only."""
    return {"Idempotency-Key": id} if id.isascii() and id.isprintable() else {}
