"""An answer is sent at once: none waits for a client's delayed acknowledgement."""

from __future__ import annotations

import asyncio
import socket

import pytest

from treadle.server.serving import Options, listening


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_what_is_accepted_sends_without_delay(host: str) -> None:
    try:
        found = listening(Options(host=host, port=0))
    except Exception as error:  # a machine without IPv6
        if host == "::1":
            pytest.skip(f"this machine has no {host}: {error}")
        raise
    accepted: asyncio.Queue[int] = asyncio.Queue()

    async def met(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: socket.socket = writer.get_extra_info("socket")
        await accepted.put(mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(met, sock=found):
        _, writer = await asyncio.open_connection(*found.getsockname()[:2])
        assert await asyncio.wait_for(accepted.get(), 60)
        writer.close()
