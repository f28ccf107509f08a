"""schedule add|list|show|change|pause|resume|trigger|backfill|preview|remove: starts that time brings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import inputs
from .command import STEER, Commands, Session
from .moments import instant_ns, moment
from .output import EXIT_OK, Usage
from .reach import EITHER, NEITHER
from .view import outcome

schedule = Commands(STEER, group="schedule", help="Starts by cron, by an interval, or once at an instant.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_default=False)]
Cron = Annotated[
    str | None,
    typer.Option("--cron", metavar="CRON", help="Times on a clock: '30 2 * * *'.", show_default=False),
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="DURATION", help="An interval: 15m, 1h.", show_default=False)
]
At = Annotated[str | None, typer.Option("--at", metavar="INSTANT", help="Once, then.", show_default=False)]
Timezone = Annotated[
    str | None,
    typer.Option(
        "--timezone", metavar="ZONE", help="Whose clock: Europe/Zurich. Default UTC.", show_default=False
    ),
]
Jitter = Annotated[
    str | None,
    typer.Option("--jitter", metavar="DURATION", help="Delays starts by up to this.", show_default=False),
]
CatchUp = Annotated[
    str | None,
    typer.Option(
        "--catch-up", metavar="POLICY", help="Of missed ticks: none, last (default), all.", show_default=False
    ),
]
Overlap = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="POLICY",
        help="While a run of before goes on: skip (default), queue, cancel, allow.",
        show_default=False,
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option("-i", metavar="KEY=VALUE", help="One input; repeatable.", show_default=False),
]
Input = Annotated[
    str | None, typer.Option("--input", metavar="JSON", help="The input, or @file.", show_default=False)
]


@schedule(
    examples=[
        "treadle schedule add nightly etl --cron '30 2 * * *' --timezone Europe/Zurich",
        "treadle schedule add poll import --every 15m --jitter 1m --overlap queue -i source=crm",
        "treadle schedule add launch announce --at 2026-12-01T09:00:00Z",
    ],
    reach=EITHER,
)
async def add(
    cli: Session,
    name: Name,
    workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="What it starts.", show_default=False)],
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    timezone: Timezone = None,
    jitter: Jitter = None,
    catch_up: CatchUp = None,
    overlap: Overlap = None,
    pairs: Pairs = None,
    input: Input = None,
    paused: Annotated[bool, typer.Option("--paused", help="Not yet: `resume` sets it going.")] = False,
) -> None:
    """Start a workflow again and again. It ticks while `treadle serve` (or any engine) owns the store."""
    from treadle.engine import Engine

    fields = _said(cron, every, at, timezone, jitter, catch_up, overlap)
    given = inputs.merged(inputs.value(input, "--input"), pairs or (), "--input")
    async with cli.acts(work=False) as engine:
        row = await engine.schedule_add(name, workflow, given, **fields, paused=paused)
        row.pop("new", None)
        _show(cli, row)
        if isinstance(engine, Engine) and engine.owns:
            cli.out.note("[dim]nobody serves this store now: it ticks while `treadle serve` runs[/]")


@schedule("list", examples=["treadle schedule list", "treadle schedule list --json"], reach=EITHER)
async def list_(cli: Session) -> None:
    """Every schedule: when it ticks next, and what became of its last tick."""
    async with cli.asks() as engine:
        rows = await engine.schedules()
    if cli.out.as_json:
        cli.out.document(rows)
        return
    columns = {"name": "name", "workflow": "workflow", "when": "when", "next": "next", "last": "last"}
    cli.out.rows(
        [_line(row) for row in rows], columns, empty="no schedules; `treadle schedule add` makes one"
    )


@schedule(examples=["treadle schedule show nightly"], reach=EITHER)
async def show(cli: Session, name: Name) -> None:
    """One schedule with its next five ticks."""
    async with cli.asks() as engine:
        _show(cli, await engine.schedule(name))


@schedule(examples=["treadle schedule change nightly --cron '0 3 * * *'"], reach=EITHER)
async def change(
    cli: Session,
    name: Name,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    timezone: Timezone = None,
    jitter: Jitter = None,
    catch_up: CatchUp = None,
    overlap: Overlap = None,
    pairs: Pairs = None,
    input: Input = None,
) -> None:
    """Change what a schedule says; its ticks count from now."""
    fields = _said(cron, every, at, timezone, jitter, catch_up, overlap)
    if input is not None or pairs:
        fields["input"] = inputs.merged(inputs.value(input, "--input"), pairs or (), "--input")
    if not fields:
        raise Usage(
            "say what to change: --cron, --every, --at, --timezone, --jitter, --catch-up, --overlap, --input"
        )
    async with cli.acts(work=False, creates=False) as engine:
        _show(cli, await engine.schedule_change(name, **fields))


@schedule(examples=["treadle schedule pause nightly"], reach=EITHER)
async def pause(cli: Session, name: Name) -> None:
    """Let no tick start anything."""
    async with cli.acts(work=False, creates=False) as engine:
        _show(cli, await engine.schedule_pause(name))


@schedule(examples=["treadle schedule resume nightly"], reach=EITHER)
async def resume(cli: Session, name: Name) -> None:
    """Go on. What was missed in between is caught up with as the schedule says."""
    async with cli.acts(work=False, creates=False) as engine:
        _show(cli, await engine.schedule_resume(name))


@schedule(examples=["treadle schedule trigger nightly"], reach=EITHER)
async def trigger(cli: Session, name: Name) -> int:
    """Start a run now, whatever goes on; it is driven on by whoever serves the store (else: treadle resume ID)."""
    async with cli.acts(work=False, creates=False) as engine:
        run = await engine.run(await engine.schedule_trigger(name))
        outcome(cli.out, await run.show())
    return EXIT_OK


@schedule(
    examples=["treadle schedule backfill nightly --since 2026-11-01T00:00:00Z --until 2026-11-08T00:00:00Z"],
    reach=EITHER,
)
async def backfill(
    cli: Session,
    name: Name,
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="The first instant.", show_default=False)
    ],
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="Before this instant; default now.", show_default=False),
    ] = None,
) -> None:
    """Start the runs of past ticks. A tick that has its run keeps it: given again, it starts nothing new."""
    begins, ends = instant_ns(since, "--since"), instant_ns(until, "--until")
    assert begins is not None
    async with cli.acts(work=False, creates=False) as engine:
        runs = await engine.schedule_backfill(name, since_ns=begins, until_ns=ends)
    if cli.out.as_json:
        cli.out.document({"runs": runs})
    else:
        cli.out.rows([{"run": run} for run in runs], {"run": "run"}, empty="no tick is in this range")


@schedule(
    examples=["treadle schedule preview --cron '30 2 * * *' --timezone Europe/Zurich --count 10"],
    reach=NEITHER,
)
async def preview(
    cli: Session,
    cron: Cron = None,
    every: Every = None,
    at: At = None,
    timezone: Timezone = None,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many ticks.")] = 5,
) -> None:
    """Say when something would tick, without adding it."""
    from treadle.lang.schedules import Schedule
    from treadle.runtime.ports import SystemClock
    from treadle.runtime.schedules import preview as ticks

    fields = _said(cron, every, at, timezone, None, None, None)
    found = ticks(
        Schedule.read({**fields, "name": "preview", "workflow": "preview"}), SystemClock().now_ns(), count
    )
    if cli.out.as_json:
        cli.out.document({"next": found})
    else:
        cli.out.rows([{"next": moment(tick)} for tick in found], {"next": "next"}, empty="never again")


@schedule(examples=["treadle schedule remove nightly"], reach=EITHER)
async def remove(cli: Session, name: Name) -> None:
    """Remove a schedule; its runs go on."""
    async with cli.acts(work=False, creates=False) as engine:
        removed = await engine.schedule_remove(name)
    cli.out.done(removed, f"{name} is removed")


def _said(
    cron: str | None,
    every: str | None,
    at: str | None,
    timezone: str | None,
    jitter: str | None,
    catch_up: str | None,
    overlap: str | None,
) -> dict[str, Any]:
    said = {
        "cron": cron,
        "every": every,
        "at": at,
        "timezone": timezone,
        "jitter": jitter,
        "catch_up": catch_up,
        "overlap": overlap,
    }
    return {name: value for name, value in said.items() if value is not None}


def _when(row: dict[str, Any]) -> str:
    if "cron" in row:
        return f"{row['cron']} {row['timezone']}"
    return f"every {row['every']}" if "every" in row else f"at {moment(row['at'])}"


def _line(row: dict[str, Any]) -> dict[str, Any]:
    last = row["last"]
    ahead = "paused" if row["paused"] else moment(row["next"][0]) if row["next"] else "never again"
    told = "" if last is None else f"{last['outcome']} {moment(last['tick'])}"
    return {**row, "when": _when(row), "next": ahead, "last": told}


def _show(cli: Session, row: dict[str, Any]) -> None:
    if cli.out.as_json:
        cli.out.document(row)
        return
    told = {**row, "when": _when(row), "next": "\n".join(map(moment, row["next"]))}
    cli.out.rows(
        [
            {"what": name, "value": told[name]}
            for name in (
                "name",
                "workflow",
                "when",
                "overlap",
                "catch_up",
                "paused",
                "next",
                "last",
                "waiting",
            )
        ],
        {"what": "", "value": ""},
        empty="",
    )
