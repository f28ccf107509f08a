"""All commands as one application, or only the one that was named: to make the options of all takes longer than most
commands do, and so does importing what they need."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Final, NamedTuple

import typer

from treadle import __version__

from .as_written import PlainGroup
from .command import Commands, Defaults


class Subject(NamedTuple):
    """The commands of one subject: where they are, and what stands right after `treadle` for them."""

    module: str
    commands: str
    names: tuple[str, ...]

    def load(self) -> Commands:
        found: Commands = getattr(import_module(self.module, __package__), self.commands)
        return found


# Every command there is, by subject, in the order of the help.
SUBJECTS: Final = (
    Subject(".runs", "commands", ("run", "resume", "show", "state", "events", "journal", "graph")),
    Subject(".listing", "commands", ("list",)),
    Subject(".logs", "commands", ("logs",)),
    Subject(".transcripts", "commands", ("trace", "transcript")),
    Subject(".steer", "commands", ("patch", "signal", "cancel", "retry", "fork")),
    Subject(".schedules", "schedule", ("schedule",)),
    Subject(".limits", "limit", ("limit",)),
    Subject(".tasks", "commands", ("tasks",)),
    Subject(".tasks", "task", ("task",)),
    Subject(".definitions", "commands", ("check", "deploy", "definitions", "schema", "export")),
    Subject(".reactive", "commands", ("publish", "cells", "cell", "manifest", "apply", "shadow", "snapshot")),
    Subject(".compare", "commands", ("replay", "diff", "record")),
    Subject(".mcp_server", "commands", ("mcp",)),
    Subject(".house", "commands", ("gc", "doctor", "migrate", "bench")),
    Subject(".deleting", "commands", ("delete",)),
    Subject(".retention", "retention", ("retention",)),
    Subject(".backing", "commands", ("backup", "restore")),
    Subject(".archives", "archive", ("archive",)),
    Subject(".house", "secret", ("secret",)),
    Subject(".tokens", "token", ("token",)),
    Subject(".audit", "commands", ("audit",)),
    Subject(".dead_letters", "deadletter", ("deadletter",)),
    Subject(".hooks", "hook", ("hook",)),
    Subject(".serving", "commands", ("serve",)),
    Subject(".working", "commands", ("worker",)),
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"treadle {__version__}")
        raise typer.Exit


def _options(
    ctx: typer.Context,
    store: Annotated[str | None, typer.Option("--store", metavar="URL", hidden=True)] = None,
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
    utc: Annotated[bool, typer.Option("--utc", hidden=True)] = False,
    server: Annotated[str | None, typer.Option("--server", metavar="URL", hidden=True)] = None,
    token: Annotated[str | None, typer.Option("--token", metavar="TOKEN", hidden=True)] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    ctx.obj = Defaults(store, as_json, utc, server, token)


def named_by(given: list[str]) -> str | None:
    """The command or group that a command line begins with."""
    return next((name for subject in SUBJECTS for name in subject.names if given[:1] == [name]), None)


@cache
def application(named: str | None = None, *, outline: bool = False) -> typer.Typer:
    """All commands; or the one of this name, or the group. An outline has their names and what they are for."""
    made = typer.Typer(
        name="treadle",
        cls=PlainGroup,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="One durable workflow engine: data playbooks, AI agents, business processes, event-driven state machines.",
        epilog="[bold]Examples[/]\n  [cyan]treadle check flow.yaml[/]\n  [cyan]treadle run flow.yaml -i day=2026-11-15[/]\n"
        "  [cyan]treadle list --status failed[/]\n  [cyan]treadle resume[/]",
    )
    made.callback()(_options)
    for subject in SUBJECTS:
        if named is None or named in subject.names:
            subject.load().install(made, only=named, outline=outline)
    return made
