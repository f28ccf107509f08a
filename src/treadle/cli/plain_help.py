"""Help that says what an argument is. Typer shows its Python type: `<list[str]>`, `<bool>`."""

from __future__ import annotations

import inspect
from typing import Any, Final, get_args

from typer.core import TyperCommand
from typer.models import ArgumentInfo, OptionInfo

from .as_written import WrittenOption, taken

# No sequence and no count is larger.
NUMBER_MAX: Final = 2**63 - 1


class PlainCommand(TyperCommand):
    _asks_help: WrittenOption | None = None

    def __init__(self, *args: Any, params: list[Any] | None = None, **options: Any) -> None:
        super().__init__(*args, params=taken(params), **options)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Marks the examples up for whoever asks for help: nobody else needs Rich for it."""
        plain = self.epilog
        self.epilog = _examples(plain or "")
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = plain

    def get_help_option(self, ctx: Any) -> Any:  # types of the copy of Click that Typer keeps to itself
        if self._asks_help is None and (found := super().get_help_option(ctx)) is not None:
            self._asks_help = WrittenOption(found)
            self._asks_help.metavar = ""
        return self._asks_help


def _examples(lines: str) -> str:
    from rich.markup import escape

    return "\n".join(["[bold]Examples[/]", *(f"  [cyan]{escape(line)}[/]" for line in lines.splitlines())])


def say_plainly(parameter: inspect.Parameter) -> None:
    """Gives a parameter a metavar in words; a flag has nothing to say beside its name."""
    kind, *told = get_args(parameter.annotation) or (None,)
    for info in told:
        if not isinstance(info, OptionInfo | ArgumentInfo):
            continue
        if info.max == NUMBER_MAX:
            info.max = None  # it is checked all the same, but nobody wants to read it
        if info.metavar is None:
            info.metavar = "" if kind is bool else parameter.name.rstrip("_").upper()
