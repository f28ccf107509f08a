"""backup, restore: a whole store in one file, and a store made of one again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command import HOUSE, Commands, Session
from .reach import lasting
from .report import report

commands = Commands(HOUSE)

ON_A_STORE = "it copies the store itself"


@commands(
    examples=[
        "treadle backup nightly.db",
        "treadle backup /srv/backups/$(date +%F).db --store postgresql://treadle@db/treadle --json",
    ],
    why=ON_A_STORE,
)
async def backup(
    cli: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; none may be there.", show_default=False)
    ],
) -> None:
    """Write the whole store to one file, payloads included, while others work on it; every digest is checked."""
    import asyncio

    from treadle.store import backups

    backups.check_place(lasting(cli.store), file)
    # Written first: the backup has its own row, and whoever took it is known even if it is cut.
    async with cli.engine(work=False, lingers=False) as engine:
        await engine.operate("store", {"op": "backup", "target": str(file)})
    with cli.out.waiting("copying") as told:

        def tell(table: str, rows: int) -> None:
            told(f"{rows:,} {table}")

        report(cli, await asyncio.to_thread(backups.backup, cli.store, file, tell))


@commands(
    examples=[
        "treadle restore nightly.db --store sqlite:////srv/treadle.db",
        "treadle restore nightly.db --store postgresql://treadle@db/treadle",
        "treadle restore nightly.db --dry-run",
    ],
    why=ON_A_STORE,
)
async def restore(
    cli: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `treadle backup` wrote.", show_default=False)
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check the backup, and whether there is room for it.")
    ] = False,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside",
            help="Also if the store it was taken from is at work: then both do what was open at that moment.",
        ),
    ] = False,
) -> None:
    """Make a store of a backup, where none is yet, after every digest in it has been checked."""
    import asyncio

    from rich.markup import escape

    from treadle.store import backups

    store = lasting(cli.store)
    with cli.out.waiting("checking"):
        done = await asyncio.to_thread(
            backups.restore, file, store, user=cli.user, beside=beside, dry_run=dry_run
        )
    report(cli, done)
    if not dry_run:
        cli.out.note(
            f"What happened after {escape(done['at'])} is not in it: work that was open then is done again, so the "
            "original must not go on. Go on with: [cyan]treadle resume[/] or [cyan]treadle serve[/]"
        )
