"""Requests to a server: a token, time-outs, another try where that is safe, problems as the errors they were.

A request that was never taken (no connection, a server that is full or leaving) is sent again, whatever it asks for.
One whose answer was lost is sent again only if the same twice is the same once (`again`): everything that looks, and
what carries a key of its own. Of any other the caller is told that it is not known what became of it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import httpx

from treadle.kernel.errors import ErrorClass, TreadleError, UnknownWorkflow
from treadle.lang.json_text import to_json

PREFIX: Final = "/api/v1"
PAGE: Final = 500
CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
# A server that has answered before may be restarted; one that never did is probably not there.
PATIENCE_S: Final = 20.0
FIRST_PATIENCE_S: Final = 1.0
# A stream says something every 15 seconds.
SILENCE_S: Final = 45.0
_PAUSE_S: Final = 0.2
_PAUSE_MAX_S: Final = 2.0
_LATER: Final = frozenset({429, 503})
# Raised before anything was sent.
_UNSENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class ServerAway(TreadleError):
    """The server cannot be reached, or does not answer. Look whether it runs, and at its address."""

    cls: ErrorClass = "transport"
    code = "SERVER_AWAY"


class AnswerUnknown(TreadleError):
    """The server went away before it answered: it may have done what was asked. Look before you ask again."""

    cls: ErrorClass = "transport"
    code = "ANSWER_UNKNOWN"


class Wire:
    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.has_token = token is not None
        self._patience_s = patience_s
        self._met = False
        sent = {"Accept": "application/json", **(headers or {})}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            base_url=self.url + PREFIX,
            headers=sent,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            transport=transport,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, **params: Any) -> Any:
        return value_of(await self.ask("GET", path, params=params, again=True))

    async def pages(self, path: str, asked: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Every item of a list, read page by page."""
        cursor: str | None = None
        while True:
            page = await self.get(path, **asked, limit=PAGE, cursor=cursor)
            for item in page["items"]:
                yield item
            cursor = page["next"]
            if cursor is None:
                return

    async def post(
        self,
        path: str,
        body: object = None,
        *,
        again: bool = False,
        headers: Mapping[str, str] | None = None,
        **params: Any,
    ) -> Any:
        return value_of(await self.ask("POST", path, body=body, params=params, again=again, headers=headers))

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, Any] | None = None,
        again: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = ANSWER_S,
    ) -> httpx.Response:
        """One request, sent as often as it may be; its answer, or the error that the server says."""
        content = None if body is None else to_json(body).encode()
        sent = dict(headers or {})
        if content is not None:
            sent["Content-Type"] = "application/json"
        tries = _Tries(self._patience)
        while True:
            try:
                answer = await self._http.request(
                    method,
                    path,
                    content=content,
                    params=_query(params or {}),
                    headers=sent,
                    timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
                )
            except httpx.HTTPError as error:
                if not again and not isinstance(error, _UNSENT):
                    raise AnswerUnknown(
                        f"{self.url} went away before it answered: it may have done what was asked. "
                        "Look before you ask again"
                    ) from error
                await tries.pause(self._away(), error)
                continue
            self._met = True
            if answer.status_code in _LATER:
                await tries.pause(problem_of(answer))
                continue
            if answer.is_error or answer.is_redirect:
                raise problem_of(answer)
            return answer

    async def stream(self, path: str, after: int, **params: Any) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events from a number on, until the server says `end`; a cut one goes on where it was."""
        tries = _Tries(self._patience)
        while True:
            heard = after
            cut: BaseException | None = None
            try:
                async for kind, event in self._frames(path, after, params):
                    if kind == "end":
                        return
                    after = int(event["seq"])
                    yield event
            except httpx.HTTPError as error:
                cut = error
            if after > heard:
                tries = _Tries(self._patience)
            await tries.pause(self._away(), cut)

    async def _frames(
        self, path: str, after: int, params: Mapping[str, Any]
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        async with self._http.stream(
            "GET", path, params=_query(params), headers=headers, timeout=timeout
        ) as answer:
            if answer.is_error:
                await answer.aread()
                raise problem_of(answer)
            self._met = True
            kind, data = "", ""
            async for line in answer.aiter_lines():
                name, _, text = line.partition(":")
                if name == "event":
                    kind = text.strip()
                elif name == "data":
                    data += text.strip()
                elif not line and data:
                    yield kind, json.loads(data)
                    kind, data = "", ""

    @property
    def _patience(self) -> float:
        return self._patience_s if self._met else min(FIRST_PATIENCE_S, self._patience_s)

    def _away(self) -> ServerAway:
        what = "does not answer any more" if self._met else "cannot be reached"
        return ServerAway(f"{self.url} {what}. Look whether the server runs, and at its address")


class _Tries:
    """How long, and how often, something is tried again."""

    def __init__(self, patience_s: float) -> None:
        self._until = time.monotonic() + patience_s
        self._pause_s = _PAUSE_S

    async def pause(self, error: TreadleError, cause: BaseException | None = None) -> None:
        """Waits before the next try; raises the error if there is none."""
        if time.monotonic() + self._pause_s > self._until:
            raise error from cause
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


def _query(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.rstrip("_"): str(value).lower() if isinstance(value, bool) else value
        for name, value in params.items()
        if value not in (None, [], ())
    }


def value_of(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise _no_treadle(answer) from error


def problem_of(answer: httpx.Response) -> TreadleError:
    """The error that a problem document tells, of the class that has its code here."""
    try:
        said = answer.json()
        value = {
            "class": said["class"],
            "code": said["code"],
            "message": said["detail"],
            "where": said.get("where"),
            "details": said.get("details") or {},
        }
    except (ValueError, KeyError, TypeError):
        return _no_treadle(answer)
    if value["code"] == "DEFINITION_NOT_FOUND":
        # The address lacks it because nobody deployed it: what a store says.
        value |= {"class": UnknownWorkflow.cls, "code": UnknownWorkflow.code}
    return TreadleError.of_code(value)


def _no_treadle(answer: httpx.Response) -> TreadleError:
    return ServerAway(
        f"{answer.url.host} answered {answer.status_code}, and not as a Treadle server does; look at its address"
    )
