"""Pipes from a child process that belong to us, not to asyncio's process object.

`Process.wait()` of a process with asyncio's own pipes returns only when every pipe is closed, and a
grandchild that inherited one can keep it open for ever. With pipes of our own, a process is over when
it is over.
"""

from __future__ import annotations

import asyncio
import os


class _Counting(asyncio.StreamReaderProtocol):
    """Knows how much has come, so that a reader can tell whether anything is left."""

    received = 0

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)


class ReadPipe:
    """Hand `fd` to the child, call `started`, then read."""

    def __init__(
        self, reader: asyncio.StreamReader, protocol: _Counting, transport: asyncio.ReadTransport, fd: int
    ) -> None:
        self.reader = reader
        self.fd = fd
        self._protocol = protocol
        self._transport = transport
        self._given = False

    @classmethod
    async def open(cls) -> ReadPipe:
        read_fd, write_fd = os.pipe()
        end = os.fdopen(read_fd, "rb", 0)
        reader = asyncio.StreamReader()
        protocol = _Counting(reader)
        try:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, end)
        except BaseException:
            end.close()
            os.close(write_fd)
            raise
        return cls(reader, protocol, transport, write_fd)

    @classmethod
    async def pair(cls) -> tuple[ReadPipe, ReadPipe]:
        """Both or none: when descriptors run out, the first must not be the one that is lost."""
        first = await cls.open()
        try:
            return first, await cls.open()
        except BaseException:
            first.close()
            raise

    @property
    def received(self) -> int:
        """How many bytes have come in all."""
        return self._protocol.received

    def started(self) -> None:
        """The child has its copy of the writing end (or never will): ours is closed."""
        if not self._given:
            self._given = True
            os.close(self.fd)

    def close(self) -> None:
        self.started()
        self._transport.close()
