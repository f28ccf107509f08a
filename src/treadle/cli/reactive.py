"""publish, cells, cell, manifest, apply, shadow, snapshot: reactive applications."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import inputs
from .command import REACT, App, Commands, Session
from .driving import drive
from .output import Usage, worst
from .reach import EITHER, NEITHER
from .view import describe, event_line, outcome

commands = Commands(REACT)

Workflow = Annotated[
    str,
    typer.Argument(metavar="WORKFLOW", help="A keyed workflow, e.g. com.acme/order@1.", show_default=False),
]
Code = Annotated[str, typer.Argument(metavar="FILE:ATTR", help="The application.", show_default=False)]


@commands(
    examples=[
        'treadle publish com.acme/OrderCreated@1 --data \'{"order_id": "o-1", "amount_cents": 500}\' --app shop.py:app',
        "treadle publish com.acme/OrderCreated@1 --data @order.json --submission-id web-991",
    ],
    reach=EITHER,
)
async def publish(
    cli: Session,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's schema.", show_default=False)],
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="JSON|@FILE", help="The event's value.", show_default=False),
    ] = None,
    submission_id: Annotated[
        str | None,
        typer.Option("--submission-id", help="The same again changes nothing.", show_default=False),
    ] = None,
    app: App = None,
) -> int:
    """Publish a domain event to every cell that subscribes to it, and drive them on."""
    value = inputs.value(data, "--data")
    async with cli.acts(app) as engine:
        reached = await engine.publish(event, value, submission_id=submission_id)
        cli.out.lines = len(reached) != 1
        codes = [
            outcome(cli.out, await drive(cli, engine, await engine.run(id), quiet=True), quiet=True)
            for id in reached
        ]
        if not reached:
            cli.out.note(f"no workflow subscribes to {event}")
    return worst(codes)


@commands(examples=["treadle cells com.acme/order@1", "treadle cells com.acme/order@1 --json"], reach=EITHER)
async def cells(cli: Session, workflow: Workflow, app: App = None) -> None:
    """List the cells of a workflow: key, status, size, last active."""
    async with cli.asks(app, code=True) as engine:
        rows = await engine.cells(workflow)
    columns = {"key": "KEY", "status": "STATUS", "size": "BYTES", "last_active": "LAST ACTIVE"}
    cli.out.rows(rows, columns, empty=f"{workflow} has no cells")


@commands(
    examples=[
        "treadle cell com.acme/order@1 o-1",
        "treadle cell com.acme/order@1 o-1 --follow",
        "treadle cell shop/day@1 7 --text-key",
    ],
    reach=EITHER,
)
async def cell(
    cli: Session,
    workflow: Workflow,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="JSON if it parses as other than text; none for an unkeyed workflow.",
            show_default=False,
        ),
    ] = None,
    text_key: Annotated[
        bool, typer.Option("--text-key", help="The key is text, whatever it looks like.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with its events.")] = False,
    app: App = None,
) -> int | None:
    """Show one cell: its state and what it has open."""
    found_key: Any = key if text_key or key is None else inputs.loose(key)
    async with cli.asks(app, code=True) as engine:
        found = await engine.cell(workflow, found_key)
        if found is None:
            raise Usage(
                f"{workflow} has no cell {key!r}; list them with: treadle cells {workflow}",
                code="CELL_NOT_FOUND",
            )
        if follow:
            console = cli.out.console
            async for event in found.events(after=0, follow=True):
                if cli.out.as_json:
                    cli.out.line(event)
                else:
                    console.print(event_line(event), soft_wrap=True)
            return None
        document = await found.show()
    if cli.out.as_json:
        cli.out.document(document)
    else:
        describe(cli.out, document)
    return None


@commands(
    examples=["treadle manifest shop.py:app", "treadle manifest shop.py:app --json > manifest.json"],
    reach=NEITHER,
)
async def manifest(cli: Session, app: Code) -> None:
    """Print the manifest that is derived from an application's code."""
    from .loading import application

    found = application(app)
    document = {"name": found.name, "digest": found.digest, "manifest": found.manifest}
    if cli.out.as_json:
        cli.out.document(document)
    else:
        cli.out.value(document)


@commands(examples=["treadle apply shop.py:app", "treadle apply shop.py:app --wait"], reach=EITHER)
async def apply(
    cli: Session,
    app: Code,
    wait: Annotated[
        bool, typer.Option("--wait", help="Drain first: wait until nothing is in flight.")
    ] = False,
) -> None:
    """Move an application to new code; refused, with the list of what blocks it, unless it is quiet."""
    from .loading import application

    application(app)  # what is no application is told before anything is opened
    async with cli.acts() as engine:
        answer = await engine.apply(app, wait=wait)
    _answer(cli, answer, f"applied {app}")


@commands(examples=["treadle shadow shop.py:app --from com.acme/order@1/o-1 --json"], reach=EITHER)
async def shadow(
    cli: Session,
    app: Code,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN", help="Clone the state of this run; default: of all.", show_default=False
        ),
    ] = None,
) -> None:
    """Run candidate code against a clone of the state, and report what was observed, nothing else."""
    from .loading import application

    async with cli.acts() as engine:
        report = await engine.shadow(application(app), run=from_)
    _answer(cli, report, "")


@commands(examples=["treadle snapshot", "treadle snapshot --app shop.py:app --json"], reach=EITHER)
async def snapshot(cli: Session, app: App = None) -> None:
    """Write the cells' states to the content store and print the roots."""
    async with cli.acts(app) as engine:
        roots = await engine.snapshot()
    _answer(cli, roots, "")


def _answer(cli: Session, value: Any, note: str) -> None:
    if cli.out.as_json:
        cli.out.document(value)
        return
    if note:
        cli.out.note(note)
    cli.out.value(value)
