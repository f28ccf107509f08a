"""delete: runs that have ended, chosen as other commands choose theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import inputs
from .bulk import AtOnce, Bulk, Chosen, each
from .command import HOUSE, Commands, Session
from .output import EXIT_OK, Usage
from .reach import EITHER
from .steer import NONE, Ids

if TYPE_CHECKING:
    from treadle.client.protocol import TreadleClient

commands = Commands(HOUSE)


@commands(
    examples=[
        "treadle delete etl-1",
        "treadle delete --status completed --workflow etl --until 30d --dry-run",
        "treadle delete --status failed --until 2026-01-01T00:00:00Z --yes --user ann",
    ],
    reach=EITHER,
)
async def delete(
    cli: Session,
    ids: Ids = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    choice: Chosen = NONE,
) -> int:
    """Remove runs that have ended, with the runs below them. Their payloads go with the next `treadle gc`."""
    bulk = Bulk(ids or (), choice)
    if choice.no_wait:
        raise Usage("there is nothing to wait for after a run is deleted; leave --no-wait out")

    async def gone(engine: TreadleClient, id: str) -> dict[str, Any]:
        return {"id": id, "status": "deleted"}

    async def act(engine: TreadleClient, id: str) -> dict[str, Any]:
        await engine.delete(id, by=choice.user)
        return await gone(engine, id)

    async with cli.acts(creates=False, help_others=False, work=False) as engine:
        if choice.filtered and not choice.dry_run and not yes and inputs.is_typed():
            bulk = Bulk(await bulk.find(engine), Chosen(user=choice.user))
            if not bulk.ids:
                cli.out.note("no run matches")
                return EXIT_OK
            typer.confirm(f"delete {len(bulk.ids)} runs for good?", abort=True, err=True)
        bulk.at_once = AtOnce("delete", {}, gone)
        return await each(cli, engine, bulk, act, exits=False)
