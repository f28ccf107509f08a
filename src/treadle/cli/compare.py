"""replay, diff, record: prove a run again, compare two, turn one into a test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.lang.json_text import to_json

from .command import PROVE, App, Commands, Session
from .finding import ids_of
from .loading import one
from .output import EXIT_FAILED, EXIT_OK, Usage
from .reach import EITHER

commands = Commands(PROVE)


@commands(
    examples=[
        "treadle replay etl-1",
        "treadle replay --all --json",
        "treadle replay etl-1 --against flow.yaml",
    ],
    reach=EITHER,
)
async def replay(
    cli: Session,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Runs to replay.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every run in the store.")] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="FILE", help="Decide again by this definition.", show_default=False
        ),
    ] = None,
    app: App = None,
) -> int:
    """Decide a run's journal again and prove that it comes out equal, or show the first difference."""
    if bool(ids) == all_:
        raise Usage("name the runs to replay, or give --all")
    equal = True
    async with cli.asks(app, code=True) as engine:
        other = one(engine, against) if against is not None else None
        found = await ids_of(engine) if all_ else list(ids or ())
        cli.out.lines = all_ or len(found) > 1
        for id in found:
            answer = await engine.replay(id, against=other)
            equal = equal and answer["equal"] is not False
            _report(cli, answer)
    return EXIT_OK if equal else EXIT_FAILED


def _report(cli: Session, answer: dict[str, Any]) -> None:
    if cli.out.as_json:
        cli.out.document(answer)
        return
    from rich.markup import escape

    if answer["equal"]:
        cli.out.note(f"[green]equal[/] {escape(answer['id'])}")
        return
    if answer["equal"] is None:
        cli.out.note(f"[yellow]blob expired[/] {escape(answer['id'])}: {escape(answer['error']['message'])}")
        return
    cli.out.note(f"[red]differs[/] {escape(answer['id'])} at record {answer.get('seq')}")
    for side in ("expected", "got"):
        cli.out.note(f"  {side:>8}: {escape(to_json(answer.get(side)))}")


@commands(examples=["treadle diff triage-1 triage-2", "treadle diff triage-1 triage-2 --json"], reach=EITHER)
async def diff(
    cli: Session,
    left: Annotated[str, typer.Argument(metavar="ID", help="One run.", show_default=False)],
    right: Annotated[str, typer.Argument(metavar="ID", help="The other.", show_default=False)],
) -> int:
    """Compare two runs: definition, input, way, results, sources. Exit 1 if they differ."""
    async with cli.asks(code=True) as engine:
        both = [await engine.run(id) for id in (left, right)]
        one_run, other_run = [(await run.show(), await run.journal()) for run in both]
    from treadle.views.comparing import compared

    found = compared(one_run, other_run)
    changes = found["differences"]
    if cli.out.as_json:
        cli.out.document(found)
    elif not changes:
        cli.out.note("[green]equal[/]")
    else:
        cli.out.rows(
            [{"path": c["path"], "left": to_json(c["left"]), "right": to_json(c["right"])} for c in changes],
            {"path": "WHERE", "left": left, "right": right},
            empty="",
        )
    return EXIT_FAILED if changes else EXIT_OK


@commands(
    examples=[
        "treadle record triage-1 -o script.json",
        "treadle run triage.yaml --model scripted:script.json",
    ],
    reach=EITHER,
)
async def record(
    cli: Session,
    id: Annotated[str, typer.Argument(metavar="ID", help="A run.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write here instead of standard output.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Turn a run into a test script: a scripted model for an agent, the outside's answers otherwise."""
    from rich.markup import escape

    async with cli.asks(code=True) as engine:
        found = await engine.record(id)
    for remark in found["remarks"]:
        cli.out.note(f"[yellow]note:[/] {escape(remark)}")
    text = to_json(found["script"], indent=2) + "\n"
    if output is None:
        cli.out.raw(text)
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise Usage(f"cannot write {output}: {error.strerror}") from error
    cli.out.note(f"wrote {output}")
