"""Bulk work: one action on all runs that a filter finds, done by whichever server is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.responses import Response

from treadle.kernel.model import STATUSES
from treadle.runtime import bulks
from treadle.server import bodies, scope, shapes
from treadle.server.access import OPERATOR, VIEWER
from treadle.server.problems import RequestRefused
from treadle.server.routing import JsonAnswer, Routes, actor_of
from treadle.server.times import instant_ns

from .runs import engine_of

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


routes = Routes()

SAMPLE: Final = 20
PAGE: Final = 500
_ARGUMENTS: Final[dict[str, type[bodies.Body]]] = {
    "retry": bodies.BulkRetry,
    "cancel": bodies.CancelBody,
    "signal": bodies.BulkSignal,
    "delete": bodies.Nothing,
}


@routes.answers(
    "POST", "/bulk", OPERATOR, within=scope.by_itself, status=202, also=(200,), gives=shapes.BulkAccepted
)
async def accept(request: Request, body: bodies.BulkAsked) -> Response:
    """Accepts one action on all runs that match now; with `dry_run` only says which."""
    arguments = _arguments(body)
    ids = await _matched(request, body.filter)
    if body.dry_run:
        return JsonAnswer({"matched": len(ids), "sample": ids[:SAMPLE]})
    actor = actor_of(request)
    row = await request.app.state.bulk.accept(
        body.action, ids, arguments, by=actor.user, scope=actor.workflow or ""
    )
    return JsonAnswer({"id": row["id"], "matched": row["matched"]}, 202)


@routes.answers("GET", "/bulk", VIEWER, within=scope.by_itself, gives=shapes.Page[shapes.BulkShown])
async def listed(request: Request) -> Any:
    """Bulk jobs of the last days, newest first."""
    rows = await engine_of(request).read(bulks.all_of)
    return {"items": [row.shown() for row in rows if _sees(request, row)], "next": None}


@routes.answers("GET", "/bulk/{id}", VIEWER, within=scope.by_itself, gives=shapes.BulkShown)
async def shown(request: Request, id: str) -> Any:
    """How far a job has come, and what failed."""
    return (await _found(request, id)).shown()


@routes.answers("DELETE", "/bulk/{id}", OPERATOR, within=scope.by_itself, gives=shapes.BulkShown)
async def stop(request: Request, id: str) -> Any:
    """Stops a job; what is done stays done."""
    await _found(request, id)
    return await engine_of(request).operate(bulks.KIND, {"op": "stop", "id": id})


def _arguments(body: bodies.BulkAsked) -> dict[str, Any]:
    """What the action takes, checked as its own route would."""
    try:
        asked = _ARGUMENTS[body.action].model_validate(body.arguments or {})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    found = asked.model_dump(by_alias=True, exclude_unset=True)
    if body.action == "retry":
        value = found.pop("value", None)
        if found.pop("skip", False):
            found["skip"] = value
        if len(found.keys() - {"budget"}) > 1:
            raise RequestRefused(
                "INPUT_INVALID", "give one of from, input, skip, fail, definition", where="arguments"
            )
    return found


async def _matched(request: Request, wanted: bodies.RunFilter) -> list[str]:
    """The runs that a filter finds now and that whoever asks may see, oldest first."""
    given = wanted.model_dump(exclude_unset=True)
    if not any(value not in (None, [], False) for value in given.values()):
        raise RequestRefused(
            "INPUT_INVALID", 'an empty filter means nothing; {"all": true} means all', where="filter"
        )
    words = [word for part in wanted.status or () for word in part.split(",") if word]
    if unknown := [word for word in words if word not in STATUSES]:
        raise RequestRefused("INPUT_INVALID", f"{unknown[0]!r} is no status", where="filter.status")
    engine = engine_of(request)
    now_ns = engine.clock.now_ns()
    asked: dict[str, Any] = {
        "status": words,
        "workflow": wanted.workflow,
        "reference": wanted.reference,
        "parent": wanted.parent,
        "search": wanted.search,
        "prefix": actor_of(request).workflow,
        "since_ns": instant_ns(wanted.since, "filter.since", now_ns),
        "until_ns": instant_ns(wanted.until, "filter.until", now_ns),
    }
    if wanted.ids is not None:
        return await engine.read(lambda reads: _named(request, reads, wanted.ids or [], words), long=True)
    return await engine.read(lambda reads: _all(reads, asked), long=True)


def _named(request: Request, reads: Reads, ids: list[str], statuses: list[str]) -> list[str]:
    """Those that are there; of others nothing is said, as everywhere."""
    rows = [row for id in dict.fromkeys(ids) if (row := reads.run(id)) is not None]
    return [
        row.id
        for row in rows
        if scope.sees(request, row.workflow) and (not statuses or row.status in statuses)
    ]


def _all(reads: Reads, asked: dict[str, Any]) -> list[str]:
    found: list[str] = []
    before: int | None = None
    while page := reads.runs(**asked, before_no=before, limit=PAGE):
        found += [row.id for row in page]
        before = page[-1].no
    return found[::-1]


async def _found(request: Request, id: str) -> bulks.BulkRow:
    row = await engine_of(request).read(lambda reads: bulks.find(reads, id))
    if not _sees(request, row):
        raise RequestRefused("BULK_NOT_FOUND", f"there is no bulk job {id!r}")
    return row


def _sees(request: Request, row: bulks.BulkRow) -> bool:
    limited = actor_of(request).workflow
    return limited is None or row.scope.startswith(limited)
