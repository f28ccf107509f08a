"""Running a server: listen, say so, and leave in good order.

SIGTERM or SIGINT drains: nothing new is taken, requests in flight are finished, waits are answered as they stand,
streams are closed so that their readers go on elsewhere, work in hand is finished for a while. A second signal leaves
at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import uvicorn
from fastapi import FastAPI

from treadle.access.tokens import any_made
from treadle.engine import Engine
from treadle.host.bulk import BulkWork
from treadle.host.housekeeping import Housekeeping
from treadle.kernel.errors import Unsupported

from .access import AccessOptions, Issuer, is_loopback
from .app import create_app
from .carrying import bus_for
from .connections import ClientPatience, bounded
from .presence import Member, Presence
from .processes import ChildPlace
from .routing import BODY_MAX
from .workers import Workers

log = logging.getLogger("treadle.server")

RATE_DEFAULT: Final = 200.0
# How long what a server does beside requests rests when it has failed.
REST_S: Final = (1.0, 60.0)


@dataclass(frozen=True, slots=True)
class Options:
    host: str = "127.0.0.1"
    port: int = 8420
    name: str | None = None
    advertise: str | None = None
    body_max: int = BODY_MAX
    drain_s: float = 30
    certificate: str | None = None
    key: str | None = None
    # `memory`, `postgres`, `nats://…`; else what suits the store.
    bus: str | None = None
    # The text of `--token-file`.
    token: str | None = None
    issuer: Issuer | None = None
    # `--cors`
    origins: tuple[str, ...] = ()
    # Requests a second of one token or address; None: 200, on loopback as many as they like.
    rate: float | None = None
    patience: ClientPatience = field(default_factory=ClientPatience)
    # One of several processes behind one port.
    place: ChildPlace | None = None
    # The folder that ended runs go to before they are removed.
    archive: str | None = None

    @property
    def access(self) -> AccessOptions:
        loopback = is_loopback(self.host)
        rate = self.rate or (None if loopback else RATE_DEFAULT)
        return AccessOptions(loopback, self.token, self.issuer, self.origins, rate)


class _Server(uvicorn.Server):
    """Uvicorn without its own signals: they are ours, and a drain is more than closing sockets."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listening(options: Options) -> socket.socket:
    """A socket that listens; an address that is taken is said at once."""
    if options.place is not None:
        return socket.socket(fileno=options.place.socket)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # By its protocol asyncio knows what it accepts as TCP and sends at once: without it the body of an answer waits for
    # the acknowledgement of its head, 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((options.host, options.port))
    except OSError as error:
        found.close()
        raise Unsupported(
            f"cannot listen on {options.host}:{options.port}: {error.strerror}; choose another --port"
        ) from error
    return found


async def _check_address(engine: Engine, options: Options) -> None:
    """An address that others reach needs a way to know them."""
    if is_loopback(options.host) or options.token is not None or options.issuer is not None:
        return
    if not await engine.read(any_made):
        raise Unsupported(
            f"{options.host} can be reached by others, and this store has no token to know them by. Make one first: "
            "treadle token create --user YOU --role admin, or serve on 127.0.0.1",
            code="TOKENS_NEEDED",
        )


async def serve(engine: Engine, options: Options, ready: Callable[[str, str, str], None]) -> int:
    """Serves an engine that is open until a signal comes; the exit code."""
    await _check_address(engine, options)
    sock = listening(options)
    port = sock.getsockname()[1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = options.advertise or f"{'https' if options.certificate else 'http'}://{host}:{port}"
    member = Member(url=url) if options.name is None else Member(name=options.name, url=url)
    alone = options.place is None
    workers = Workers(engine, bus=bus_for(engine.store_url, options.bus), alone=alone)
    app = create_app(
        engine,
        body_max=options.body_max,
        member=member,
        access=options.access,
        patience=options.patience,
        workers=workers,
        archive=options.archive,
    )
    access = await app.state.access.name()
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=max(1, int(options.drain_s)),
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        server_header=False,
        http=bounded(options.patience),
        # Ours says less: no addresses, no queries.
        access_log=False,
    )
    server = _Server(config, lambda: ready(url, member.name, access))
    left = _on_signals(app, server, options.place)
    bulk: BulkWork = app.state.bulk
    presence: Presence = app.state.presence
    house = Housekeeping(engine, archive=options.archive)
    beside = (workers.watch, workers.carrying.run, bulk.go_on, house.go_on, presence.go_on)
    watching = [asyncio.ensure_future(_lasting(work)) for work in beside]
    await server.serve([sock])
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    if left():
        return 1
    await engine.worker.finish(options.drain_s)
    await workers.carrying.close()
    await presence.leave()
    return 0


async def _lasting(work: Callable[[], Awaitable[None]]) -> None:
    """What nobody waits for: if it fails, nobody but the log would know, and nobody else does it."""
    rest_s, longest_s = REST_S
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("%s has failed, and begins anew in %g s", work.__qualname__, rest_s)
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, longest_s)


def _on_signals(app: FastAPI, server: uvicorn.Server, place: ChildPlace | None) -> Callable[[], bool]:
    """Drains at the first signal, or when whoever keeps this process is gone; leaves at the second; whether there was
    a second."""
    at_once = False

    def told() -> None:
        nonlocal at_once
        if app.state.draining.is_set():
            at_once = True
            server.force_exit = True
        app.state.draining.set()
        app.state.workers.hatch.close()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    if place is not None:
        keeper = place.keeper

        def gone() -> None:
            loop.remove_reader(keeper)
            told()

        loop.add_reader(keeper, gone)
    return lambda: at_once
