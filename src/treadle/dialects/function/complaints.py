"""What is wrong with a function as it is decorated: all of it, with its line, its rule and a remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final

from treadle.kernel.errors import DefinitionError
from treadle.lang.duration import parse_duration
from treadle.lang.problems import Problem
from treadle.lang.quota import Quota

from .shapes import hints_of, problem_of
from .source import line_of, spot_of

SHAPE: Final = "FUNCTION_SHAPE"
SETTING: Final = "FUNCTION_SETTING"
TYPE: Final = "FUNCTION_TYPE"
_RULE: Final = "FLOW Exact shapes"


class Complaints:
    """Collects what is wrong with one function."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.found: list[Problem] = []

    def add(self, code: str, message: str, hint: str = "") -> None:
        file, line = self._spot(code)
        self.found.append(Problem("error", code, message, hint=hint, rule=_RULE, file=file, line=line))

    def duration(self, name: str, given: object) -> int | None:
        if given is None:
            return None
        try:
            return parse_duration(given)
        except DefinitionError as error:
            self.add(SETTING, f"{name}: {error.message}", "a number of seconds, or 500ms, 30s, 2h, 3d")
            return None

    def text(self, name: str, given: object) -> str | None:
        if given is None or (isinstance(given, str) and given.strip()):
            return given
        self.add(SETTING, f"{name} is a text, not {given!r}", f'{name}="…"')
        return None

    def limits(self, given: object) -> Quota | None:
        if given is None:
            return None
        try:
            return Quota.read(given)
        except DefinitionError as error:
            self.add(error.code, error.message, 'limits={"concurrency": 5, "rate": "10/s", "queue": 100}')
            return None

    def names(self, name: str, given: object) -> tuple[str, ...]:
        if isinstance(given, list | tuple) and all(isinstance(part, str) for part in given):
            return tuple(given)
        self.add(SETTING, f"{name} is a list of names, not {given!r}", f'{name}=["NAME"]')
        return ()

    def _spot(self, code: str) -> tuple[str | None, int | None]:
        """Of a setting, the line of the decorator; of the rest, that of the function; of what is no function, that
        of whoever called."""
        if not isinstance(self._function, FunctionType):
            return spot_of(sys._getframe(1)) or (None, None)
        code_of = self._function.__code__
        line = code_of.co_firstlineno if code == SETTING else line_of(self._function)
        return code_of.co_filename, line


def annotated(function: FunctionType) -> Iterator[tuple[str, str]]:
    """Parameters whose types cannot be stored, and why. Names that come later are looked at when it is first used."""
    try:
        hints = hints_of(function)
    except NameError:
        return
    for name, hint in hints.items():
        if (problem := problem_of(hint)) is not None:
            yield name, problem
