"""The `treadle` command as a process: from its arguments to its exit code."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from treadle import __version__

if TYPE_CHECKING:
    from typer import Typer


@cache
def _command(named: str | None, *, outline: bool = False) -> Callable[..., object]:
    import typer

    from .application import application
    from .as_written import taken

    made = typer.main.get_command(application(named, outline=outline))
    made.params = taken(made.params)
    return made


def __getattr__(name: str) -> Typer:
    """`app`, for those who ask for all of it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .application import application

    return application()


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script."""
    given = sys.argv[1:] if arguments is None else arguments
    if not __debug__:
        sys.exit("treadle does not run under python -O: its assertions guard your data")
    if given == ["--version"]:
        # Scripts ask this, and often: it takes no application to say it.
        sys.stdout.write(f"treadle {__version__}\n")
        sys.exit(0)
    sys.exit(_performed(given))


def _performed(given: list[str]) -> int:
    """Bad usage is answered as every other error: with `--json`, in JSON."""
    import typer

    from .application import named_by
    from .output import EXIT_FAILED, EXIT_USAGE, Output, Usage

    try:
        for argument in given:
            argument.encode()
    except UnicodeEncodeError:
        return Output(as_json="--json" in given).error(Usage(f"{argument!a} is not valid UTF-8 text"))
    try:
        # The list of all commands shows no option of any. (Without a word it may be a shell that asks, which wants them.)
        outline = given in (["-h"], ["--help"])
        if outline:
            gc.disable()  # nearly all that it makes is there until it ends, which is at once
        code = _command(named_by(given), outline=outline)(given, prog_name="treadle", standalone_mode=False)
    except typer.Abort:
        code = EXIT_FAILED
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            return EXIT_USAGE
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "treadle"
        said = error.format_message().rstrip(".")
        hint = f"{said}{'' if said.endswith('?') else '.'} Try: {path} --help"
        code = Output(as_json="--json" in given).error(Usage(hint))
    return code if isinstance(code, int) else 0
