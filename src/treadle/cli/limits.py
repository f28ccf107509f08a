"""limit set|list|remove: how many runs of a workflow go on at once, and who is in line."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .command import STEER, Commands, Session
from .output import Usage
from .reach import EITHER

limit = Commands(
    STEER, group="limit", help="How many runs of a workflow go on at once, and how fast they begin."
)

Workflow = Annotated[
    str, typer.Argument(metavar="WORKFLOW", help="The workflow's name, or pool:NAME.", show_default=False)
]


@limit(
    "set",
    examples=[
        "treadle limit set import --concurrency 5 --queue 100",
        "treadle limit set sync --concurrency 1 --per '{{ input.customer }}'",
        "treadle limit set mail --rate 100/h",
        "treadle limit set import --concurrency 5 --while running",
        "treadle limit set pool:gpu --concurrency 4",
    ],
    reach=EITHER,
)
async def set_(
    cli: Session,
    workflow: Workflow,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", help="So many at once.", show_default=False)
    ] = None,
    per: Annotated[
        str | None,
        typer.Option(
            "--per",
            metavar="TEMPLATE",
            help="A line for each value: '{{ input.customer }}'.",
            show_default=False,
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="N/TIME", help="So many begin in a time: 10/s.", show_default=False),
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option(
            "--queue", metavar="N", help="So many may wait; further starts are refused.", show_default=False
        ),
    ] = None,
    while_: Annotated[
        str | None,
        typer.Option(
            "--while",
            metavar="running",
            help="A run that waits gives its place back meanwhile.",
            show_default=False,
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", metavar="P", help="Of starts that say none.", show_default=False),
    ] = None,
) -> None:
    """Limit a workflow from now on, whatever its definition says."""
    said = {"concurrency": concurrency, "per": per, "rate": rate, "queue": queue, "priority": priority}
    given = {key: value for key, value in {**said, "while": while_}.items() if value is not None}
    if not given:
        raise Usage("say the limits: --concurrency, --rate, --per, --queue, --priority")
    async with cli.acts(work=False) as engine:
        _told(cli, await engine.limit_set(workflow, **given))


@limit("list", examples=["treadle limit list", "treadle limit list --json"], reach=EITHER)
async def list_(cli: Session) -> None:
    """Every workflow that is limited, and who is in line."""
    async with cli.asks() as engine:
        rows = await engine.limits()
    if cli.out.as_json:
        cli.out.document(rows)
        return
    columns = {
        "workflow": "WORKFLOW",
        "said": "LIMITS",
        "origin": "BY",
        "running": "RUNNING",
        "queued": "QUEUED",
    }
    cli.out.rows([_line(row) for row in rows], columns, empty="no workflow is limited")


@limit(examples=["treadle limit remove import"], reach=EITHER)
async def remove(cli: Session, workflow: Workflow) -> None:
    """Leave the limits of a workflow to its definition again."""
    async with cli.acts(work=False, creates=False) as engine:
        _told(cli, await engine.limit_remove(workflow))


def _told(cli: Session, row: dict[str, Any]) -> None:
    if cli.out.as_json:
        cli.out.document(row)
    else:
        line = _line(row)
        cli.out.note(f"{row['workflow']}: {line['said']}; {row['running']} running, {row['queued']} queued")


def _line(row: dict[str, Any]) -> dict[str, Any]:
    said = ", ".join(f"{name} {value}" for name, value in (row["limits"] or {}).items())
    return {**row, "said": said or "none", "origin": row["origin"] or ""}
