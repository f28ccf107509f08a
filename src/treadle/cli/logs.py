"""logs, and the part of `show` that is about one step: what was printed, given, got and tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.lang.json_text import to_json
from treadle.views.steps import is_log, is_of, log_text, place_of, step_view

from . import finding
from .command import RUN, Commands, Session
from .moments import moment
from .output import Output, Usage
from .reach import EITHER
from .runs import RunId
from .view import shortened

if TYPE_CHECKING:
    from treadle.client.protocol import RunHandle

commands = Commands(RUN)


@commands(
    examples=[
        "treadle logs etl-1",
        "treadle logs etl-1 --step load --follow",
        "treadle logs etl-1 --json | jq -r .text",
    ],
    reach=EITHER,
)
async def logs(
    cli: Session,
    id: RunId,
    step: Annotated[
        str | None, typer.Option("--step", metavar="NAME", help="Only of this step.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
) -> None:
    """Print what steps and tools printed, by step; with --json one entry per line."""
    from rich.markup import escape

    cli.on_interrupt = ""
    shown = False
    async with cli.asks() as engine:
        found = await finding.run_of(engine, id)
        console = cli.out.console
        async for event in found.events(follow=follow):
            if not is_log(event) or (step is not None and not is_of(step, event)):
                continue
            shown = True
            if cli.out.as_json:
                cli.out.line({**event, "text": log_text(event)})
                continue
            head = f"[dim]{moment(event['at'])}[/]  [cyan]{escape(place_of(event))}[/]"
            for line in log_text(event).splitlines():
                mark = "[red]![/] " if event.get("stream") == "stderr" else ""
                console.print(f"{head}  {mark}{escape(line)}", soft_wrap=True)
    if not shown and not cli.out.as_json:
        cli.out.note("nothing was printed" + (f" by a step {escape(repr(step))}" if step else ""))


async def show_step(out: Output, run: RunHandle, step: str, *, full: bool) -> None:
    """`treadle show ID --step NAME`"""
    document, journal = await run.show(), await run.journal()
    events = [event async for event in run.events(follow=False)]
    view = step_view(step, document, journal, events)
    if view is None:
        raise Usage(f"nothing of {run.id} is called {step!r}: `treadle events {run.id}` has the names")
    if out.as_json:
        out.document(view)
    else:
        _describe(out, view if full else shortened(view))


def _describe(out: Output, view: Mapping[str, Any]) -> None:
    from rich.markup import escape

    console = out.console
    console.print(f"[bold]{escape(view['step'])}[/] of {escape(view['run'])}  {view.get('status') or ''}")
    for run in view["runs"]:
        console.print(f"[dim]{moment(run['started_at'])}[/]  {run['status']}")
        for part in ("input", "output"):
            if run[part] not in (None, {}, []):
                console.print(f"[bold dim]{part}[/]")
                console.print(escape(to_json(run[part], indent=2)), soft_wrap=True)
        _error(console, run["error"])
    for attempt in view["attempts"]:
        task = f" {attempt['task']}" if "task" in attempt else ""
        item = f" #{attempt['iteration']}" if "iteration" in attempt else ""
        console.print(
            f"[dim]{moment(attempt['at'])}[/]  {escape(attempt['type'])}{item}{escape(task)}, attempt {attempt['attempt']}"
        )
        if attempt.get("error") not in [run["error"] for run in view["runs"]]:
            _error(console, attempt.get("error"))
    if view["logs"]:
        console.print("[bold dim]logs[/]")
    for entry in view["logs"]:
        for line in entry["text"].splitlines():
            console.print(
                f"[dim]{moment(entry['at'])}  {escape(entry['place'])}[/]  {escape(line)}", soft_wrap=True
            )


def _error(console: Any, error: Mapping[str, Any] | None) -> None:
    from rich.markup import escape

    if not error:
        return
    console.print(f"  [red]{escape(str(error.get('message')))} \\[{escape(str(error.get('code')))}][/]")
    if isinstance(trace := (error.get("details") or {}).get("traceback"), str):
        console.print(f"[dim]{escape(trace.rstrip())}[/]")
