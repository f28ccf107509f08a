"""gc, doctor, migrate, bench, and secret set|list|remove: keep house."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.kernel.errors import TreadleError, Unsupported

from . import inputs
from .command import HOUSE, Actor, Commands, Session
from .output import EXIT_FAILED, EXIT_OK, Usage
from .reach import EITHER, NEITHER, lasting
from .report import report

if TYPE_CHECKING:
    from treadle.client.protocol import TreadleClient

commands = Commands(HOUSE)
secret = Commands(
    HOUSE, group="secret", help="The encrypted secret store beside the runs. Values are never shown."
)


@commands(
    examples=[
        "treadle gc",
        "treadle gc --dry-run",
        "treadle gc --archive /srv/archive",
        "treadle gc --json",
        "treadle gc --user ann",
    ],
    reach=EITHER,
)
async def gc(
    cli: Session,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many runs of which workflow it would be.")
    ] = False,
    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive", metavar="DIR", help="Put the runs into files there first.", show_default=False
        ),
    ] = None,
    user: Actor = None,
) -> None:
    """Remove runs whose retention has ended, and payloads that nothing refers to."""
    if archive is not None and cli.server is not None:
        raise Usage("a server has an archive of its own: treadle serve --archive DIR")
    if archive is None:
        async with cli.acts(work=False) as client:
            done = await client.gc(dry_run=dry_run, by=user)
    else:
        async with cli.engine(work=False) as engine:
            done = await engine.gc(dry_run=dry_run, by=user, archive=archive)
    workflows = {} if cli.out.as_json else done.pop("workflows", {})
    report(cli, done)
    for workflow, statuses in workflows.items():
        told = ", ".join(f"{count} {status}" for status, count in statuses.items())
        cli.out.note(f"{workflow}: {told}")
    if dry_run:
        cli.out.note("nothing was changed")


@commands(
    examples=[
        "treadle doctor",
        "treadle doctor --store postgresql://treadle@db/treadle --bus nats://bus:4222 --json",
    ],
    reach=EITHER,
)
async def doctor(
    cli: Session,
    deep: Annotated[
        bool, typer.Option("--deep", help="Look at everything, however long it takes; read every payload.")
    ] = False,
    bus: Annotated[
        str | None,
        typer.Option(
            "--bus",
            metavar="postgres|nats://…",
            envvar="TREADLE_BUS",
            help="Of a store: look at this bus, too. A server looks at its own.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Look whether the store is sound: file, definitions, journals, payloads, owner, overdue work, the bus that carries
    it. Exit 1 if it is not."""
    from rich.markup import escape

    from treadle.host.checkup import examine

    with cli.out.waiting("looking") as told:

        def tell(checked: dict[str, int]) -> None:
            told(", ".join(f"{count:,} {what}" for what, count in checked.items()))

        if cli.server is None:
            found = await _examined(cli.store, bus, partial(examine, cli.store, deep=deep, tell=tell))
        else:
            async with cli.asks() as server:
                found = await server.doctor(deep=deep)
    if cli.out.as_json:
        cli.out.document(found)
    else:
        report(
            cli,
            {
                key: value
                for key, value in found.items()
                if key not in ("ok", "problems", "remarks", "damaged", "findings", "open_long")
            },
        )
        for remark in found["remarks"]:
            cli.out.note(f"[yellow]·[/] {escape(remark)}")
        for problem in found["problems"]:
            cli.out.note(f"[red]✗[/] {escape(problem)}")
        for damage in (*found.get("damaged", ()), *found.get("findings", ())):
            cli.out.note(f"  {escape(damage['id'])}: {escape(damage['remedy'])}")
        if found["ok"]:
            cli.out.note("[green]✓[/] the store is sound")
    return EXIT_OK if found["ok"] else EXIT_FAILED


