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
    async def open(cls, reader: asyncio.StreamReader | None = None) -> ReadPipe:
        read_fd, write_fd = os.pipe()
        end = os.fdopen(read_fd, "rb", 0)
        reader = reader or asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, end)
        except BaseException:
            end.close()
            os.close(write_fd)
            raise
        return cls(reader, transport, write_fd)

    @classmethod
    async def pair(cls, reader: asyncio.StreamReader | None = None) -> tuple[ReadPipe, ReadPipe]:
        """Both or none: when descriptors run out, the first, which is read by `reader`, must not be lost."""
        first = await cls.open(reader)
        try:
            return first, await cls.open()
        except BaseException:
            first.close()
            raise

    def started(self) -> None:
        """The child has its copy of the writing end (or never will): ours is closed."""
        if not self._given:
            self._given = True
            os.close(self.fd)

    def close(self) -> None:
        self.started()
        self._transport.close()
