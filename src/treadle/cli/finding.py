"""Finding what a person means: a run or a task by its id or the beginning of it, all runs that a filter matches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import RunNotFound, TreadleError
from treadle.runtime.document import list_row

from .output import Usage

if TYPE_CHECKING:
    from treadle.engine import Engine, Run
    from treadle.store.protocol import Reads, RunRow

PAGE: Final = 500
# A beginning shorter than this is a slip of the finger.
PREFIX_MIN: Final = 3
NAMED_MAX: Final = 8


async def run_of(engine: Engine, id: str) -> Run:
    """The run that an id, or the beginning of one, means."""
    return await engine.run(await run_id(engine, id))


async def run_id(engine: Engine, id: str) -> str:
    try:
        await engine.run(id)
        return id
    except RunNotFound:
        if len(id) < PREFIX_MIN:
            raise

        def near(reads: Reads) -> list[str]:
            return [row.id for row in reads.runs(search=id, limit=PAGE) if row.id.startswith(id)]

        found = await engine.read(near)
        # The ids of children begin with their parent's: the parent is meant.
        roots = [name for name in found if not any(name.startswith(f"{other}.") for other in found)]
        if not roots:
            raise
        return _only(id, roots, "runs")


async def task_id(engine: Engine, id: str) -> str:
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


def _any(row: RunRow) -> bool:
    return True


async def ids_of(
    engine: Engine,
    *,
    status: Sequence[str] = (),
    workflow: str | None = None,
    since_ns: int | None = None,
    wanted: Callable[[RunRow], bool] = _any,
) -> list[str]:
    """The ids of all runs that match, oldest first; read in pages, however many there are."""
    found: list[str] = []
    before: int | None = None
    while True:
        asked = before

        def page(reads: Reads) -> list[RunRow]:
            return reads.runs(
                status=status,
                workflow=workflow,
                since_ns=since_ns,
                before_no=asked,  # noqa: B023
                limit=PAGE,
            )

        rows = await engine.read(page)
        found += [row.id for row in rows if wanted(row)]
        if len(rows) < PAGE:
            return found[::-1]
        before = rows[-1].no


async def rows_of(
    engine: Engine, limit: int, *, until_ns: int | None, state: Mapping[str, Any], **filters: Any
) -> tuple[list[dict[str, Any]], bool]:
    """The newest runs that match, as rows for people and programs, and whether there are more."""
    if state:
        listed = await engine.list(**filters, until_ns=until_ns, state=state, limit=limit + 1)
        return listed[:limit], len(listed) > limit
    found: list[RunRow] = []
    before: int | None = None
    while True:
        asked = before

        def page(reads: Reads) -> list[RunRow]:
            return reads.runs(before_no=asked, limit=PAGE, **filters)  # noqa: B023

        rows = await engine.read(page)
        found += [row for row in rows if until_ns is None or row.started_ns <= until_ns]
        if len(found) > limit or len(rows) < PAGE:
            return [list_row(row) for row in found[:limit]], len(found) > limit
        before = rows[-1].no
