"""What a dialect hands to the engine: definitions, and the few operations on them.

A definition is stored in canonical, normalised form under its digest; compiled forms are made from
it by `Machine.load` and cached. So the stored truth never depends on the compiler of the day.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from treadle.kernel.machine import Machine
from treadle.kernel.values import Value, digest

from .graph import Graph
from .problems import Problem, Problems
from .text import Document


@dataclass(frozen=True)
class Definition:
    """A compiled, canonical, content-addressed workflow.

    `body` is what `Machine.load` reads. `path` is the playbook's `metadata.path`, if it has one;
    `file` says where the text came from, for relative paths and messages: neither is digested.
    """

    dialect: str
    name: str
    version: str | None
    body: Value
    path: str | None = None
    file: str | None = None
    warnings: tuple[Problem, ...] = ()
    # Live Python objects behind the body (a reactive application); found again by `file`.
    code: Any = field(default=None, compare=False)

    @cached_property
    def digest(self) -> str:
        return digest(
            {"dialect": self.dialect, "name": self.name, "version": self.version, "body": self.body}
        )


class Dialect(Protocol):
    """One language for writing workflows. Found as `treadle.dialects.<name>.DIALECT`."""

    name: str
    machine: Machine

    def recognises(self, value: Value) -> bool:
        """Whether a parsed text has this dialect's shape."""
        ...

    def compile(self, document: Document, *, strict: bool = False) -> tuple[Definition | None, Problems]:
        """Normalises and checks a text. With errors among the problems there is no definition."""
        ...

    def check_input(self, definition: Any, input: Value, options: dict[str, Any]) -> Value:
        """The input a run is started with (`definition` is what `machine.load` made). Raises
        InputInvalid with every error in details["errors"]; then no run is made."""
        ...

    def graph(self, definition: Any, view: dict[str, Any] | None = None) -> Graph:
        """Draws a definition, or a run of it when `view` (what `machine.view` gave) is there."""
        ...
