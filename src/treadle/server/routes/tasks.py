"""Human tasks: the inbox, and what people do with a task. The actor is whoever asks, never a field of the body."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request

from treadle.runtime import tasks
from treadle.server import bodies
from treadle.server.access import TASK
from treadle.server.paging import cursor, position
from treadle.server.problems import Refused
from treadle.server.routing import Routes, actor_of
from treadle.store.protocol import Reads

from .runs import Limit, engine_of

routes = Routes()


@routes.answers("GET", "/tasks", TASK)
async def listed(
    request: Request,
    role: str | None = None,
    assignee: str | None = None,
    status: Annotated[list[str] | None, Query()] = None,
    reference: str | None = None,
    run: str | None = None,
    limit: Limit = 100,
    cursor_: Annotated[str | None, Query(alias="cursor")] = None,
) -> Any:
    """The inbox: open and claimed tasks, unless another status is asked for."""
    words = [word for part in status or () for word in part.split(",") if word] or list(tasks.OPEN)
    if unknown := [word for word in words if word not in tasks.STATUSES]:
        raise Refused("INPUT_INVALID", f"{unknown[0]!r} is no status of a task", where="status")
    filters = {"role": role, "assignee": assignee, "status": words, "reference": reference, "run": run}
    after = position(cursor_, filters) or 0

    def page(reads: Reads) -> tuple[list[dict[str, Any]], int | None]:
        rows = reads.tasks(
            role=role,
            assignee=assignee,
            status=words,
            reference=reference,
            run=run,
            after_no=after,
            limit=limit + 1,
        )
        last = rows[limit - 1].no if len(rows) > limit else None
        return [tasks.task_value(row, reads) for row in rows[:limit]], last

    items, last = await engine_of(request).read(page)
    return {"items": items, "next": None if last is None else cursor(filters, last)}


@routes.answers("GET", "/tasks/{id}", TASK)
async def shown(request: Request, id: str) -> Any:
    """One task."""
    return await engine_of(request).task(id)


@routes.answers("POST", "/tasks/{id}/claim", TASK)
async def claim(request: Request, id: str, body: bodies.Nothing | None = None) -> Any:
    """Takes a task."""
    actor = actor_of(request)
    return await engine_of(request).task_claim(id, user=actor.user, roles=actor.roles)


@routes.answers("POST", "/tasks/{id}/release", TASK)
async def release(request: Request, id: str, body: bodies.Nothing | None = None) -> Any:
    """Gives a task back."""
    actor = actor_of(request)
    return await engine_of(request).task_release(id, user=actor.user, roles=actor.roles)


@routes.answers("POST", "/tasks/{id}/assign", TASK)
async def assign(request: Request, id: str, body: bodies.Assign) -> Any:
    """Gives a task to somebody."""
    actor = actor_of(request)
    return await engine_of(request).task_assign(id, to=body.to, user=actor.user, roles=actor.roles)


@routes.answers("POST", "/tasks/{id}/comment", TASK)
async def comment(request: Request, id: str, body: bodies.Comment) -> Any:
    """Adds a comment."""
    actor = actor_of(request)
    return await engine_of(request).task_comment(id, text=body.text, user=actor.user, roles=actor.roles)


@routes.answers("POST", "/tasks/{id}/complete", TASK)
async def complete(request: Request, id: str, body: bodies.Complete) -> Any:
    """Answers a task; the run goes on."""
    actor = actor_of(request)
    return await engine_of(request).task_complete(
        id, body.data, user=actor.user, roles=actor.roles, expected_version=body.expected_version
    )
