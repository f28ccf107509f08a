"""Pipes from a child process that belong to us, not to asyncio's process object.

`Process.wait()` of a process with asyncio's own pipes returns only when every pipe is closed, and a
grandchild that inherited one can keep it open for ever. With pipes of our own, a process is over when
it is over.
"""

from __future__ import annotations

import asyncio
import os


class ReadPipe:
    """Hand `fd` to the child, call `started`, then read."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport, fd: int) -> None:
        self.reader = reader
        self.fd = fd
        self._transport = transport
        self._given = False

    @classmethod
    async def open(cls) -> ReadPipe:
        read_fd, write_fd = os.pipe()
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", 0)
        )
        return cls(reader, transport, write_fd)

    def started(self) -> None:
        """The child has its copy of the writing end (or never will): ours is closed."""
        if not self._given:
            self._given = True
            os.close(self.fd)

    def close(self) -> None:
        self.started()
        self._transport.close()
