"""archive list|check|restore: runs that `treadle gc --archive` put into files."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from .command import HOUSE, Commands, Session
from .output import EXIT_FAILED, EXIT_OK, Usage
from .reach import NEITHER, lasting

archive = Commands(
    HOUSE,
    group="archive",
    help="Ended runs in files. Each file is a store to look into: treadle show ID --store sqlite:///FILE.",
)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The archive's folder.", show_default=False)]


@archive(
    "list",
    examples=["treadle archive list /srv/archive", "treadle archive list /srv/archive order-7 --json"],
    reach=NEITHER,
)
async def list_(
    cli: Session,
    folder: Folder,
    search: Annotated[
        str | None,
        typer.Argument(metavar="WORD", help="In id, workflow or reference.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
) -> None:
    """The runs of an archive, newest first, and the store that each is in."""
    import asyncio

    rows = await asyncio.to_thread(_rows, _there(folder), search, limit)
    columns = {"id": "ID", "workflow": "WORKFLOW", "status": "STATUS", "ended_at": "ENDED", "store": "STORE"}
    cli.out.rows(rows, columns, empty="no run is there")


@archive(
    examples=["treadle archive check /srv/archive", "treadle archive check archive --json"], reach=NEITHER
)
async def check(cli: Session, folder: Folder) -> int:
    """Whether every run of an archive is what was put there: rows, journals, payloads. Exit 1 if one is not."""
    import asyncio

    from rich.markup import escape

    from treadle.store import archives

    with cli.out.waiting("checking"):
        found = await asyncio.to_thread(archives.check, _there(folder))
    if cli.out.as_json:
        cli.out.document(found)
    else:
        for wrong in found["damaged"]:
            cli.out.note(
                f"[red]✗[/] {escape(wrong['file'])} {escape(wrong['id'])}: {escape(wrong['message'])}"
            )
        told = f"{found['runs']} runs in {found['files']} files"
        cli.out.note(
            f"[green]✓[/] {told}" if found["ok"] else f"{told}; restore the damaged files from a copy"
        )
    return EXIT_OK if found["ok"] else EXIT_FAILED


@archive(
    examples=[
        "treadle archive restore /srv/archive/2026-11.db order-7 order-8",
        "treadle archive restore archive/2026-11.db --store postgresql://treadle@db/treadle --json",
    ],
    why="it reads the file and writes to the store itself",
)
async def restore(
    cli: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One file of an archive.", show_default=False)],
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID]...", help="The runs; without any, all that are in it.", show_default=False
        ),
    ] = None,
) -> None:
    """Put runs of an archive back as they were. If one is not what was archived, or is in the store already, none
    comes back. They stay until they are deleted."""
    lasting(cli.store)
    with cli.out.waiting("checking"):
        async with cli.engine(work=False, lingers=False) as engine:
            done = await engine.archive_restore(file, ids or (), by=cli.user)
    cli.out.done(done, f"{len(done['restored'])} runs are back")


def _there(folder: Path) -> Path:
    if not folder.is_dir():
        raise Usage(f"there is no folder {folder}", code="NO_FOLDER")
    return folder


def _rows(folder: Path, search: str | None, limit: int) -> list[dict[str, Any]]:
    from treadle.runtime.document import list_row
    from treadle.store import archives

    def meant(row: Any) -> bool:
        texts = (row.id, row.workflow, row.reference or "")
        return search is None or any(search.lower() in text.lower() for text in texts)

    found = ((path, row) for path, row in archives.listed(folder) if meant(row))
    return [{**list_row(row), "store": f"sqlite:///{path.absolute()}"} for path, row in islice(found, limit)]
