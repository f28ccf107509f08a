"""Connections that cannot be talked into reaching the inside: protection against SSRF.

The check is made where the socket is opened, not on the address in the definition: so it holds for
every hop of a redirect, for names that resolve to inside addresses, for odd spellings of numbers,
and for names whose answer changes between check and use (we connect to the very address we checked).

Every request of ours goes through `transport`: that of the http tool, and that of the keychain, whose
token endpoints stand in definitions too. TREADLE_HTTP_SSRF_SAFE=1 holds for all of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpcore
import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Local whatever they carry: protocol assignments (RFC 6890), site-local (RFC 3879), IPv4-compatible,
# IPv4-translated, local NAT64 (RFC 8215).
_LOCAL = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "fec0::/10", "::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48")
)


class InsideAddress(Exception):
    """A connection to an address that is not public was refused."""


async def resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def is_public(address: Address) -> bool:
    """Whether an address is out in the world; those that carry others are looked into, all of them."""
    if any(address in network for network in _LOCAL):
        return False
    if isinstance(address, ipaddress.IPv6Address) and (carried := _carried(address)):
        return all(is_public(inner) for inner in carried)
    return address.is_global and not address.is_multicast


def _carried(address: ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [inner for inner in found if inner is not None]


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens sockets to public addresses, and to the places the operator allows: `host`, `host:port`
    or a network such as `10.1.0.0/16`."""

    def __init__(self, allow: Iterable[str] = (), resolver: Resolve = resolve) -> None:
        self._inner = httpcore.AnyIOBackend()
        self._resolve = resolver
        self._hosts: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in allow:
            try:
                self._networks.append(ipaddress.ip_network(entry))
            except ValueError:
                self._hosts.add(entry.lower())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            found = await self._resolve(host, port)
        except OSError as error:
            raise httpcore.ConnectError(f"{host}: {error}") from error
        if host.lower() not in self._hosts and f"{host.lower()}:{port}" not in self._hosts:
            for text in found:
                self._check(host, ipaddress.ip_address(text.partition("%")[0]))
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for text in found:
            try:
                return await self._inner.connect_tcp(text, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise InsideAddress(f"a connection to the socket {path} is not allowed here")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)

    def _check(self, host: str, address: Address) -> None:
        if is_public(address) or any(address in network for network in self._networks):
            return
        raise InsideAddress(
            f"{host} leads to {address}, which is not a public address; "
            "allow it with TREADLE_HTTP_ALLOW if the definition may reach it"
        )


class GuardedTransport(httpx.AsyncHTTPTransport):
    """httpx over a `GuardedBackend`. Proxies are not used: one would connect in our place."""

    def __init__(self, backend: GuardedBackend, *, verify: Any, limits: httpx.Limits) -> None:
        super().__init__(verify=verify, http2=True, limits=limits, trust_env=False)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(verify=verify, trust_env=False),
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            http2=True,
            network_backend=backend,
        )


def guarded_by_default() -> bool:
    return os.environ.get("TREADLE_HTTP_SSRF_SAFE") == "1"


def listed_as_allowed() -> list[str]:
    return os.environ.get("TREADLE_HTTP_ALLOW", "").replace(",", " ").split()


def transport(guard: GuardedBackend | None, *, verify: Any, limits: httpx.Limits) -> GuardedTransport | None:
    """What a client of ours connects through; None is httpx's own way, with the proxies of the system."""
    return None if guard is None else GuardedTransport(guard, verify=verify, limits=limits)
