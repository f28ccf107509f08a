"""serve: an engine that runs by itself, behind HTTP."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treadle.kernel.errors import TreadleError

from .command import HOUSE, Apps, Commands, Session
from .demo import Demo, demo
from .doors import PLAIN, Door
from .output import Usage
from .telling import OtlpOption, wanted
from .validation import Validation, checked

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.server.serving import Options

commands = Commands(HOUSE)

Pools = Annotated[
    list[str] | None, typer.Option("--pool", envvar="TREADLE_POOL", help="Work of these pools only.")
]

Alerts = Annotated[
    list[str] | None,
    typer.Option(
        "--alert",
        metavar="OCCASION=WORKFLOW",
        help="Start this when a run is failed, stalled or late (late=1h:WORKFLOW).",
        show_default=False,
    ),
]
Bus = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="memory|postgres|nats://…",
        envvar="TREADLE_BUS",
        help="What carries work to workers, besides HTTP. Default: postgres for a store there, else memory.",
        show_default=False,
    ),
]


Archived = Annotated[
    Path | None,
    typer.Option(
        "--archive",
        metavar="DIR",
        envvar="TREADLE_ARCHIVE",
        help="Put runs into files there before they are removed.",
        show_default=False,
    ),
]
Demonstrates = Annotated[
    bool, typer.Option("--demo", help="Live examples of every dialect, on a store in memory.")
]


@dataclass(slots=True)
class Server:
    """Who this server is among those of its store."""

    name: Annotated[
        str | None,
        typer.Option("--name", envvar="TREADLE_NAME", help="This server's name.", show_default=False),
    ] = None
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="URL",
            envvar="TREADLE_ADVERTISE",
            help="Where others reach this server.",
            show_default=False,
        ),
    ] = None
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            metavar="N",
            min=1,
            envvar="TREADLE_PROCESSES",
            help="So many processes behind the port, on PostgreSQL: one core of the machine each.",
        ),
    ] = 1


ALONE: Final = Server()


@commands(
    examples=[
        "treadle serve",
        "treadle serve --demo",
        "treadle serve --port 0 --json",
        "treadle serve --store sqlite:////var/lib/treadle/treadle.db --deploy flows/",
        "treadle serve --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem",
        "treadle serve --store postgresql://db/treadle --bus nats://127.0.0.1:4222 --no-worker",
        "treadle serve --store postgresql://db/treadle --processes 4",
    ],
    why="it is a server",
    logs=True,
)
async def serve(
    cli: Session,
    door: Door = PLAIN,
    member: Server = ALONE,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Decide only; leave work to workers.")
    ] = False,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, envvar="TREADLE_CONCURRENCY", help="Work at once.")
    ] = 1_000,
    pool: Pools = None,
    bus: Bus = None,
    deploy: Annotated[
        list[Path] | None,
        typer.Option("--deploy", metavar="PATH", help="Deploy this first.", show_default=False),
    ] = None,
    validation: Validation = None,
    drain: Annotated[
        str,
        typer.Option("--drain", envvar="TREADLE_DRAIN", help="How long work in hand may take at the end."),
    ] = "30s",
    alert: Alerts = None,
    archive: Archived = None,
    otlp: OtlpOption = None,
    with_demo: Demonstrates = False,
    app: Apps = None,
) -> int:
    """Serve the API, fire timers and do the work of all runs, until SIGTERM or Ctrl-C."""
    from treadle.host.acting import acting
    from treadle.store.open import shown

    try:
        from treadle.server.carrying import bus_for
        from treadle.server.processes import place
        from treadle.server.serving import Options, serve
    except ModuleNotFoundError as error:
        raise Usage(f"serve needs {error.name}: pip install 'treadle[server]'") from error

    among = place()
    if member.processes > 1 and among is None:
        return await _keep(cli, Options(**door.checked()), member)
    if among is not None:
        member.name = among.name
        _sign_lines(among.name)
    work: dict[str, Any] = {"work": not no_worker, "concurrency": concurrency, "pools": pool or ()}
    with demo(cli) if with_demo else nullcontext() as shows:
        carried = bus_for(cli.store, bus)
        options = Options(
            name=member.name,
            advertise=member.advertise,
            drain_s=_seconds(drain),
            bus=carried,
            place=among,
            archive=_shelf(archive),
            **door.checked(),
        )
        engine = await cli.prepare(
            **work, validation=checked(validation), alerts=_alerts(alert or ()), telemetry=wanted(otlp)
        )
        _furnish(engine, app or (), shows, deploy or (), by=cli.user)

        def ready(url: str, name: str, access: str) -> None:
            about = {"store": shown(cli.store), "bus": shown(carried), "worker": not no_worker}
            said = {"url": url, "name": name, **about, "access": access}
            if among is None:
                _say(cli, said)
            else:
                among.say_ready(said)

        # What a server does by itself nobody did; whoever asks it for something says who they are.
        with acting(None):
            async with engine:
                if shows is not None:
                    await shows.start(engine)
                return await serve(engine, options, ready)


def _furnish(
    engine: Engine, apps: Sequence[str], shows: Demo | None, files: Sequence[Path], *, by: str | None
) -> None:
    """What the engine knows before it is opened."""
    from .loading import attach

    for code in apps:
        attach(engine, code)
    if shows is not None:
        shows.deploy(engine)
    for path in files:
        engine.deploy(str(path), by=by)


async def _keep(cli: Session, options: Options, member: Server) -> int:
    """Keeps several processes behind one port; each reads the options of this command for itself."""
    from treadle.server.presence import Member
    from treadle.server.processes import ProcessKeeper
    from treadle.server.serving import listening
    from treadle.store.open import is_postgres

    if not is_postgres(cli.store):
        raise Usage(
            "--processes is for a store on PostgreSQL, whose runs several processes share; all runs of a SQLite file are "
            "decided by one. Leave --processes out, or copy the store: treadle migrate --from … --to postgresql://…"
        )
    with listening(options) as sock:
        sock.listen()
        name = member.name or Member().name
        keeper = ProcessKeeper(sock, name, member.processes, [sys.executable, *sys.orig_argv[1:]])
        return await keeper.run(lambda about: _say(cli, about))


def _sign_lines(name: str) -> None:
    """Several processes write one log: each line says whose it is."""

    def sign(record: logging.LogRecord) -> bool:
        record.__dict__.setdefault("server", name)
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(sign)


def _seconds(drain: str) -> float:
    from treadle.lang.duration import parse_duration

    try:
        return parse_duration(drain) / 1e9
    except TreadleError as error:
        raise Usage(f"--drain: {error.message}") from error


def _shelf(archive: Path | None) -> str | None:
    """A folder that is there, told before anything is served."""
    if archive is not None and not archive.is_dir():
        raise Usage(f"--archive: the folder {archive} does not exist; create it", code="NO_FOLDER")
    return None if archive is None else str(archive.absolute())


def _alerts(said: Sequence[str]) -> dict[str, Any]:
    """`failed=WORKFLOW`, `stalled=WORKFLOW`, `late=1h:WORKFLOW`, as an engine takes them."""
    found: dict[str, Any] = {}
    for text in said:
        occasion, _, workflow = text.partition("=")
        after, _, late = workflow.partition(":")
        found[occasion] = {"after": after, "workflow": late} if occasion == "late" else workflow
    return found


def _say(cli: Session, about: dict[str, Any]) -> None:
    """One line on standard output when the server is ready."""
    if cli.out.as_json:
        from importlib.metadata import version

        cli.out.lines = True
        cli.out.document({**about, "version": version("treadle")})
        return
    cli.out.raw(f"{about['url']}\n")
    told = (
        "open to this machine, without tokens" if about["access"] == "open" else "for those who have a token"
    )
    said = f"serving {about['store']}; {told}"
    if cli.log is None:
        cli.out.note(said)
    else:
        logging.getLogger("treadle.server").info("%s", said)
