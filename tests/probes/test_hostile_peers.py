"""Peers of the `http` tool that break off, lie, drip, never end, or send what nobody can read: each call comes to an end
within its limits, with an outcome of ours, and the next one to a good peer works."""

from __future__ import annotations

import asyncio
import gzip
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import repeat

import pytest

from treadle.tools.http import HttpTool
from treadle.tools.protocol import ToolCall

DEADLINE_S = 60.0
MIB = 1024 * 1024
OK = b"HTTP/1.1 200 OK\r\n"
JSON = OK + b"Content-Type: application/json\r\n"
Sends = Callable[[], Iterator[bytes]]


def _bomb() -> bytes:
    """A body that is a thousand times as large when it is unpacked."""
    return gzip.compress(bytes(200 * MIB), 6)


def _gzipped(body: bytes) -> bytes:
    return OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _drip() -> Iterator[bytes]:
    """A byte now and then, for ever: each comes in time, all of them never do."""
    yield OK + b"Content-Length: 100000\r\n\r\n"
    yield from repeat(b"x")


# What a peer sends, and the kinds that an outcome may have; None: it may be well.
PEERS: dict[str, tuple[Sends, set[str | None]]] = {
    "nothing, and closes": (lambda: iter(()), {"connection"}),
    "no HTTP": (lambda: iter([b"SSH-2.0-OpenSSH_9.9\r\n"]), {"connection", "schema", "server_error"}),
    "half a head": (lambda: iter([b"HTTP/1.1 200 O"]), {"connection"}),
    "half a body": (lambda: iter([OK + b"Content-Length: 1000\r\n\r\nhalf"]), {"connection"}),
    "more than it said": (lambda: iter([OK + b"Content-Length: 2\r\n\r\nabcdef"]), {None, "connection"}),
    "a length that is none": (lambda: iter([OK + b"Content-Length: -5\r\n\r\nabc"]), {None, "connection"}),
    "two lengths": (lambda: iter([OK + b"Content-Length: 3\r\nContent-Length: 30\r\n\r\nabc"]), {"connection", None}),
    "chunks of rubbish": (lambda: iter([OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"]), {"connection"}),
    "a chunk that is cut": (lambda: iter([OK + b"Transfer-Encoding: chunked\r\n\r\nffff\r\nabc"]), {"connection"}),
    "a body without end": (
        lambda: iter([OK + b"\r\n", *repeat(bytes(MIB), 80)]),
        {"storage_quota"},
    ),
    "heads without end": (lambda: iter([OK, *repeat(b"X-A: " + b"a" * 1000 + b"\r\n", 12_000)]), {"connection"}),
    "a head of megabytes": (lambda: iter([OK + b"X-A: " + b"a" * (4 * MIB) + b"\r\n\r\n"]), {"connection"}),
    "a bomb": (lambda: iter([_gzipped(_bomb())]), {"storage_quota"}),
    "packed rubbish": (lambda: iter([_gzipped(b"this is not gzip")]), {"parse"}),
    "a drip": (_drip, {"timeout"}),
    "a head that never ends its line": (lambda: iter([OK, *repeat(b"a", 30)]), {"connection", "timeout"}),
    "interim answers without end": (lambda: iter(repeat(b"HTTP/1.1 102 Processing\r\n\r\n", 20_000)), {"connection", "timeout"}),
    "204 with a body": (lambda: iter([b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc"]), {None, "connection"}),
    "a redirect to itself": (lambda: iter([b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"]), {"client_error", "server_error", "connection"}),
    "a redirect to nowhere": (lambda: iter([b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n"]), {"client_error", "server_error", "connection", "schema"}),
    "JSON that is none": (lambda: iter([JSON + b"Content-Length: 5\r\n\r\n{nope"]), {None, "parse"}),
    "JSON as deep as the sea": (lambda: iter([JSON + b"Content-Length: 200000\r\n\r\n" + b"[" * 100_000 + b"]" * 100_000]), {None, "parse"}),
    "JSON with half a character": (lambda: iter([JSON + b'Content-Length: 8\r\n\r\n"\\ud800"']), {None, "parse"}),
    "JSON that is no number": (lambda: iter([JSON + b"Content-Length: 3\r\n\r\nNaN"]), {None, "parse"}),
    "a number of a million digits": (lambda: iter([JSON + b"Content-Length: 1000000\r\n\r\n" + b"9" * 1_000_000]), {None, "parse"}),
    "a charset that is none": (
        lambda: iter([OK + b"Content-Type: text/plain; charset=klingon\r\nContent-Length: 3\r\n\r\n\xff\xfea"]), {None, "parse"},
    ),
    "bytes that are no text": (lambda: iter([OK + b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\n\r\n\xff\xfe"]), {None, "parse"}),
    "heads that are no text": (lambda: iter([OK + b"X-\xff: \xfe\x00\r\nContent-Length: 0\r\n\r\n"]), {None, "connection"}),
    "a status of 999": (lambda: iter([b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n"]), {"client_error", "server_error", "connection"}),
}  # fmt: skip


@pytest.fixture
async def tool() -> AsyncIterator[HttpTool]:
    found = HttpTool()
    yield found
    await found.close()


@pytest.mark.parametrize("peer", PEERS)
async def test_a_hostile_peer_costs_one_call_within_its_limits(tool: HttpTool, peer: str) -> None:
    sends, kinds = PEERS[peer]
    good = [False]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in iter([OK + b"Content-Length: 4\r\n\r\ngood"]) if good[0] else sends():
                writer.write(part)
                await writer.drain()
                if len(part) == 1:
                    await asyncio.sleep(0.02)
        except (OSError, asyncio.IncompleteReadError):
            pass  # it had enough of us
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with server, asyncio.timeout(DEADLINE_S):
        outcome = await tool.run({"url": url, "timeout": 1 if "timeout" in kinds else 30}, ToolCall())
        kind = None if outcome.error is None else outcome.error["kind"]
        assert kind in kinds, outcome
        told = str(outcome.error)
        assert not any(mark in told for mark in (" at 0x", "Traceback", "httpx", "h11", "INTERNAL")), told
        good[0] = True
        assert (await tool.run({"url": url}, ToolCall())).status == "ok"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 400 * MIB
