"""How a route is made: its role, its strict body, its path taken apart before it is decoded.

An id may hold a slash. So a path is split as it came, percent-encoded, and each segment is decoded by itself.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.host.acting import Origin, acting
from treadle.kernel.errors import ValueRefused
from treadle.kernel.values import decode
from treadle.lang.json_text import NotJson, from_json, to_json

from .access import BLOBS, INBOX, TASK, VIEWER, WORKER, Caller
from .once import AnswersOnce, key_of
from .problems import RequestRefused, problem
from .reading import NOTHING, Arguments

Handler = Callable[..., Awaitable[Any]]
B = TypeVar("B", bound=BaseModel)

# Looks whether a request stays within what its token is limited to (`scope.py`).
Within = Callable[[Request], Awaitable[None]]

BODY_MAX: Final = 16 * 1024 * 1024
# A large body may take longer, as long as it comes this quickly.
_SLOWEST_BYTES_S: Final = 1024 * 1024
# Says in OpenAPI that a query may have any name.
_ANY_QUERY: Final = "x-any-query"
# Roles of two kinds, as OpenAPI spells them.
_ALSO: Final = {BLOBS: (VIEWER, WORKER), INBOX: (VIEWER, TASK)}


class Segment(Convertor[str]):
    """One segment of a path as it came, decoded."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="strict")

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("segment", Segment())


class JsonAnswer(JSONResponse):
    """A JSON answer; whatever our values hold has a form."""

    def render(self, content: Any) -> bytes:
        return to_json(content).encode()


class RawPaths:
    """Routes see the path as it came, so that `%2F` in an id does not part it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            path = scope["raw_path"].partition(b"?")[0].decode("latin-1")
            if not _is_text(path):
                refused = RequestRefused("ROUTE_NOT_FOUND", "the address is not UTF-8; nothing is there")
                await problem(refused)(scope, receive, send)
                return
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)


def _is_text(path: str) -> bool:
    try:
        unquote(path, errors="strict")
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Described:
    """What the description of the API says of a route, beside what its function's signature says."""

    # A body that the route reads by itself: its shape, or its media type.
    takes: type[BaseModel] | str | None = None
    # Other forms of the answer than JSON, and whether JSON is one.
    media: tuple[str, ...] = ()
    json: bool = True
    # Refusals that other routes like it do not have.
    refuses: tuple[int, ...] = ()
    # Whether a query may say anything.
    any_query: bool = False


class Route(APIRoute):
    """A route that names the role it needs; one that does not cannot be made."""

    @property
    def role(self) -> str:
        extra = self.openapi_extra or {}
        if "x-role" not in extra:
            raise TypeError(f"the route {self.path} names no role; make it with Routes.answers")
        spelled = (extra["x-role"], extra.get("x-also"))
        return next((role for role, also in _ALSO.items() if also == spelled), extra["x-role"])

    @property
    def query_names(self) -> frozenset[str]:
        return self._arguments.query_names

    @functools.cached_property
    def _arguments(self) -> Arguments:
        return Arguments(self.dependant)

    @functools.cached_property
    def _judged(self) -> tuple[str, str, bool]:
        """Its name in logs and figures, the role it needs, and whether a query may say anything."""
        # Frameworks differ in whether a route knows where it was put.
        name = self.path_format.removeprefix("/api/v1")
        return name, self.role, bool((self.openapi_extra or {}).get(_ANY_QUERY))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        _ = self._judged, self._arguments  # what is wrong with a route is said when it is made
        return self.answer

    async def answer(self, request: Request) -> Response:
        """One request, from who asks to what they are told."""
        name, role, any_query = self._judged
        state = request.state
        state.route = name
        actor = state.actor = await request.app.state.access.judge(request, role)
        if not any_query and request.scope["query_string"]:
            self._check_query(request)
        raw, body = (b"", NOTHING) if self.body_field is None else await _read(request)

        async def handle(request: Request) -> Response:
            found: Response = await self.endpoint(request, **self._arguments.of(request, body))
            return found

        with acting(_origin(request, actor)):
            if (key := key_of(request)) is None:
                return await handle(request)
            once: AnswersOnce = request.app.state.once
            return await once.answer(request, actor, key, raw, handle)

    def _check_query(self, request: Request) -> None:
        """A name that means nothing here is a mistake, and would change nothing without a word."""
        for name in request.query_params:
            if name not in self.query_names:
                raise RequestRefused("INPUT_INVALID", f"{name}: there is no such parameter", where=name)


