"""`transfer`: rows from an API or a database into a database, in chunks, in one transaction.

Sources: http, postgres, duckdb. Targets: postgres, duckdb. Either all rows arrive or none: the
target's transaction is committed after the last chunk. With `once: true` and a postgres target a
repeated call finds its idempotency key there and moves nothing twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from .base import BadConfig, ToolBase, mapping, need, pick
from .protocol import Outcome, ToolCall
from .registry import ToolRegistry
from .rows import MODES, Columns, Row, RowSource, Sink, TransferFailed, at_path

if TYPE_CHECKING:
    from .postgres import PostgresTool

CHUNK_ROWS: Final = 1000


class TransferTool(ToolBase):
    """Its fields are declared in `fields.TRANSFER`."""

    kind = "transfer"
    idempotent = False

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    @classmethod
    def for_registry(cls, registry: ToolRegistry) -> TransferTool:
        return cls(registry)

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        source, target = mapping(config, "source"), mapping(config, "target")
        if config.get("once"):
            target["once"] = config["once"]
        mode = str(pick(config, "mode") or target.get("mode") or "append")
        if mode not in MODES:
            raise BadConfig(f"the field 'mode' must be one of {', '.join(MODES)}, not {mode!r}")
        size = _chunk_size(config)
        columns = Columns({**mapping(target, "mapping"), **mapping(config, "mapping")})
        try:
            async with self._source(source, call) as rows, self._sink(target, mode, call) as sink:
                if (first := await sink.done_before()) is not None:
                    return Outcome(result=first)
                counts = await _move(rows, sink, columns, size, call)
                return Outcome(result=await sink.commit({"status": "ok", "mode": mode, **counts}))
        except TransferFailed as error:
            return error.outcome

    async def close(self) -> None:
        """The registry closes the tools that are used here."""

    def _source(self, config: Row, call: ToolCall) -> AbstractAsyncContextManager[RowSource]:
        # The extras of a database are imported only if it takes part.
        match str(need(config, "tool", "type", "kind")):
            case "http":
                return _http_source(self._registry, config, call)
            case "postgres":
                from .transfer_postgres import postgres_source

                return postgres_source(self._postgres(), config, call)
            case "duckdb":
                from .transfer_duckdb import duckdb_source

                return duckdb_source(config, call)
            case other:
                raise BadConfig(f"a transfer cannot read from {other!r}; use http, postgres or duckdb")

    def _sink(self, config: Row, mode: str, call: ToolCall) -> AbstractAsyncContextManager[Sink]:
        if pick(config, "table", "query") is None:
            raise BadConfig("the target needs 'table' or 'query'")
        match str(need(config, "tool", "type", "kind")):
            case "postgres":
                from .transfer_postgres import postgres_sink

                return postgres_sink(self._postgres(), config, mode, call)
            case "duckdb":
                from .transfer_duckdb import duckdb_sink

                return duckdb_sink(config, mode, call)
            case other:
                raise BadConfig(f"a transfer cannot write to {other!r}; use postgres or duckdb")

    def _postgres(self) -> PostgresTool:
        return cast("PostgresTool", self._registry.get("postgres"))


async def _move(rows: RowSource, sink: Sink, columns: Columns, size: int, call: ToolCall) -> dict[str, Any]:
    moved = chunks = 0
    names: list[str] = []
    # Closed here even if a chunk fails: a cursor left to the collector outlives its connection.
    async with aclosing(rows.chunks(size)) as source:
        async for chunk in source:
            if not chunks:
                names = columns.settle(chunk[0])
                await sink.begin(names)
            await sink.write([columns.values(row) for row in chunk])
            moved, chunks = moved + len(chunk), chunks + 1
            await call.progress("transfer", rows=moved)
    if not chunks:
        # Nothing to write; `replace` still empties the table.
        await sink.begin([])
    return {"row_count": moved, "chunks": chunks, "columns": names}


def _chunk_size(config: dict[str, Any]) -> int:
    try:
        size = int(config.get("chunk_size") or CHUNK_ROWS)
    except (TypeError, ValueError):
        size = 0
    if size < 1:
        raise BadConfig("the field 'chunk_size' must be a number above zero")
    return size


@asynccontextmanager
async def _http_source(registry: ToolRegistry, config: Row, call: ToolCall) -> AsyncIterator[HttpRows]:
    yield HttpRows(registry, config, call)


class HttpRows:
    """The list at `data_path` in the answer to one request."""

    def __init__(self, registry: ToolRegistry, config: Row, call: ToolCall) -> None:
        self._registry = registry
        self._config = config
        self._call = call

    async def chunks(self, size: int) -> AsyncGenerator[list[Row], None]:
        outcome = await self._registry.get("http").run(self._config, self._call)
        if outcome.error is not None:
            raise TransferFailed(outcome)
        rows = at_path(outcome.result["data"], self._config.get("data_path"))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise BadConfig("the source gives no list of mappings; say where it is with 'data_path'")
        for start in range(0, len(rows), size):
            yield rows[start : start + size]