async def _examined(store: str, bus: str | None, examine: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is found of a store, and of its bus where it has one. A bus that cannot be is refused first."""
    import asyncio

    from treadle.store.open import is_postgres

    if bus is None and not is_postgres(store):
        return await asyncio.to_thread(examine)
    from treadle.server.carrying import bus_for, examine_bus

    try:
        bus = bus_for(store, bus)
    except Unsupported as error:
        raise Usage(error.message) from error
    return await examine_bus(store, bus, await asyncio.to_thread(examine))


@commands(
    examples=[
        "treadle migrate",
        "treadle migrate --store sqlite:////srv/treadle.db",
        "treadle migrate --from sqlite:////srv/treadle.db --to postgresql://treadle@db/treadle",
    ],
    why="a server brings its store up to date when it starts",
)
async def migrate(
    cli: Session,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="Copy this whole store.", show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="To this place, where none is yet.", show_default=False),
    ] = None,
) -> None:
    """Bring the store's schema up to date; every command does this too. Or copy a whole store to another place, and
    check every digest there."""
    import asyncio

    from treadle.store.open import copy_store, migrate_store

    if (source is None) != (target is None):
        raise Usage("a copy needs both: --from URL and --to URL")
    if source is not None and target is not None:
        report(cli, await asyncio.to_thread(copy_store, lasting(source), lasting(target)))
        return
    report(cli, migrate_store(cli.store))


@commands(examples=["treadle bench", "treadle bench --runs 200 --steps 10 --json"], reach=NEITHER)
async def bench(
    cli: Session,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs at the same time.")] = 100,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of each.")] = 10,
) -> None:
    """Measure this machine in a few seconds, in a temporary store: durable steps per second."""
    from .bench import measure

    report(cli, await measure(runs, steps))


# --- secrets ------------------------------------------------------------------------------------

Name = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.", show_default=False)]


def _secrets(cli: Session) -> Any:
    from treadle.secrets.files import secret_store_of

    if (store := secret_store_of(lasting(cli.store))) is None:
        raise Usage("there is no folder of this user for secrets; name one in TREADLE_HOME")
    return store


@secret(
    "set",
    examples=[
        "treadle secret set github_token            # asks for it, without echo",
        "treadle secret set github_token < token.txt",
        "treadle secret set pg_main --field db_host=db1 --field db_password=…",
    ],
    reach=EITHER,
)
async def set_(
    cli: Session,
    name: Name,
    value: Annotated[
        str | None,
        typer.Option(
            "--value", help="The value; better typed or piped, so that no history has it.", show_default=False
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field", metavar="KEY=VALUE", help="A secret of several fields; repeatable.", show_default=False
        ),
    ] = None,
) -> None:
    """Store a secret, or replace it."""
    if field and value is not None:
        raise Usage("give --value or --field, not both")
    content: str | dict[str, str]
    if field:
        content = {}
        for item in field:
            key, sign, text = item.partition("=")
            if not sign or not key:
                raise Usage("--field takes KEY=VALUE")
            content[key] = text
    elif value is not None:
        content = value
    elif inputs.is_typed():
        content = str(typer.prompt(f"value of {name}", hide_input=True, err=True))
    else:
        content = inputs.standard_input().rstrip("\n")
    if not content:
        raise Usage("the value is empty; type it, pipe it, or give --value")
    async with _keeper(cli) as engine:
        await engine.secret_set(name, content)
    _said(cli, name, "set")


@secret("list", examples=["treadle secret list", "treadle secret list --json"], reach=EITHER)
async def list_(cli: Session) -> None:
    """List the names of the stored secrets."""
    if cli.server is None:
        names = _secrets(cli).names()
    else:
        async with cli.asks() as server:
            names = await server.secret_list()
    rows = [{"name": name} for name in names]
    cli.out.rows(rows, {"name": "NAME"}, empty="no secrets; store one with: treadle secret set NAME")


@secret(examples=["treadle secret remove github_token"], reach=EITHER)
async def remove(cli: Session, name: Name) -> None:
    """Remove a secret."""
    try:
        async with _keeper(cli) as engine:
            await engine.secret_remove(name)
    except TreadleError as error:
        if error.code != "SECRET_NOT_FOUND":
            raise
        raise Usage(
            f"there is no secret {name!r}; list them with: treadle secret list", code="SECRET_MISSING"
        ) from error
    _said(cli, name, "removed")


@secret(
    examples=["treadle secret rotate", "TREADLE_SECRET_KEY=… TREADLE_SECRET_KEY_OLD=… treadle secret rotate"],
    why="the key is where the store is",
)
async def rotate(cli: Session) -> None:
    """Seal all secrets with a new key. Cut in between, nothing is lost: give it again."""
    secrets = _secrets(cli)
    if cli.has_store():
        async with cli.engine(work=False, lingers=False) as engine:
            await engine.operate("secret", {"op": "rotate", "name": ""})
    count = secrets.rotate()
    cli.out.done({"secrets": count, "status": "rotated"}, f"{count} secrets are sealed with a new key")


@asynccontextmanager
async def _keeper(cli: Session) -> AsyncIterator[TreadleClient]:
    """Whoever keeps the secrets, and writes down who changed them."""
    if cli.server is None:
        _secrets(cli)  # a store that keeps none is said before it is opened
    async with cli.acts(work=False, lingers=False) as keeper:
        yield keeper


def _said(cli: Session, name: str, what: str) -> None:
    cli.out.done({"name": name, "status": what}, f"{what} {name}")