def _origin(request: Request, actor: Caller) -> Origin:
    return Origin(actor.user, actor.token, request.app.state.member.name, request.state.request_id)


async def read_bytes(request: Request, limit: int) -> bytes:
    """A body, bounded while it comes."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise RequestRefused("BODY_TOO_LARGE", f"a body may have {limit} bytes")
    kept = bytearray()
    patience: float = request.app.state.patience.body_s
    try:
        async with asyncio.timeout(patience) as time:
            began = asyncio.get_running_loop().time()
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                kept += message.get("body", b"")
                if len(kept) > limit:
                    raise RequestRefused("BODY_TOO_LARGE", f"a body may have {limit} bytes")
                if not message.get("more_body", False):
                    break
                time.reschedule(began + patience + len(kept) / _SLOWEST_BYTES_S)
    except TimeoutError as error:
        raise RequestRefused("BODY_TOO_SLOW", "the body did not come in time; send it again") from error
    return bytes(kept)


async def told(request: Request, shape: type[B]) -> B:
    """What a worker says, as JSON or as CBOR."""
    body = await read_bytes(request, request.app.state.body_max)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if media == "application/cbor":
            value = decode(body)
        elif media == "application/json":
            value = from_json(body)
        else:
            raise RequestRefused("MEDIA_TYPE", "a body is application/json or application/cbor")
    except NotJson as error:
        raise RequestRefused("BAD_JSON", f"the body cannot be read: {error}") from error
    except ValueRefused as error:
        raise RequestRefused("BAD_JSON", f"the body cannot be read: {error.message}") from error
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


async def _read(request: Request) -> tuple[bytes, object]:
    """A JSON body, and what it says."""
    kept = await read_bytes(request, request.app.state.body_max)
    if not kept:
        return kept, NOTHING
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestRefused("MEDIA_TYPE", "a body is application/json")
    try:
        return kept, from_json(kept)
    except NotJson as error:
        raise RequestRefused("BAD_JSON", f"the body cannot be read: {error}") from error


async def _stay_within(request: Request, within: Within | None) -> None:
    if within is None:
        limited = actor_of(request).workflow
        raise RequestRefused(
            "FORBIDDEN",
            f"this token is limited to workflows that begin with {limited!r}, and this is about all",
            cls="authorization",
        )
    await within(request)


def actor_of(request: Request) -> Caller:
    found: Caller = request.state.actor
    return found


class Routes(APIRouter):
    """A router whose routes all name their role."""

    def __init__(self) -> None:
        super().__init__(route_class=Route, default_response_class=JsonAnswer)
        # By method and path.
        self.told: dict[tuple[str, str], Described] = {}

    def answers(
        self,
        method: str,
        path: str,
        role: str,
        *,
        within: Within | None = None,
        status: int = 200,
        gives: Any = Any,
        also: Sequence[int] = (),
        told: Described | None = None,
    ) -> Callable[[Handler], Handler]:
        """Adds a route. What its function returns is the document, of the shape that it `gives`, under its `status`
        (some answer the same under others `also`), unless it makes an answer of its own.
        A token that is limited to some workflows is refused where nothing says how that limits the route."""
        other = _ALSO.get(role)
        extra: dict[str, Any] = (
            {"x-role": role} if other is None else {"x-role": other[0], "x-also": other[1]}
        )
        told = told or Described()
        if told.any_query:
            extra[_ANY_QUERY] = True
        self.told[method, path] = told

        def add(handler: Handler) -> Handler:
            @functools.wraps(handler)
            async def answered(request: Request, **named: Any) -> Response:
                if actor_of(request).workflow is not None:
                    await _stay_within(request, within)
                found = await handler(request, **named)
                return found if isinstance(found, Response) else JsonAnswer(found, status)

            self.add_api_route(
                path.replace("}", ":segment}"),
                answered,
                methods=[method],
                status_code=status,
                openapi_extra=extra,
                response_model=gives,
                responses={other: {"model": gives} for other in also},
            )
            return handler

        return add
