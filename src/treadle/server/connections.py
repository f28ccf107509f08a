"""Connections that cannot be held for ever: clients that send or read slowly, and too many of them.

Uvicorn waits without end for the head of a request, and for a reader that does not read. Here each has its time, and
beyond so many connections a new one is closed at once. Bodies have their own time (`routing.read_bytes`), because a
large one may take longer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


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


class BoundedConnection(H11Protocol):
    patience = ClientPatience()

    def __init__(self, *positional: Any, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._head: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None

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
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._have_head()
        else:
            self._await_head()

    def on_response_complete(self) -> None:
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
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
