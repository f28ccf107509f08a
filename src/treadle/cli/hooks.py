"""hook set|list|remove: what signed requests from outside start, signal or publish."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .command import HOUSE, Commands, Session
from .output import Usage
from .reach import EITHER

hook = Commands(HOUSE, group="hook", help="Webhooks: signed requests from outside, at /api/v1/hooks/NAME.")

HookName = Annotated[str, typer.Argument(metavar="NAME", help="The hook's name.", show_default=False)]


@hook(
    "set",
    examples=[
        "treadle hook set orders --workflow order --secret shop --id '{{ body.order.id }}'",
        "treadle hook set paid --signal paid --run '{{ body.order }}' --secret shop",
        "treadle hook set prices --event shop/price@1 --secret shop",
    ],
    reach=EITHER,
)
async def set_(
    cli: Session,
    name: HookName,
    secret: Annotated[
        str,
        typer.Option(
            "--secret", metavar="NAME", help="The secret that requests are signed with.", show_default=False
        ),
    ],
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Start a run of this.", show_default=False)
    ] = None,
    signal: Annotated[
        str | None, typer.Option("--signal", metavar="NAME", help="Send this signal.", show_default=False)
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="With --signal: to this run.", show_default=False),
    ] = None,
    event: Annotated[
        str | None, typer.Option("--event", metavar="SCHEMA", help="Publish this event.", show_default=False)
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="TEXT", help="The new run's id.", show_default=False)
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", metavar="TEXT", help="Its reference.", show_default=False)
    ] = None,
) -> None:
    """Make a hook, or change it. Texts may hold {{ body.… }}, {{ headers.… }}, {{ query.… }}."""
    if (signal is None) != (run is None):
        raise Usage("--signal and --run go together")
    asked: dict[str, Any] = {
        "workflow": workflow,
        "signal": None if signal is None else {"run": run, "name": signal},
        "event": event,
        "secret": secret,
        "id": id,
        "reference": reference,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    async with cli.acts(work=False, lingers=False) as engine:
        row = await engine.hook_set(name, given)
    cli.out.done(row, f"requests to /api/v1/hooks/{name} are taken, signed with {secret}")


@hook("list", examples=["treadle hook list", "treadle hook list --json"], reach=EITHER)
async def list_(cli: Session) -> None:
    """List the hooks."""
    async with cli.asks() as engine:
        rows = await engine.hook_list()
    columns = {
        "name": "NAME",
        "workflow": "WORKFLOW",
        "signal": "SIGNAL",
        "event": "EVENT",
        "secret": "SECRET",
    }
    cli.out.rows(rows, columns, empty="no hook; make one with: treadle hook set")


@hook(examples=["treadle hook remove orders"], reach=EITHER)
async def remove(cli: Session, name: HookName) -> None:
    """Remove a hook."""
    async with cli.acts(work=False, creates=False, lingers=False) as engine:
        await engine.hook_remove(name)
    cli.out.done({"name": name, "status": "removed"}, f"removed {name}")
