"""Who did what."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request

from treadle.access import trail
from treadle.server import shapes
from treadle.server.access import ADMIN
from treadle.server.paging import cursor, position
from treadle.server.routing import Routes
from treadle.server.times import instant_ns

from .runs import Limit, engine_of

routes = Routes()


@routes.answers("GET", "/audit", ADMIN, gives=shapes.Page[shapes.AuditShown])
async def listed(
    request: Request,
    user: str | None = None,
    action: str | None = None,
    target: str | None = None,
    token: str | None = None,
    status: str | None = None,
    since: str | None = None,
    until: str | None = None,
    limit: Limit = 100,
    cursor_: Annotated[str | None, Query(alias="cursor")] = None,
) -> Any:
    """Changes and refusals, newest first; `action` is one (`run.signal`) or a family (`run`)."""
    engine = engine_of(request)
    now_ns = engine.clock.now_ns()
    filters: dict[str, Any] = {
        "user": user,
        "action": action,
        "target": target,
        "token": token,
        "status": status,
    }
    bound = {**filters, "since": since, "until": until}
    asked = {
        **filters,
        "since_ns": instant_ns(since, "since", now_ns),
        "until_ns": instant_ns(until, "until", now_ns),
        "before_no": position(cursor_, bound),
        "limit": limit + 1,
    }
    rows, numbers = await engine.read(lambda reads: trail.rows(reads, **asked))
    more = cursor(bound, numbers[limit - 1]) if len(rows) > limit else None
    return {"items": rows[:limit], "next": more}
