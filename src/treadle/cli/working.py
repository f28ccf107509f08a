"""worker: the data plane by itself. It does the work of runs that a server decides."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.kernel.errors import TreadleError
from treadle.lang.pools import is_pool

from . import inputs
from .command import HOUSE, Apps, Commands, Session
from .output import Usage
from .reach import check_server
from .telling import OtlpOption, wanted
from .validation import Validation, checked

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.lang.definition import Definition
    from treadle.server.remote import RemoteWorker

commands = Commands(HOUSE)


@dataclass(slots=True)
class WorkerOptions:
    """Who works, and for whom."""

    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="URL",
            envvar="TREADLE_SERVER",
            help="Whose work to do. Repeat it: the next one is asked where one does not answer.",
            show_default=False,
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option("--name", envvar="TREADLE_NAME", help="Default: host-pid.", show_default=False),
    ] = None
    pool: Annotated[
        list[str] | None,
        typer.Option("--pool", envvar="TREADLE_POOL", help="Which pool to serve; repeat it for several."),
    ] = None
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, envvar="TREADLE_CONCURRENCY", help="Work at once.")
    ] = 64
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Holds the token; else TREADLE_TOKEN.", show_default=False
        ),
    ] = None

    bus: Annotated[
        str | None,
        typer.Option(
            "--bus",
            metavar="nats://…",
            envvar="TREADLE_BUS",
            help="Take work from here. Default: as the server says, or the store's database.",
            show_default=False,
        ),
    ] = None

    def checked(self, store: str) -> tuple[list[str], list[str], str, str | None]:
        """Servers (none: the store), pools, name and token."""
        from treadle.store.open import is_postgres

        servers = self.server or []
        if not servers and not is_postgres(store):
            raise Usage("say whose work to do: --server URL, or --store postgresql://…")
        for server in servers:
            check_server(server)
        pools = self.pool or ["default"]
        for word in pools:
            if not is_pool(word):
                raise Usage(f"--pool: {word!r} is no name of a pool; use 1 to 64 of a-z, 0-9, _ and -")
        try:
            token = self.token_file.read_text("utf-8").strip() if self.token_file else None
        except (OSError, UnicodeDecodeError) as error:
            raise Usage(f"--token-file: {self.token_file} cannot be read") from error
        name = self.name or f"{socket.gethostname()}-{os.getpid()}"
        return servers, pools, name, token or os.environ.get("TREADLE_TOKEN")


@commands(
    examples=[
        "treadle worker --server http://127.0.0.1:8420",
        "treadle worker --server http://10.0.0.5:8420 --pool gpu --concurrency 4",
        "treadle worker --server http://127.0.0.1:8420 --app app.py --secrets .env",
        "treadle worker --store postgresql://db/treadle --bus nats://127.0.0.1:4222",
    ],
    logs=True,
)
async def worker(
    cli: Session,
    member: WorkerOptions,
    secrets: Annotated[
        Path | None,
        typer.Option(
            "--secrets",
            metavar="FILE",
            envvar="TREADLE_SECRETS",
            help="Secrets of this worker.",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        str,
        typer.Option("--drain", envvar="TREADLE_DRAIN", help="How long work in hand may take at the end."),
    ] = "30s",
    validation: Validation = None,
    otlp: OtlpOption = None,
    app: Apps = None,
) -> int:
    """Do the work of a server or of a store, until SIGTERM or Ctrl-C: take it, renew while it lasts, send back what
    comes of it."""
    from importlib.metadata import version
    from secrets import token_hex

    from treadle.engine import Engine
    from treadle.lang.duration import parse_duration
    from treadle.secrets.providers import Secrets, kept_for
    from treadle.server.joining import join
    from treadle.server.remote import RemoteWorker

    servers, pools, name, token = member.checked(cli.store)
    try:
        drain_s = parse_duration(drain) / 1e9
    except TreadleError as error:
        raise Usage(f"--drain: {error.message}") from error
    known = Secrets(file=inputs.secrets_file(secrets), store=None if servers else kept_for(cli.store))
    async with Engine("memory:", work=False, secrets=known) as engine:
        loaded = _loaded(cli, engine, app or (), lenient=checked(validation) == "warn")
        about = {
            "pools": pools,
            "concurrency": member.concurrency,
            "tools": sorted(engine.tools.kinds()),
            "apps": [definition.digest for definition in loaded if definition.code is not None],
            "version": version("treadle"),
            "instance": token_hex(8),
        }
        joined = await join(
            name, about, servers=servers, store=cli.store, bus=member.bus, token=token, say=cli.out.note
        )
        try:
            remote = RemoteWorker(
                engine,
                joined.far,
                joined.goods,
                pools=pools,
                concurrency=member.concurrency,
                name=name,
                telemetry=wanted(otlp),
            )
            cli.out.lines = True
            whom = {"server": servers[0]} if servers else {"store": joined.store}
            cli.out.document(
                {"name": name, **whom, "bus": joined.bus, "pools": pools, "version": version("treadle")}
            )
            await _until_told(remote, drain_s)
        finally:
            await joined.close()
    return 0


def _loaded(cli: Session, engine: Engine, apps: Sequence[str], *, lenient: bool) -> list[Definition]:
    """The definitions of code that is given here. A lenient worker says what it cannot load, and goes on without it."""
    found: list[Definition] = []
    for code in apps:
        try:
            found += engine.load(code)
        except TreadleError as error:
            if not lenient:
                raise
            cli.out.note(f"{code} is left out: {error}")
    return found


async def _until_told(remote: RemoteWorker, drain_s: float) -> None:
    """Works until a signal comes, then leaves in good order."""
    import asyncio
    import signal

    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    working = asyncio.ensure_future(remote.run())
    stopped = asyncio.ensure_future(told.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not working.done():
        await remote.leave(drain_s)
    await working
