"""What an error looks like over HTTP: a problem document (RFC 9457), its status by the error's code.

A failure of the server itself shows an id that stands in the log, never the text of an exception.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from treadle.kernel.errors import ErrorClass, TreadleError
from treadle.lang.json_text import to_json

log = logging.getLogger("treadle.server")

MEDIA_TYPE: Final = "application/problem+json"
_BY_CODE: Final[dict[str, int]] = {
    "BAD_JSON": 400,
    "BAD_CURSOR": 400,
    "UNAUTHENTICATED": 401,
    "FORBIDDEN": 403,
    "HOST_REFUSED": 403,
    "ORIGIN_REFUSED": 403,
    "ROUTE_NOT_FOUND": 404,
    "RUN_NOT_FOUND": 404,
    "NO_SUCH_RECORD": 404,
    "TASK_NOT_FOUND": 404,
    "DEFINITION_NOT_FOUND": 404,
    "BLOB_MISSING": 404,
    "BULK_NOT_FOUND": 404,
    "METHOD": 405,
    "RUN_EXISTS": 409,
    "VERSION_TAKEN": 409,
    "VERSION_MISMATCH": 409,
    "RUN_ENDED": 409,
    "RUN_QUEUED": 409,
    "NOT_STALLED": 409,
    "RUN_NOT_ENDED": 409,
    "NOTHING_TO_RETRY": 409,
    "SCHEDULE_EXISTS": 409,
    "IDEMPOTENCY_REUSED": 409,
    "APPLY_BLOCKED": 409,
    "INTENT_NOT_OPEN": 409,
    "TASK_CLAIMED": 409,
    "WORKER_EXISTS": 409,
    "SERVER_LIVE": 409,
    "BODY_TOO_SLOW": 408,
    "BODY_TOO_LARGE": 413,
    "MEDIA_TYPE": 415,
    "VERSION_SKEW": 426,
    "RATE_LIMITED": 429,
    "QUEUE_FULL": 429,
    "STORE_BUSY": 503,
    "STORE_UNAVAILABLE": 503,
    "ENGINE_STOPPED": 503,
    "OWNER_AWAY": 503,
    "DRAINING": 503,
    "HOOK_UNAVAILABLE": 503,
    "ISSUER_UNAVAILABLE": 503,
    "STORE_FULL": 507,
}
TITLES: Final = {
    400: "Bad request",
    401: "Unauthenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    413: "Body too large",
    415: "Unsupported media type",
    422: "Cannot be processed",
    426: "Upgrade required",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
    507: "No room left",
}


class RequestRefused(TreadleError):
    """A request that the server itself refuses."""

    def __init__(
        self, code: str, message: str, *, cls: ErrorClass = "user", where: str | None = None
    ) -> None:
        super().__init__(message, where=where)
        self.code = code
        self.cls = cls


def status_of(error: TreadleError) -> int:
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    if error.code.endswith("_NOT_FOUND"):
        return 404
    if error.cls == "authorization":
        return 403
    return 422 if error.cls in ("user", "definition", "expression") else 500


def problem(error: TreadleError) -> Response:
    status = status_of(error)
    if status == 500:
        return failure(error)
    document: dict[str, Any] = {
        "type": f"/docs/errors/{error.code}",
        "title": TITLES.get(status, "Error"),
        "status": status,
        "detail": error.message,
        "class": error.cls,
        "code": error.code,
        "where": error.where,
        "details": error.details,
    }
    if problems := error.details.get("problems"):
        document["problems"] = problems
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = "1"
    if status == 408:
        headers["Connection"] = "close"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(to_json(document), status, headers, MEDIA_TYPE)


def invalid(error: RequestValidationError) -> Response:
    """What was sent does not have the form that it should have: the first thing that is wrong."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    unknown = first["type"] == "extra_forbidden"
    text = f"{where}: there is no such field" if unknown else f"{where or 'body'}: {first['msg']}"
    return problem(RequestRefused("INPUT_INVALID", text, where=where or None))


def failure(error: BaseException) -> Response:
    """A bug of ours, or a store that is damaged."""
    id = secrets.token_hex(8)
    log.error("request failed, id %s", id, exc_info=error)
    document = {
        "type": "/docs/errors/INTERNAL",
        "title": TITLES[500],
        "status": 500,
        "detail": f"the server failed; its log has the reason under the id {id}",
        "class": "internal",
        "code": "INTERNAL",
        "where": None,
        "details": {"id": id},
    }
    return Response(to_json(document), 500, None, MEDIA_TYPE)


def wrong_method(taken: Sequence[str]) -> Response:
    """An address is there, but takes other methods."""
    answer = problem(RequestRefused("METHOD", f"this address takes {', '.join(taken)}"))
    answer.headers["Allow"] = ", ".join(taken)
    return answer


def install(app: FastAPI, methods_at: Callable[[str], Sequence[str]]) -> None:
    async def ours(_: Request, error: Exception) -> Response:
        assert isinstance(error, TreadleError)
        return problem(error)

    async def unfit(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return invalid(error)

    async def missing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if taken := methods_at(request.scope["path"]):
            return wrong_method(taken)
        return problem(RequestRefused("ROUTE_NOT_FOUND", "there is nothing at this address; see /docs"))

    async def broken(_: Request, error: Exception) -> Response:
        return failure(error)

    app.add_exception_handler(TreadleError, ours)
    app.add_exception_handler(RequestValidationError, unfit)
    app.add_exception_handler(HTTPException, missing)
    app.add_exception_handler(Exception, broken)
