"""Help that says what an argument is. Typer shows its Python type: `<list[str]>`, `<bool>`."""

from __future__ import annotations

import inspect
from typing import Any, Final, get_args

from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo, OptionInfo

# No sequence and no count is larger.
NUMBER_MAX: Final = 2**63 - 1


class Positional(TyperArgument):
    """An argument whose metavar says all: `ID`, `[ID]...`, `FILE...`."""

    def __init__(self, made: TyperArgument) -> None:
        vars(self).update(vars(made))

    def display_type_rich(self, ctx: object) -> str | None:
        return None

    def _usage_display_name(self) -> str:
        return self.display_name_raw


class PlainCommand(TyperCommand):
    def __init__(self, *args: Any, params: list[Any] | None = None, **options: Any) -> None:
        shown = [Positional(p) if isinstance(p, TyperArgument) else p for p in params or ()]
        super().__init__(*args, params=shown, **options)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Marks the examples up for whoever asks for help: nobody else needs Rich for it."""
        plain = self.epilog
        self.epilog = _examples(plain or "")
        try:
            super().format_help(ctx, formatter)
        finally:
            self.epilog = plain

    def get_help_option(self, ctx: Any) -> Any:  # types of the copy of Click that Typer keeps to itself
        found = super().get_help_option(ctx)
        if found is not None:
            found.metavar = ""
        return found


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
