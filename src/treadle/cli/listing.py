"""list: which runs there are, by status, workflow, reference, time, text, and what their state says."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import completing, finding, inputs
from .command import RUN, Commands, Session
from .moments import instant_ns
from .output import Usage
from .plain_help import NUMBER_MAX
from .reach import EITHER
from .view import listed

commands = Commands(RUN)

Statuses = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        help="running, waiting, queued, stalled, completed, failed, cancelled, partial; repeatable.",
        autocompletion=completing.one_of(*completing.STATUSES),
        show_default=False,
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="NAME=VALUE",
        help="A value of the run's state, by its dotted name; repeatable. Looks into each run that the other "
        "filters leave.",
        show_default=False,
    ),
]


@commands(
    "list",
    examples=[
        "treadle list",
        "treadle list --status failed --status stalled --since 2h",
        "treadle list --workflow etl --limit 200 --json",
        "treadle list --workflow order --state stage=done",
        "treadle list 2026-11",
    ],
    reach=EITHER,
)
async def list_(
    cli: Session,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="[TEXT]", help="Text in id, workflow or reference; as --search.", show_default=False
        ),
    ] = None,
    status: Statuses = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", help="Runs of this workflow.", show_default=False)
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Business reference.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="WHEN", help="A duration ago (2h) or an instant.", show_default=False
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="Started until then.", show_default=False),
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", help="Text in id, workflow or reference.", show_default=False)
    ] = None,
    state: States = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=NUMBER_MAX, help="At most this many, newest first.")
    ] = 100,
) -> None:
    """List runs, newest first."""
    wanted = [part for item in status or [] for part in item.split(",")]
    for item in wanted:
        if item not in completing.STATUSES:
            raise Usage(f"there is no status {item!r}; choose among {', '.join(completing.STATUSES)}")
    filters: dict[str, Any] = {
        "status": wanted,
        "workflow": workflow,
        "reference": reference,
        "since_ns": instant_ns(since, "--since"),
        "search": search or text,
        "state": inputs.pairs(state or []),
    }
    until_ns = instant_ns(until, "--until")
    async with cli.asks(code=bool(state)) as engine:
        rows, more = await finding.rows_of(engine, limit, until_ns=until_ns, **filters)
    columns = {
        "id": "ID",
        "workflow": "WORKFLOW",
        "status": "STATUS",
        "reference": "REFERENCE",
        "started_at": "STARTED",
        "took": "TOOK",
        "failure": "ERROR",
    }
    filtered = until_ns is not None or any(value not in (None, [], {}) for value in filters.values())
    if cli.out.as_json:
        cli.out.document(rows)
        return
    from rich.markup import escape

    empty = "no run matches" if filtered else "no runs; start one with: treadle run FILE"
    cli.out.rows([listed(row) for row in rows], columns, empty=f"{empty} [dim]({escape(cli.where)})[/]")
    if more:
        cli.out.note(f"[dim]the newest {limit}; there are more: --limit N[/]")
