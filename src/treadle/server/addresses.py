"""From an address straight to its route, by the words of its path.

The framework tries the pattern of every route in turn, and does so twice. Here the first word of a path leads to the few
routes that begin with it. Whatever is not found so (another method, a slash too many, a file of the console) is the
framework's to answer, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.kernel.errors import TreadleError

from .problems import invalid, problem
from .routing import Route, Routes


class _Way(NamedTuple):
    """A path in its parts: words that it has, names of segments that may be anything; and where it leads."""

    words: tuple[tuple[int, str], ...]
    names: tuple[tuple[int, str], ...]
    route: Route


class Addresses:
    """The routes of the API by method, length of the path and first word, in the order in which they were made."""

    def __init__(self, parts: Iterable[tuple[str, Routes]]) -> None:
        self._ways: dict[tuple[str, int, str], list[_Way]] = {}
        for prefix, routes in parts:
            for route in routes.routes:
                assert isinstance(route, Route), "routes are made with Routes.answers"
                self._add(f"{prefix}{route.path_format}".split("/"), route)

    def _add(self, segments: list[str], route: Route) -> None:
        words = tuple((at, word) for at, word in enumerate(segments) if not word.startswith("{"))
        names = tuple((at, word[1:-1]) for at, word in enumerate(segments) if word.startswith("{"))
        for method in route.methods or ():
            self._ways.setdefault((method, *_begins(segments)), []).append(_Way(words, names, route))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route of a path as it came, and what its segments say, decoded."""
        segments = path.split("/")
        for way in self._ways.get((method, *_begins(segments)), ()):
            if all(segments[at] == word for at, word in way.words) and all(
                segments[at] for at, _ in way.names
            ):
                return way.route, {name: unquote(segments[at], errors="strict") for at, name in way.names}
        return None


def _begins(segments: list[str]) -> tuple[int, str]:
    """How long a path is, and the word that its routes begin with: the one after `/api/v1`, where that stands."""
    return len(segments), segments[3] if len(segments) > 3 else segments[-1]


class Straight:
    """Takes requests to their routes; what is no route of ours goes on to the framework."""

    def __init__(self, app: ASGIApp, addresses: Addresses) -> None:
        self._app = app
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = None
        if scope["type"] == "http" and not scope.get("root_path"):
            found = self._addresses.find(scope["method"], scope["path"])
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["route"], scope["path_params"] = found
        request = Request(scope, receive, send)
        try:
            answer = await found[0].answer(request)
        except TreadleError as error:
            answer = problem(error)
        except RequestValidationError as error:
            answer = invalid(error)
        await answer(scope, receive, send)
