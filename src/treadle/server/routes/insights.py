"""Many runs at once, for who keeps an eye on all of them: how many began when, and what the newest have in common.

Numbers over time are counted where the rows are. What needs documents and journals is read from a sample of the
newest runs, which the answer names: a look at the overview costs the same however many runs there are.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Query, Request

from treadle.kernel.errors import RunNotFound
from treadle.lang.duration import instant_text
from treadle.runtime import document
from treadle.server import scope, shapes
from treadle.server.access import VIEWER
from treadle.server.routing import Routes, actor_of
from treadle.server.times import instant_ns
from treadle.store.run_rows import RunRow
from treadle.views import insights
from treadle.views.trace import intents

from .runs import engine_of

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


routes = Routes()

_S: Final = 1_000_000_000
# Stretches that people count in; the first that gives no more than STRETCHES_MAX of them is used.
_WIDTHS_S: Final = (
    1,
    5,
    10,
    30,
    60,
    300,
    900,
    1800,
    3600,
    10_800,
    21_600,
    43_200,
    86_400,
    604_800,
    2_592_000,
)
STRETCHES_MAX: Final = 60
FAILED_MAX: Final = 1000
SAMPLE_MAX: Final = 50
_RECORDS_MAX: Final = 200
Since = Annotated[str, Query(description="an instant, or a duration ago")]


@routes.answers("GET", "/stats/history", VIEWER, within=scope.by_itself, gives=shapes.RunHistory)
async def history(request: Request, since: Since = "24h", workflow: str | None = None) -> Any:
    """How many runs began in each stretch of time, by workflow and by what became of them."""
    engine = engine_of(request)
    now_ns = engine.clock.now_ns()
    asked_ns = max(0, instant_ns(since, "since", now_ns) or 0)
    whole_s = max(1, (now_ns - asked_ns) // _S)
    width_s = next(
        (width for width in _WIDTHS_S if whole_s / width <= STRETCHES_MAX), whole_s // STRETCHES_MAX
    )
    # From a round instant on, so that a stretch stays the same while it is watched.
    begin_ns = asked_ns // (width_s * _S) * width_s * _S
    prefix = actor_of(request).workflow
    rows = await engine.read(
        lambda reads: reads.run_history(begin_ns, width_s * _S, workflow=workflow, prefix=prefix)
    )
    items = [
        {
            "at": instant_text(begin_ns + row.stretch * width_s * _S),
            "workflow": row.workflow,
            "status": row.status,
            "count": row.runs,
            "mean_ms": None if row.took_ns is None else round(row.took_ns / 1e6, 3),
        }
        for row in rows
    ]
    return {
        "since": instant_text(begin_ns),
        "until": instant_text(now_ns),
        "width_s": width_s,
        "items": items,
    }


@routes.answers("GET", "/stats/insights", VIEWER, within=scope.by_itself, gives=shapes.Insights)
async def common(request: Request, since: Since = "24h") -> Any:
    """Why runs failed, what they wait for, which steps are slow and what models cost, among the newest of them."""
    engine = engine_of(request)
    asked: dict[str, Any] = {
        "since_ns": instant_ns(since, "since", engine.clock.now_ns()),
        "prefix": actor_of(request).workflow,
    }

    def rows(reads: Reads) -> tuple[list[RunRow], list[RunRow], list[RunRow]]:
        failed = reads.runs(status=("failed", "stalled"), limit=FAILED_MAX, **asked)
        # What waits is of interest whenever it began.
        waiting = reads.runs(status=("waiting", "stalled"), prefix=asked["prefix"], limit=SAMPLE_MAX)
        return failed, waiting, reads.runs(limit=SAMPLE_MAX, **asked)

    failed, waiting, newest = await engine.read(rows)
    shown = {row.id: document.list_row(row) for row in (*waiting, *newest)}
    documents: dict[str, dict[str, Any]] = {}
    traced: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    recent = {row.id for row in newest}
    for id, row in shown.items():
        with suppress(RunNotFound):  # it was collected meanwhile
            run = await engine.run(id)
            documents[id] = await run.show()
            if id in recent:
                traced.append((row, intents(await run.journal(limit=_RECORDS_MAX))))
    return {
        "failures": insights.failures(document.list_row(row) for row in failed),
        "waits": insights.waits(documents[row.id] for row in waiting if row.id in documents),
        "steps": insights.slowest(traced),
        "costs": insights.costs(documents[row.id] for row in newest if row.id in documents),
        "sampled": {"failed": len(failed), "waiting": len(waiting), "runs": len(newest)},
    }


@routes.answers("GET", "/runs/{id}/steps", VIEWER, within=scope.run, gives=shapes.Steps)
async def steps(request: Request, id: str) -> Any:
    """What a run asked of the outside, whatever its dialect: when, and how that ended."""
    return {"items": intents(await (await engine_of(request).run(id)).journal())}
