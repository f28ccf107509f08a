"""What providers behind an SDK share: a key that is asked for late, one client, its end.

When a key was refused, the next request asks for it anew, so that one that was exchanged needs no
restart. Requests that are under way with the old one may finish.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from treadle.performers.agent.api import ProviderError
from treadle.secrets.logs import cover

from .prompt import said_by, status_error, stream_error

TIMEOUT_S: Final = 600.0


class Client(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Client)


class Response(Protocol):
    @property
    def headers(self) -> Mapping[str, str]: ...

    async def aread(self) -> bytes: ...


async def whole_answer(response: Response) -> dict[str, Any] | None:
    """An answer that came as one document, though a stream was asked for: small servers and gateways know
    no other. None if it is a stream."""
    if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        return None
    body = await response.aread()
    if not body.lstrip().startswith(b"{"):
        return None
    document: dict[str, Any] = json.loads(body)
    if document.get("error"):
        raise stream_error(document, "it gave no reason", response.headers)
    return document


class RemoteModel(ABC, Generic[C]):
    """A provider whose client is made with the first request that needs it."""

    key_name: ClassVar[str]
    default_model: str | None = None
    small_model: str | None = None
    keeps_history = True

    def __init__(
        self,
        key: Callable[[str], Awaitable[str | None]],
        *,
        model: str | None = None,
        base_url: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._key = key
        self._base_url = base_url
        self._timeout_s = timeout_s
        self._clients: dict[str, C] = {}
        self._current: str | None = None
        self.default_model = model or self.default_model

    @abstractmethod
    def _make(self, key: str) -> C:
        """A client of the SDK, without retries of its own: those are the engine's business."""

    async def _connected(self) -> C:
        if self._current is None:
            key = await self._key(self.key_name)
            if not key:
                raise ProviderError(
                    f"there is no {self.key_name}; set it, or `treadle secret set {self.key_name}`",
                    code="PROVIDER_AUTH",
                )
            if key not in self._clients:
                self._clients[key] = self._make(key)
                cover()
            self._current = key
        return self._clients[self._current]

    def _refused(self, status: int, body: object, message: str, headers: Mapping[str, str]) -> ProviderError:
        if status == 401:
            self._current = None
        return status_error(status, said_by(body, message), headers)

    async def close(self) -> None:
        clients, self._clients, self._current = self._clients, {}, None
        for client in clients.values():
            await client.close()
