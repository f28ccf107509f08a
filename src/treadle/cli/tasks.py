"""tasks, and task show|claim|release|assign|comment|complete: the inbox of human tasks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import completing, finding, form, inputs
from .command import STEER, App, Commands, Session
from .driving import drive
from .moments import moment
from .plain_help import NUMBER_MAX
from .reach import EITHER
from .steer import marked
from .view import outcome

commands = Commands(STEER)
task = Commands(STEER, group="task", help="One human task: look at it, claim it, answer it.")

TaskId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The task's id (see: treadle tasks).",
        show_default=False,
        autocompletion=completing.tasks,
    ),
]
User = Annotated[str | None, typer.Option("--user", help="Who acts.", show_default=False)]
Roles = Annotated[
    list[str] | None,
    typer.Option(
        "--role", help="A role the user holds; repeatable; admin passes every check.", show_default=False
    ),
]


@commands(
    examples=[
        "treadle tasks",
        "treadle tasks --role underwriter",
        "treadle tasks --run renewal-7 --status completed --json",
    ],
    reach=EITHER,
)
async def tasks(
    cli: Session,
    role: Annotated[
        str | None, typer.Option("--role", help="Tasks that this role may do.", show_default=False)
    ] = None,
    assignee: Annotated[
        str | None, typer.Option("--assignee", help="Tasks of this user.", show_default=False)
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            help="open, claimed, completed, cancelled, expired; default open and claimed.",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Business reference.", show_default=False)
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Tasks of this run.", show_default=False)
    ] = None,
) -> None:
    """List human tasks that wait for somebody."""
    async with cli.asks() as engine:
        rows = await engine.tasks(
            role=role, assignee=assignee, status=status or ["open", "claimed"], reference=reference, run=run
        )
    columns = {
        "id": "ID",
        "name": "TASK",
        "title": "TITLE",
        "status": "STATUS",
        "roles": "ROLES",
        "assignee": "ASSIGNEE",
        "workflow": "WORKFLOW",
        "run": "RUN",
        "reference": "REFERENCE",
        "due": "DUE",
    }
    cli.out.rows(rows, columns, empty="no task waits")


def _report(cli: Session, row: dict[str, Any]) -> None:
    if cli.out.as_json:
        cli.out.document(row)
        return
    from rich.markup import escape

    who = f" by {row['assignee']}" if row.get("assignee") else ""
    cli.out.note(f"[bold]{escape(str(row['name']))}[/] {row['status']}{escape(who)} [dim]{row['id']}[/]")


@task(examples=["treadle task show 5f3a…", "treadle task show 5f3a… --json"], reach=EITHER)
async def show(cli: Session, id: TaskId) -> None:
    """Show one task: what is asked, of whom, and its history."""
    async with cli.asks() as engine:
        id = await finding.task_id(engine, id)
        row = await engine.task(id)
    if cli.out.as_json:
        cli.out.document(row)
        return
    _report(cli, row)
    cli.out.value({key: value for key, value in row.items() if key not in ("history",) and value is not None})
    for entry in row.get("history") or ():
        what = " ".join(str(entry[k]) for k in ("event", "by", "to", "text") if entry.get(k))
        cli.out.note(f"[dim]{moment(str(entry.get('at') or ''))}[/]  {what}")


@task(examples=["treadle task claim 5f3a… --user ann --role underwriter"], reach=EITHER)
async def claim(cli: Session, id: TaskId, user: User = None, role: Roles = None) -> None:
    """Take a task; only a holder of one of its roles may."""
    async with cli.acts(work=False, creates=False) as engine:
        _report(cli, await engine.task_claim(await finding.task_id(engine, id), user=user, roles=role or []))


@task(examples=["treadle task release 5f3a… --user ann"], reach=EITHER)
async def release(cli: Session, id: TaskId, user: User = None, role: Roles = None) -> None:
    """Give a claimed task back to everybody."""
    async with cli.acts(work=False, creates=False) as engine:
        _report(
            cli, await engine.task_release(await finding.task_id(engine, id), user=user, roles=role or [])
        )


@task(examples=["treadle task assign 5f3a… --to bob --user ann --role underwriter"], reach=EITHER)
async def assign(
    cli: Session,
    id: TaskId,
    to: Annotated[
        str, typer.Option("--to", metavar="USER", help="Whose task it becomes.", show_default=False)
    ],
    user: User = None,
    role: Roles = None,
) -> None:
    """Hand a task to somebody."""
    async with cli.acts(work=False, creates=False) as engine:
        _report(
            cli,
            await engine.task_assign(await finding.task_id(engine, id), to=to, user=user, roles=role or []),
        )


@task(examples=["treadle task comment 5f3a… --text 'asked the customer' --user ann"], reach=EITHER)
async def comment(
    cli: Session,
    id: TaskId,
    text: Annotated[str, typer.Option("--text", help="What to remark.", show_default=False)],
    user: User = None,
    role: Roles = None,
) -> None:
    """Write a remark into a task's history."""
    async with cli.acts(work=False, creates=False) as engine:
        _report(
            cli,
            await engine.task_comment(
                await finding.task_id(engine, id), text=text, user=user, roles=role or []
            ),
        )


@task(
    examples=[
        'treadle task complete 5f3a… --user ann --data \'{"answer": "approve"}\'',
        "treadle task complete 5f3a… --user ann --role admin --data @answer.json --json",
    ],
    reach=EITHER,
)
async def complete(
    cli: Session,
    id: TaskId,
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON|@FILE", help="The answer.", show_default=False)
    ] = None,
    user: User = None,
    role: Roles = None,
    claim: Annotated[bool, typer.Option("--claim", help="Claim it first, in the same command.")] = False,
    expected_version: Annotated[
        int | None,
        typer.Option(
            "--expected-version",
            metavar="N",
            min=0,
            max=NUMBER_MAX,
            help="Refuse if the run's version_no is another.",
            show_default=False,
        ),
    ] = None,
    app: App = None,
) -> int:
    """Answer a task and drive its run on to the next wait."""
    answer = inputs.value(data, "--data")
    async with cli.acts(app, creates=False, help_others=False) as engine:
        id = await finding.task_id(engine, id)
        row = await engine.task(id)
        if data is None and not cli.out.as_json and inputs.is_typed():
            answer = form.asked(row.get("schema"), form.prompt)
        if claim:
            await engine.task_claim(id, user=user, roles=role or [])
        done = await engine.task_complete(
            id, data=answer, user=user, roles=role or [], expected_version=expected_version
        )
        document = await drive(cli, engine, await engine.run(row["run"]), quiet=True)
    return outcome(cli.out, marked(document, done))
