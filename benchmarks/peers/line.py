"""A client of HTTP/1.1 in few lines, the same for every server that is asked, so that servers are measured."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Lines:
    """Connections to one server that are kept and used again; more are opened when all are in use."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(sent)}\r\n"
        if sent:
            head += "Content-Type: application/json\r\n"
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(head.encode() + b"\r\n" + sent)
        status, got = await _answer(reader)
        self._free.append((reader, writer))
        if not 200 <= status < 300:
            raise RuntimeError(f"{method} {path}: {status} {got[:300]!r}")
        return json.loads(got) if got else None

    def close(self) -> None:
        for _, writer in self._free:
            writer.close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head[1:] if b": " in line)
    if b"chunked" not in fields.get(b"transfer-encoding", b""):
        return int(head[0].split()[1]), await reader.readexactly(int(fields.get(b"content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return int(head[0].split()[1]), body
