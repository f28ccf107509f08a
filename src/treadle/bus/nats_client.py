"""How everything here connects to NATS: the tool, the transport of processes, and the bus."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client

log = logging.getLogger("treadle.nats")

CONNECT_S = 5


class NotAnAddress(ValueError):
    """Told in words of ours: the library quotes what it cannot read, and with it half a password."""


def check_addresses(servers: Any) -> None:
    for server in servers if isinstance(servers, list) else [servers]:
        try:
            parts = urlsplit(str(server) if "://" in str(server) else f"nats://{server}")
            known = bool(parts.hostname) and (parts.port or True)
        except ValueError:
            known = False
        if not known:
            raise NotAnAddress(
                "it is not an address; write nats://host:port, and escape (`|urlencode`) what is "
                "not a letter or a digit in a user name or a password"
            )


async def connected(servers: Any, *, lasting: bool = False, **settings: Any) -> Client:
    """A client. One that is `lasting` connects again by itself for as long as it lives; else whoever asks learns at
    once why there is no connection, and the next one connects anew."""
    check_addresses(servers)
    client, reasons = Client(), []

    async def note(error: Exception) -> None:
        reasons.append(error)
        log.debug("nats: %s", error)

    again: dict[str, Any] = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
    if lasting:
        again = {"allow_reconnect": True, "max_reconnect_attempts": -1, "reconnect_time_wait": 0.25}
    try:
        await client.connect(
            servers, **settings, **again, name="treadle", connect_timeout=CONNECT_S, error_cb=note
        )
    except nats.errors.NoServersError as error:
        raise ConnectionError(f"no server answers: {reasons[-1] if reasons else error}") from error
    except BaseException:
        await client.close()
        raise
    return client
