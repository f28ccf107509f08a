"""audit: who did what."""

from __future__ import annotations

from typing import Annotated

import typer

from .command import HOUSE, Commands, Session
from .moments import instant_ns
from .plain_help import NUMBER_MAX
from .reach import EITHER

commands = Commands(HOUSE)


@commands(
    examples=[
        "treadle audit",
        "treadle audit --by ann --since 2h",
        "treadle audit --action run.cancel --json",
        "treadle audit --target etl-1",
    ],
    reach=EITHER,
)
async def audit(
    cli: Session,
    by: Annotated[
        str | None, typer.Option("--by", metavar="USER", help="Only what this user did.", show_default=False)
    ] = None,
    action: Annotated[
        str | None,
        typer.Option("--action", help="run.cancel, or a family: run, task, token.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="A run, task, workflow or token.", show_default=False)
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", help="ok, stale or refused.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="2h, or an instant.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="WHEN", help="2h, or an instant.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=NUMBER_MAX, help="As many rows.")] = 100,
) -> None:
    """Show who changed what, newest first; refusals too."""
    async with cli.asks() as engine:
        rows = await engine.audit(
            user=by,
            action=action,
            target=target,
            status=status,
            since_ns=instant_ns(since, "--since"),
            until_ns=instant_ns(until, "--until"),
            limit=limit,
        )
    columns = {
        "at": "AT",
        "user": "USER",
        "action": "ACTION",
        "target": "TARGET",
        "status": "STATUS",
        "code": "CODE",
        "server": "SERVER",
    }
    cli.out.rows(rows, columns, empty="nothing was changed yet")
