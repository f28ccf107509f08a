"""retention set|list|remove: how long ended runs are kept."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .command import HOUSE, Commands, Session
from .output import Usage
from .reach import EITHER

retention = Commands(
    HOUSE,
    group="retention",
    help="How long ended runs are kept. What is older servers remove by themselves, and `treadle gc`.",
)

# The name under which all other workflows are spoken of.
ALL = "*"
Workflow = Annotated[
    str | None, typer.Argument(metavar="WORKFLOW", help="The workflow's name.", show_default=False)
]
All = Annotated[bool, typer.Option("--all", help="All workflows of which nothing else is said.")]


@retention(
    "set",
    examples=[
        "treadle retention set orders --keep 90d",
        "treadle retention set orders --keep completed=7d --keep failed=365d",
        "treadle retention set --all --keep completed=30d --keep failed=forever",
    ],
    reach=EITHER,
)
async def set_(
    cli: Session,
    workflow: Workflow = None,
    all_: All = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            metavar="[STATUS=]AGE",
            help="30d, forever; with a status, of runs that ended so. Repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say how long ended runs are kept, whatever their definition says."""
    said = _ages(keep or [])
    async with cli.acts(work=False) as engine:
        row = await engine.retention_set(_named(workflow, all_), said)
    cli.out.done(row, f"{row['workflow']}: {_told(row)}; see what that removes with: treadle gc --dry-run")


@retention("list", examples=["treadle retention list", "treadle retention list --json"], reach=EITHER)
async def list_(cli: Session) -> None:
    """What is said of which workflow."""
    async with cli.asks() as engine:
        rows = await engine.retentions()
    if cli.out.as_json:
        cli.out.document(rows)
        return
    shown = [{**row, "said": _told(row)} for row in rows]
    empty = "nothing is said: runs are kept as their definitions say, and removed by treadle gc"
    cli.out.rows(shown, {"workflow": "WORKFLOW", "said": "KEPT"}, empty=empty)


@retention(
    examples=["treadle retention remove orders", "treadle retention remove --all"],
    reach=EITHER,
)
async def remove(cli: Session, workflow: Workflow = None, all_: All = False) -> None:
    """Leave it to the definition again."""
    async with cli.acts(work=False, creates=False) as engine:
        row = await engine.retention_remove(_named(workflow, all_))
    cli.out.done(row, f"{row['workflow']}: kept as its definition says")


def _named(workflow: str | None, all_: bool) -> str:
    if (workflow is None) != all_:
        raise Usage("name a workflow, or say --all")
    return ALL if workflow is None else workflow


def _ages(said: list[str]) -> Any:
    """`30d`, or a mapping of statuses to ages."""
    if not said:
        raise Usage("say how long: --keep 30d, or --keep completed=7d --keep failed=forever")
    ages: dict[str, str] = {}
    for text in said:
        status, sign, age = text.partition("=")
        if not sign and len(said) == 1:
            return text
        if not sign or status in ages:
            raise Usage(
                f"--keep {text}: give one age, or each of several with a status of its own: failed=90d"
            )
        ages[status] = age
    return ages


def _told(row: dict[str, Any]) -> str:
    ages: dict[str, str] = row["keep"] or {}
    if len(set(ages.values())) == 1 and len(ages) == len(STATUSES):
        return next(iter(ages.values()))
    return ", ".join(f"{status} {age}" for status, age in ages.items())


STATUSES = ("cancelled", "completed", "failed", "partial")
