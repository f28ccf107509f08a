"""Arguments that are taken as they were written. Typer has Pydantic convert each of them, also those that were not given,
and to import that takes longer than most commands do; where there is nothing to convert nobody is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.core import TyperArgument, TyperGroup, TyperOption


class AsWritten:
    """Stands in for what converts the values of one parameter, and asks it for those that are not as wanted."""

    def __init__(self, converter: Callable[[], Any]) -> None:
        self._converter = converter

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        wanted = param.type_descriptor.annotation
        if type(value) is wanted and wanted in (str, int, bool):
            return value
        if wanted == list[str] and isinstance(value, list | tuple) and all(type(one) is str for one in value):
            return [*value]
        return self._converter().coerce(value, param=param, ctx=ctx)


class WrittenOption(TyperOption):
    def __init__(self, made: TyperOption) -> None:
        vars(self).update(vars(made))

    def get_runtime_param(self) -> Any:
        return AsWritten(super().get_runtime_param)


class Positional(TyperArgument):
    """An argument whose metavar says all: `ID`, `[ID]...`, `FILE...`."""

    def __init__(self, made: TyperArgument) -> None:
        vars(self).update(vars(made))

    def get_runtime_param(self) -> Any:
        return AsWritten(super().get_runtime_param)

    def display_type_rich(self, ctx: object) -> str | None:
        return None

    def _usage_display_name(self) -> str:
        return self.display_name_raw


def taken(made: list[Any] | None) -> list[Any]:
    """The parameters of a command, as it has them."""
    return [_taken(one) for one in made or ()]


def _taken(made: Any) -> Any:
    if isinstance(made, TyperArgument):
        return Positional(made)
    return WrittenOption(made) if isinstance(made, TyperOption) else made


class PlainGroup(TyperGroup):
    _asks_help: WrittenOption | None = None

    def get_help_option(self, ctx: Any) -> Any:  # types of the copy of Click that Typer keeps to itself
        if self._asks_help is None and (found := super().get_help_option(ctx)) is not None:
            self._asks_help = WrittenOption(found)
        return self._asks_help
