"""What a dialect hands to the engine: definitions, and the few operations on them.

A definition is stored in canonical, normalised form under its digest; compiled forms are made from
it by `Machine.load` and cached. So the stored truth never depends on the compiler of the day.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

import msgspec

from treadle.kernel.errors import Unsupported
from treadle.kernel.machine import Machine
from treadle.kernel.model import OpenIntent
from treadle.kernel.values import Value, digest

from .problems import Problem, Problems
from .standing import Said
from .text import Document

if TYPE_CHECKING:
    from .fields import Declared
    from .graph import Graph

# What a definition can be exported to.
FORMATS: Final = ("yaml", "json", "python")
# What a definition may ask of the house, by the names that most dialects give it at the top of a text.
STANDING: Final = ("schedule", "alerts", "limits")
RETENTION: Final = "retention"


@dataclass(frozen=True)
class Definition:
    """A compiled, canonical, content-addressed workflow.

    `body` is what `Machine.load` reads. `path` is the playbook's `metadata.path`, if it has one;
    `file` (and `line`, of a Python object) says where it came from, for relative paths and messages. None of them is
    digested.
    """

    dialect: str
    name: str
    version: str | None
    body: Value
    path: str | None = None
    file: str | None = None
    line: int | None = field(default=None, compare=False)
    warnings: tuple[Problem, ...] = ()
    # Live Python objects behind the body (a reactive application); found again by `file`.
    code: Any = field(default=None, compare=False)
    # Definitions that it starts by object, not by name: known with it.
    along: Callable[[], Sequence[Definition]] = field(default=tuple, compare=False)

    @property
    def sound(self) -> bool:
        """Whether it compiled. One that did not may be kept all the same, with its text for a body and its errors."""
        return all(problem.severity != "error" for problem in self.warnings)

    @cached_property
    def digest(self) -> str:
        return digest(
            {"dialect": self.dialect, "name": self.name, "version": self.version, "body": self.body}
        )


I_contra = TypeVar("I_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


if TYPE_CHECKING:

    class TypedWorkflow(Protocol[I_contra, R_co]):
        """A Python object that is a workflow, and says of which types: whoever starts it is held to them."""

        def __treadle_definitions__(self, file: str | None = None) -> list[Definition]: ...

        def input(self, given: I_contra) -> Value:
            """An input for the journal. Raises InputInvalid if it does not fit."""

        def result(self, value: Value) -> R_co:
            """A stored result as its annotation promises it."""


class Surroundings(msgspec.Struct, frozen=True):
    """What an engine tells its dialects of itself, for the checks that only it can answer: the names of
    what can be called, the fields that tools declare, and whether a skill is found from a file (or what
    is wrong with the one that is)."""

    callables: Callable[[], Collection[str]] = tuple
    declared: Declared = lambda kind: None
    finds_skill: Callable[[str, str | None], bool | str] = lambda skill, file: False


class Dialect(ABC):
    """One language for writing workflows: all that the house may know of it. Found as
    `treadle.dialects.<name>.DIALECT`; what does its work, as `treadle.performers.<name>.performers`; what it can be asked for
    besides events of its runs, as a `host.offers.Offer` that is handed to an engine.
    Every member that is not abstract has the answer of a dialect that has nothing to say on it."""

    name: str
    machine: Machine
    # Whether its definitions need live code to run, which is found again by the file they came from.
    has_code: ClassVar[bool] = False
    # Whether its runs can rehearse (`dry_run`): decide everything, and do nothing outside.
    rehearses: ClassVar[bool] = False
    # Whether its runs ask models, so that one has to be at hand where they are worked on.
    asks_models: ClassVar[bool] = False
    # Kinds of its work that reach other runs: an engine does them itself, also one that leaves work to others.
    at_home: ClassVar[frozenset[str]] = frozenset()
    # Whether `check_input` is heard before it is known that an input can be stored at all.
    checks_input_first: ClassVar[bool] = False
    # Whether it makes something of inputs and results (`given`, `result`): else nobody has to ask.
    is_typed: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.is_typed = cls.given is not Dialect.given or cls.result is not Dialect.result

    def is_at_home(self, intent: OpenIntent) -> bool:
        """Whether this work reaches other runs."""
        return intent.kind in self.at_home

    def within(self, surroundings: Surroundings) -> Dialect:
        """This dialect for one engine. One that holds live code, or asks the engine, makes an instance
        of its own for each."""
        return self

    # --- from text to definition ---

    @abstractmethod
    def recognises(self, value: Value) -> bool:
        """Whether a parsed text has this dialect's shape."""

    @abstractmethod
    def compile(self, document: Document, *, strict: bool = False) -> tuple[Definition | None, Problems]:
        """Normalises and checks a text. With errors among the problems there is no definition."""

    def verify(self, definition: Definition) -> None:
        """What only the engine can check, of a definition that was not compiled from a text. Raises."""
        return

    def attach(self, code: Any) -> None:
        """Takes the live Python objects behind a definition (`Definition.code`)."""
        raise Unsupported(f"a {self.name} has no code of its own")

    def export(self, definition: Definition, format: str, *, canonical: bool = False) -> str:
        """The definition as text that compiles to the same digest. By default the canonical form is the
        text: it compiles to itself."""
        match format:
            case "yaml":
                from .yaml_text import to_yaml  # who exports nothing does not pay for PyYAML

                return to_yaml(definition.body)
            case "json":
                from .json_text import to_json

                return to_json(definition.body, indent=2) + "\n"
            case "python":
                raise Unsupported(f"a {self.name} cannot be written as Python; choose yaml or json")
        raise Unsupported(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")

    def json_schema(self) -> dict[str, Any] | None:
        """For editors: what a file of this dialect may hold; None if nobody wrote that down."""
        return None

    # --- what a definition says of itself ---

    def names(self, body: Value) -> Iterable[str]:
        """The workflows that a canonical body names, templates among them. Files are looked for by these."""
        return ()

    def children(self, body: Any) -> list[str]:
        """The workflows without which it cannot run; a strict deploy refuses where one is missing."""
        return []

    def about(self, body: Any) -> tuple[str | None, Value]:
        """Its description, and its inputs as this dialect writes them."""
        return body.get("description"), body.get("inputs")

    def input_schema(self, body: Any) -> dict[str, Any] | None:
        """What a run of it is started with, as a JSON Schema to make a form of; None if it does not say. It is an
        offer to whoever starts one: `check_input` judges."""
        return None

    def standing(self, body: Any) -> Said:
        """What it asks of the house that runs it, with the places where that stands."""
        said = body if isinstance(body, dict) else {}
        return {field: ((field,), said[field]) for field in (*STANDING, RETENTION) if field in said}

    def measured(self, kind: str, params: Mapping[str, Any], value: Value) -> Mapping[str, str | int]:
        """What a trace tells of work that came back, besides that it did: `error.type` where it failed all the same.
        Names, counts and codes; never values."""
        return {}

    def needs_model(self, definition: Any) -> bool:
        """Whether a run of it cannot go on without a model."""
        return False

    def given(self, input: object) -> object:
        """An input as its caller has it, before it is checked: typed values of Python may become plain here."""
        return input

    def result(self, definition: Any, value: Value) -> Any:
        """A result as whoever started the run gets it: typed, where a dialect has types."""
        return value

    @abstractmethod
    def check_input(self, definition: Any, input: Value, options: dict[str, Any]) -> Value:
        """The input a run is started with (`definition` is what `machine.load` made): what was given, which is never
        changed in place, or another value. Raises InputInvalid with every error in details["errors"]; then no run is
        made."""

    @abstractmethod
    def graph(self, definition: Any, view: dict[str, Any] | None = None) -> Graph:
        """Draws a definition, or a run of it when `view` (what `machine.view` gave) is there."""
