"""`treadle mcp --http`: where it listens, whom it answers, how it stops.

Whoever reaches it may start workflows and answer tasks. So an address that other machines can reach needs a
token, which every request has to carry; on loopback it may be open, and says so.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import TreadleError

from .output import Output, Usage

if TYPE_CHECKING:
    from socket import socket

    from mcp.server.mcpserver import MCPServer
    from mcp.server.transport_security import TransportSecuritySettings

# The environment variable with the token: unlike the option, other users of the machine do not see it.
TOKEN: Final = "TREADLE_TOKEN"
PORT_MAX: Final = 65535
# How long a stop waits for what is under way; streams of clients stay open as long as they like.
STOP_S: Final = 2


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    token: str | None = field(default=None, repr=False)


def address(text: str, token: str | None = None) -> Address:
    """Where to listen, and the token of its clients; refuses what would be open to others."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise Usage(f"--http takes HOST:PORT, for instance 127.0.0.1:8765; not {text!r}")
    found = Address(host.strip("[]") or "127.0.0.1", int(port), token or os.environ.get(TOKEN) or None)
    if found.token is None and not _is_loopback(found.host):
        raise Usage(
            f"{found.host} can be reached by others: set {TOKEN} (or --token), which clients then send as bearer token"
        )
    return found


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches it, whatever it is called: 127.0.0.2, 127.1, ::ffff:127.0.0.1, a name."""
    from socket import SOCK_STREAM, getaddrinfo

    try:
        found = {entry[4][0] for entry in getaddrinfo(host, None, type=SOCK_STREAM)}
    except (OSError, UnicodeError):  # a name that no host can have is refused by its form
        return False
    return all(_only_here(ipaddress.ip_address(str(address).partition("%")[0])) for address in found)


def _only_here(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _known_as(host: str) -> list[str]:
    """The names under which a browser on this machine may speak of a server on loopback."""
    own = f"[{host}]" if ":" in host else host
    return list(dict.fromkeys((own, "127.0.0.1", "localhost", "[::1]")))


async def serve(out: Output, server: MCPServer, where: Address) -> None:
    import uvicorn
    from rich.markup import escape

    class Serving(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            # Signals are the command's: it is cancelled, and so are we. Two handlers would both act.
            yield

    app: Any = server.streamable_http_app(host=where.host, transport_security=security(where.host))
    if where.token is not None:
        app = guarded(app, where.token)
    serving = Serving(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=STOP_S - 1))
    listening = _listen(where)
    shown = f"[{where.host}]" if ":" in where.host else where.host
    url = f"http://{shown}:{listening.getsockname()[1]}/mcp"
    out.note(escape(f"serving MCP at {url} for {_whom(where)}; Ctrl-C stops it"))
    if where.token is None:
        out.note(
            "[yellow]warning:[/] it is open: everybody on this machine may start workflows and answer tasks; "
            f"set {TOKEN} to close it"
        )
    await until_stopped(serving.serve([listening]), lambda: setattr(serving, "should_exit", True))


def security(host: str) -> TransportSecuritySettings | None:
    """Which Host and Origin headers are answered. A page of somebody else's that has its own name lead to this
    machine (DNS rebinding) sends its name in both. Beyond loopback the token keeps it out."""
    from mcp.server.transport_security import TransportSecuritySettings

    if not _is_loopback(host):
        return None
    names = _known_as(host)
    return TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[f"http://{name}{port}" for name in names for port in ("", ":*")],
    )


def _whom(where: Address) -> str:
    return "everybody on this machine" if where.token is None else "whoever has the token"


def _listen(where: Address) -> socket:
    from socket import AF_INET, AF_INET6, create_server

    try:
        return create_server((where.host, where.port), family=AF_INET6 if ":" in where.host else AF_INET)
    except OSError as error:
        raise TreadleError(
            f"cannot listen on {where.host}:{where.port}: {error.strerror}",
            cls="user",
            code="ADDRESS_UNAVAILABLE",
        ) from error


def guarded(app: Any, token: str) -> Any:
    """An application that answers only those who send the token."""
    wanted = token.encode(errors="surrogateescape")

    async def ask_first(scope: Any, receive: Any, send: Any) -> None:
        sent = dict(scope.get("headers") or ()).get(b"authorization", b"")
        scheme, _, given = sent.partition(b" ")
        known = scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), wanted)
        if known or scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return ask_first


async def until_stopped(serving: Coroutine[Any, Any, None], stop: Callable[[], None]) -> None:
    """Serves; on SIGTERM and Ctrl-C asks it to stop, and gives the answers under way time to go out."""
    import asyncio

    work = asyncio.ensure_future(serving)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([work], timeout=STOP_S)
        work.cancel()
        raise
