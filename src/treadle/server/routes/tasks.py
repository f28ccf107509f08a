"""Human tasks: the inbox, and what people do with a task. The actor is whoever asks, never a field of the body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Query, Request

from treadle.kernel.errors import Forbidden
from treadle.runtime import tasks
from treadle.server import bodies, scope, shapes
from treadle.server.access import INBOX, TASK, VIEWER, may
from treadle.server.paging import cursor, position
from treadle.server.problems import RequestRefused
from treadle.server.routing import Routes, actor_of
from treadle.store.rows import TaskRow

from .runs import Limit, after, engine_of

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


routes = Routes()


@routes.answers("GET", "/tasks", INBOX, within=scope.by_itself, gives=shapes.Page[shapes.TaskShown])
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
        raise RequestRefused("INPUT_INVALID", f"{unknown[0]!r} is no status of a task", where="status")
    filters = {"role": role, "assignee": assignee, "status": words, "reference": reference, "run": run}
    after = position(cursor_, filters) or 0

    def page(reads: Reads) -> tuple[list[dict[str, Any]], int | None]:
        """Read until it is full: what somebody may not see is left out and leaves no gap."""
        seen: list[TaskRow] = []
        at = after
        while len(seen) <= limit:
            rows = reads.tasks(
                role=role,
                assignee=assignee,
                status=words,
                reference=reference,
                run=run,
                after_no=at,
                limit=limit + 1,
            )
            seen += [row for row in rows if _sees(request, row)]
            if len(rows) <= limit:
                break
            at = rows[-1].no
        last = seen[limit - 1].no if len(seen) > limit else None
        return [tasks.task_value(row, reads) for row in seen[:limit]], last

    items, last = await engine_of(request).read(page)
    return {"items": items, "next": None if last is None else cursor(filters, last)}


@routes.answers("GET", "/tasks/{id}", INBOX, within=scope.task, gives=shapes.TaskShown)
async def shown(request: Request, id: str) -> Any:
    """One task."""
    row = await engine_of(request).read(lambda reads: tasks.found(reads, id))
    if not _sees(request, row):
        raise Forbidden(f"the task {row.name} is for {', '.join(row.roles)}")
    return await engine_of(request).task(id)


def _sees(request: Request, row: TaskRow) -> bool:
    """Whether a task is there for whoever asks: those who look see all, others what is theirs."""
    actor = actor_of(request)
    theirs = row.assignee == actor.user or tasks.Actor(actor.user, actor.roles).holds(row)
    return scope.sees(request, row.workflow) and (theirs or may(actor.roles, VIEWER))


@routes.answers("POST", "/tasks/{id}/claim", TASK, within=scope.task, gives=shapes.TaskShown)
async def claim(request: Request, id: str, body: bodies.Nothing | None = None) -> Any:
    """Takes a task."""
    actor = actor_of(request)
    return await engine_of(request).task_claim(id, user=actor.user, roles=actor.roles)


@routes.answers("POST", "/tasks/{id}/release", TASK, within=scope.task, gives=shapes.TaskShown)
async def release(request: Request, id: str, body: bodies.Nothing | None = None) -> Any:
    """Gives a task back."""
    actor = actor_of(request)
    return await engine_of(request).task_release(id, user=actor.user, roles=actor.roles)


@routes.answers("POST", "/tasks/{id}/assign", TASK, within=scope.task, gives=shapes.TaskShown)
async def assign(request: Request, id: str, body: bodies.AssignBody) -> Any:
    """Gives a task to somebody."""
    actor = actor_of(request)
    return await engine_of(request).task_assign(id, to=body.to, user=actor.user, roles=actor.roles)


@routes.answers("POST", "/tasks/{id}/comment", TASK, within=scope.task, gives=shapes.TaskShown)
async def comment(request: Request, id: str, body: bodies.CommentBody) -> Any:
    """Adds a comment."""
    actor = actor_of(request)
    return await engine_of(request).task_comment(id, text=body.text, user=actor.user, roles=actor.roles)


@routes.answers("POST", "/tasks/{id}/complete", TASK, within=scope.task, gives=dict[str, Any])
async def complete(request: Request, id: str, body: bodies.CompleteBody) -> Any:
    """Answers a task; the run goes on. The run document comes back, for who may see it; for others where it stands."""
    engine, actor = engine_of(request), actor_of(request)
    answer = await engine.task_complete(
        id, body.data, user=actor.user, roles=actor.roles, expected_version=body.expected_version
    )
    if not may(actor.roles, VIEWER):
        return answer
    return {**await after(engine, answer["run"], answer), **answer}
