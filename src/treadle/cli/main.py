"""The `treadle` command: one application, its commands split by subject into the modules here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Final, NoReturn

import typer

from treadle import __version__

from . import (
    archives,
    audit,
    backing,
    compare,
    dead_letters,
    definitions,
    deleting,
    hooks,
    house,
    limits,
    listing,
    logs,
    mcp_server,
    reactive,
    retention,
    runs,
    schedules,
    serving,
    steer,
    tasks,
    tokens,
    transcripts,
    working,
)
from .command import Defaults
from .output import EXIT_FAILED, EXIT_USAGE, Output, Usage


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


# Every command there is, by subject, in the order of the help.
SUBJECTS: Final = (
    runs.commands,
    listing.commands,
    logs.commands,
    transcripts.commands,
    steer.commands,
    schedules.schedule,
    limits.limit,
    tasks.commands,
    tasks.task,
    definitions.commands,
    reactive.commands,
    compare.commands,
    mcp_server.commands,
    house.commands,
    deleting.commands,
    retention.retention,
    backing.commands,
    archives.archive,
    house.secret,
    tokens.token,
    audit.commands,
    dead_letters.deadletter,
    hooks.hook,
    serving.commands,
    working.commands,
)


@cache
def application(named: str | None = None) -> typer.Typer:
    """All commands; or the one of this name, or the group: to make the options of all takes longer than most commands
    do."""
    made = typer.Typer(
        name="treadle",
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
            subject.install(made, only=named)
    return made


@cache
def _command(named: str | None) -> Callable[..., object]:
    return typer.main.get_command(application(named))


def __getattr__(name: str) -> typer.Typer:
    """`app`, for those who ask for all of it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return application()


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script. Bad usage is answered as every other error: with `--json`, in JSON."""
    given = sys.argv[1:] if arguments is None else arguments
    if not __debug__:
        sys.stderr.write("treadle does not run under python -O: its assertions guard your data\n")
        sys.exit(EXIT_FAILED)
    try:
        for argument in given:
            argument.encode()
    except UnicodeEncodeError:
        sys.exit(Output(as_json="--json" in given).error(Usage(f"{argument!a} is not valid UTF-8 text")))
    named = next((name for subject in SUBJECTS for name in subject.names if given[:1] == [name]), None)
    try:
        code = _command(named)(given, prog_name="treadle", standalone_mode=False)
    except typer.Abort:
        code = EXIT_FAILED
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            sys.exit(EXIT_USAGE)
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "treadle"
        hint = f"{error.format_message().rstrip('.')}. Try: {path} --help"
        code = Output(as_json="--json" in given).error(Usage(hint))
    sys.exit(code if isinstance(code, int) else 0)
