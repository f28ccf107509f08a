"""serve: an engine that runs by itself, behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.kernel.errors import TreadleError

from .command import HOUSE, App, Commands, Session
from .output import Usage

commands = Commands(HOUSE)

Pools = Annotated[
    list[str] | None, typer.Option("--pool", envvar="TREADLE_POOL", help="Work of these pools only.")
]


@commands(
    examples=[
        "treadle serve",
        "treadle serve --port 0 --json",
        "treadle serve --store sqlite:////var/lib/treadle/treadle.db --deploy flows/",
    ]
)
async def serve(
    cli: Session,
    host: Annotated[
        str, typer.Option("--host", envvar="TREADLE_HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, envvar="TREADLE_PORT", help="0 picks a free one.")
    ] = 8420,
    name: Annotated[
        str | None,
        typer.Option("--name", envvar="TREADLE_NAME", help="This server's name.", show_default=False),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="URL",
            envvar="TREADLE_ADVERTISE",
            help="Where others reach this server.",
            show_default=False,
        ),
    ] = None,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Decide only; leave work to workers.")
    ] = False,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, envvar="TREADLE_CONCURRENCY", help="Work at once.")
    ] = 256,
    pool: Pools = None,
    deploy: Annotated[
        list[Path] | None,
        typer.Option("--deploy", metavar="PATH", help="Deploy this first.", show_default=False),
    ] = None,
    drain: Annotated[
        str,
        typer.Option("--drain", envvar="TREADLE_DRAIN", help="How long work in hand may take at the end."),
    ] = "30s",
    app: App = None,
) -> int:
    """Serve the API, fire timers and do the work of all runs, until SIGTERM or Ctrl-C."""
    from treadle.lang.duration import parse_duration
    from treadle.store.open import shown

    try:
        from treadle.server.serving import Options, serve
    except ModuleNotFoundError as error:
        raise Usage(f"serve needs {error.name}: pip install 'treadle[server]'") from error

    try:
        drain_s = parse_duration(drain) / 1e9
    except TreadleError as error:
        raise Usage(f"--drain: {error.message}") from error

    engine = await cli.prepare(app, work=not no_worker, concurrency=concurrency, pools=pool or ())
    for path in deploy or ():
        engine.deploy(str(path))
    options = Options(host=host, port=port, name=name, advertise=advertise, drain_s=drain_s)

    def ready(url: str, name: str) -> None:
        if cli.out.as_json:
            from importlib.metadata import version

            cli.out.lines = True
            cli.out.document(
                {
                    "url": url,
                    "name": name,
                    "version": version("treadle"),
                    "store": shown(engine.store_url),
                    "bus": "memory",
                    "worker": not no_worker,
                    "access": "open",
                }
            )
            return
        cli.out.raw(f"{url}\n")
        cli.out.note(f"serving {shown(engine.store_url)}; open to this machine only, without tokens")

    async with engine:
        return await serve(engine, options, ready)
