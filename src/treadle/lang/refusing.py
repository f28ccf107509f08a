"""What is wrong with Python objects, found while their file is imported.

A decorator refuses a bad function by raising, so an import ends at the first one. Who checks a file wants all of them:
while problems are noted, a refusal is one of them, and the import goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from msgspec.structs import asdict

from treadle.kernel.errors import DefinitionError

from .problems import Problem

_NOTED: Final[ContextVar[list[Problem] | None]] = ContextVar("treadle_problems", default=None)


@contextmanager
def noting() -> Iterator[list[Problem]]:
    """The list that refusals go into, until this is left."""
    found: list[Problem] = []
    token = _NOTED.set(found)
    try:
        yield found
    finally:
        _NOTED.reset(token)


def refuse(name: str, problems: Sequence[Problem], *, code: str = "DEFINITION_INVALID") -> None:
    """Raises one error with all problems of an object; returns only where they are noted instead."""
    noted = _NOTED.get()
    if noted is not None:
        noted.extend(problem for problem in problems if problem not in noted)
        return
    first = problems[0]
    raise DefinitionError(
        f"{name}: {'; '.join(_said(problem) for problem in problems)}",
        code=code,
        where=_place(first) or name,
        details={"problems": [asdict(problem) for problem in problems]},
    )


def _said(problem: Problem) -> str:
    place = _place(problem).rpartition("/")[2]
    parts = (f"{place}: {problem.message}" if place else problem.message, problem.hint)
    return "; ".join(part for part in parts if part)


def _place(problem: Problem) -> str:
    return ":".join(str(part) for part in (problem.file, problem.line) if part is not None)
