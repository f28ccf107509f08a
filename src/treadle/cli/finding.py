"""Finding what a person means: a run or a task by its id or the beginning of it, all runs that a filter matches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import RunNotFound, TreadleError

from .output import Usage

if TYPE_CHECKING:
    from treadle.client.protocol import Row, Rows, RunHandle, TreadleClient

PAGE: Final = 500
# A beginning shorter than this is a slip of the finger.
PREFIX_MIN: Final = 3
NAMED_MAX: Final = 8


async def run_of(engine: TreadleClient, id: str) -> RunHandle:
    """The run that an id, or the beginning of one, means."""
    return await engine.run(await run_id(engine, id))


async def run_id(engine: TreadleClient, id: str) -> str:
    try:
        await engine.run(id)
        return id
    except RunNotFound:
        if len(id) < PREFIX_MIN:
            raise

        near = await _first(engine.rows(search=id), PAGE)
        found = [row["id"] for row in near if row["id"].startswith(id)]
        # The ids of children begin with their parent's: the parent is meant.
        roots = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
        if not roots:
            raise
        return _only(id, roots, "runs")


async def task_id(engine: TreadleClient, id: str) -> str:
    """The task that an id, or the beginning of one, means."""
    try:
        await engine.task(id)
        return id
    except TreadleError as error:
        if error.code != "TASK_NOT_FOUND" or len(id) < PREFIX_MIN:
            raise
        rows = await engine.tasks(limit=10_000)
        found = [row["id"] for row in rows if row["id"].startswith(id)]
        if not found:
            raise
        return _only(id, found, "tasks")


def _only(id: str, found: list[str], what: str) -> str:
    if len(found) > 1:
        more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        raise Usage(
            f"{id!r} begins {len(found)} {what}: {', '.join(found[:NAMED_MAX])}{more}; give more of it"
        )
    return found[0]


async def ids_of(
    engine: TreadleClient,
    *,
    status: Sequence[str] = (),
    workflow: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    wanted: Callable[[Row], bool] = lambda row: True,
) -> list[str]:
    """The ids of all runs that match, oldest first; read in pages, however many there are."""
    rows = engine.rows(status=status, workflow=workflow, since_ns=since_ns, until_ns=_within(until_ns))
    return [row["id"] async for row in rows if wanted(row)][::-1]


async def rows_of(
    engine: TreadleClient, limit: int, *, until_ns: int | None, **filters: Any
) -> tuple[Rows, bool]:
    """The newest runs that match, as rows for people and programs, and whether there are more."""
    found = await _first(engine.rows(**filters, until_ns=_within(until_ns)), limit + 1)
    return found[:limit], len(found) > limit


def _within(until_ns: int | None) -> int | None:
    """A run that started at the very instant is meant too."""
    return None if until_ns is None else until_ns + 1


async def _first(rows: AsyncIterator[Row], count: int) -> Rows:
    found: Rows = []
    async for row in rows:
        found.append(row)
        if len(found) >= count:
            break
    return found
