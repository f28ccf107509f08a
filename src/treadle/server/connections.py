"""Connections that cannot be held for ever: clients that send or read slowly, and too many of them.

Uvicorn waits without end for the head of a request, however long that is, and for a reader that does not read. Here
each has its time, a head its size, and beyond so many connections a new one is closed at once. Bodies have their own time
(`routing.read_bytes`), because a large one may take longer. Requests are taken apart by `httptools`, which is compiled:
in Python that would be a third of what a small request costs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


@dataclass(frozen=True, slots=True)
class ClientPatience:
    # How long the head of a request may take.
    head_s: float = 10
    # How long a body may take; a large one gets another second for each MiB that has come.
    body_s: float = 30
    # How long a reader may not read.
    reader_s: float = 30
    connections: int = 5_000


# Whoever is refused in the middle of a body gets the answer before the connection goes.
LINGER_S: Final = 2.0
# What may come before it amounts to anything: the head of a request, the head of a chunk, what follows the last one.
LOOSE_BYTES_MAX: Final = 64 * 1024


class BoundedConnection(HttpToolsProtocol):
    patience = ClientPatience()

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._head: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None
        # Bytes that have come since something was last whole.
        self._loose = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as Uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self.patience.connections:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_head()
        self._have_reader()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._loose += len(data)
        super().data_received(data)
        if self._loose > LOOSE_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response("Invalid HTTP request received.")
        elif self.cycle is not None and not self.cycle.response_complete:
            self._have_head()
        else:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._loose = 0
        if self.parser.get_http_version() == "1.1" and sum(name == b"host" for name, _ in self.headers) != 1:
            raise ValueError("a request names its host once")  # which is answered with 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose = 0
        super().on_body(body)

    def on_chunk_header(self) -> None:
        self._loose = 0

    def on_message_complete(self) -> None:
        self._loose = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline and self.cycle.more_body and not self.transport.is_closing():
            # Answered before its body was read to the end: the rest is of no use to anybody.
            self.loop.call_later(LINGER_S, self.transport.abort)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader is None:
            self._reader = self.loop.call_later(self.patience.reader_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._have_reader()
        super().resume_writing()

    def _await_head(self) -> None:
        if self._head is None and not self.transport.is_closing():
            self._head = self.loop.call_later(self.patience.head_s, self.transport.abort)

    def _have_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _have_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None


def bounded(patience: ClientPatience) -> type[BoundedConnection]:
    """The connections of a server that has so much patience."""
    return type("PatientConnection", (BoundedConnection,), {"patience": patience})
