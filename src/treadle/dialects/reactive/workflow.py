"""A workflow: a pure, typed step function with everything it declares.

The decorator derives the interface (schemas of state, events and key, the effects it may ask for) and a
digest of interface, `version=` and the source text of the step function. Helpers that the function calls
are not in the digest: raise `version=` when they change what it does.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal, get_args

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value, digest, digest_bytes

from .effects import BUILT_IN, Effect, TimerEffect
from .names import check_name, family_name
from .shapes import Option, RecordShape, Shape, Variant
from .step import Context, Output
from .types import shape_of

# Takes (state, event), and the context if it asks for it.
StepFunction = Callable[..., Output[Any]]
Determinism = Literal["strict", "checked", "decision_log"]
_NOT_STEPS = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


@dataclass(frozen=True, slots=True)
class EventType:
    """An event that a workflow takes: its schema's name, its shape, and its tag in the family."""

    name: str
    shape: RecordShape
    tag: str


class Workflow:
    """A step function and its declarations. Call it as the function it decorates."""

    def __init__(
        self,
        name: str,
        step: StepFunction,
        *,
        state: type,
        events: Sequence[type],
        effects: Sequence[Effect | TimerEffect | str],
        key: str | None = None,
        terminal: Callable[[Any], bool] | None = None,
        rejected: bool = True,
        frames: bool = False,
        family: str | None = None,
        determinism: Determinism = "checked",
        version: str | int | None = None,
    ) -> None:
        self.name = check_name(name, "workflow")
        if name.startswith("sys/"):
            raise self._bad("names under sys/ are built in; choose another", code="NAME_RESERVED")
        if any(is_kind(step) for is_kind in _NOT_STEPS):
            raise self._bad(
                "a step is a plain function that returns rx.Output: neither async nor a generator"
            )
        self.step, self.terminal, self.version = step, terminal, version
        self.rejected, self.frames = rejected, frames
        if determinism not in get_args(Determinism):
            raise self._bad(f"determinism is strict, checked or decision_log, not {determinism!r}")
        self.determinism: Determinism = determinism
        self.family = check_name(family or family_name(name), "event family")
        self.names_family = family is not None
        self.state = self._schema(state, "state")
        self.events = self._events(events)
        self.by_schema = {event.name: event for event in self.events}
        declared = self._effects(effects)
        self.effects = {effect.name: effect for effect in declared if isinstance(effect, Effect)}
        self.emits = frozenset(effect.name for effect in declared)
        self.key_path = key
        self.key = self._key_shape(key)
        self.takes_context = self._takes_context()
        self.source = _source_digest(step)
        self.terminal_source = None if terminal is None else _source_digest(terminal)

    def __call__(self, state: object, event: object, ctx: Context | None = None) -> Output[Any]:
        return self.step(state, event, ctx) if self.takes_context else self.step(state, event)

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    @property
    def keyed(self) -> bool:
        return self.key is not None

    def _bad(self, message: str, *, code: str = "WORKFLOW_INVALID") -> DefinitionError:
        return DefinitionError(f"{self.name}: {message}", code=code, where=self.name)

    def _schema(self, cls: object, what: str) -> RecordShape | Variant:
        shape = shape_of(cls)
        if shape is None:
            raise self._bad(f"{what}: {cls!r} is not a class decorated with rx.schema")
        return shape

    def _events(self, events: Sequence[type]) -> tuple[EventType, ...]:
        found: list[EventType] = []
        if not isinstance(events, Iterable):
            raise self._bad("events: a list of classes, as in events=[OrderCreated]")
        for cls in events:
            shape = self._schema(cls, "events")
            if not isinstance(shape, RecordShape) or shape.schema is None:
                raise self._bad(f"events: {cls!r} is not a record")
            found.append(EventType(shape.schema, shape, shape.cls.__name__))
        for what, names in (("schema", [e.name for e in found]), ("class name", [e.tag for e in found])):
            if len({*names}) < len(names):
                raise self._bad(f"events: the same {what} twice in {names}")
        if not found:
            raise self._bad("events: at least one event must be able to reach a workflow")
        return tuple(found)

    def _effects(self, effects: Sequence[Effect | TimerEffect | str]) -> list[Effect | TimerEffect]:
        listed = effects if isinstance(effects, Iterable) else [None]
        found = [BUILT_IN.get(effect) if isinstance(effect, str) else effect for effect in listed]
        known = [effect for effect in found if isinstance(effect, Effect | TimerEffect)]
        if len(known) < len(found):
            raise self._bad(
                "effects: a list of rx.effect(...), rx.timer and names of built-in effects; [] if there are none"
            )
        names = [effect.name for effect in known]
        if len({*names}) < len(names):
            raise self._bad(f"effects: the same effect twice in {names}")
        return known

    def _key_shape(self, path: str | None) -> Shape | None:
        if path is None:
            return None
        if not isinstance(path, str):
            raise self._bad("key: the name of a field of every event", code="KEY_FIELD")
        shapes = [shape_at(event.shape, path) for event in self.events]
        for event, shape in zip(self.events, shapes, strict=True):
            if shape is None:
                raise self._bad(f"key: {event.name} has no field {path}", code="KEY_FIELD")
            if shape.describe() != shapes[0].describe():  # type: ignore[union-attr]  # none of them is None: looked at above
                raise self._bad(f"key: {path} has another type in {event.name}", code="KEY_FIELD")
        key = shapes[0]
        assert key is not None
        if isinstance(key, Option):
            raise self._bad(
                f"key: {path} may be None, and every event needs a key; declare it without None",
                code="KEY_FIELD",
            )
        if key.floats:
            raise self._bad(
                f"key: {self.events[0].tag}.{path} holds a float, which is no key", code="SCHEMA_TYPE"
            )
        return key

    def _takes_context(self) -> bool:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        count = sum(p.kind in kinds for p in inspect.signature(self.step).parameters.values())
        if count not in (2, 3):
            raise self._bad("a step function takes (state, event) or (state, event, ctx)")
        return count == 3

    def node(self, module: str) -> dict[str, Value]:
        """The workflow as it stands in a manifest that the code alone derives."""
        value: dict[str, Value] = {
            "$kind": "defworkflow",
            "name": self.name,
            "state": self.state.describe()["ref"],
            "event": self.family,
            "effects_emitted": sorted(self.emits),
            "determinism": self.determinism,
            "impl": {"module": module, "entrypoint": self.step.__name__},
        }
        if self.takes_context:
            value["context"] = "sys/WorkflowContext@1"
        if self.key is not None:
            value["key_schema"] = self.key.describe()
        return value

    @property
    def code_digest(self) -> str:
        """What the workflow does, as far as it can be seen: its source, its version."""
        return digest({"source": self.source, "terminal": self.terminal_source, "version": self.version})

    def declares(self, effect: str) -> bool:
        return effect in self.emits


def shape_at(shape: Shape, path: str) -> Shape | None:
    """The shape of a field, `a.b` reaching into nested records."""
    for name in path.split("."):
        if not isinstance(shape, RecordShape) or name not in shape.fields:
            return None
        shape = shape.fields[name]
    return shape


def _source_digest(function: Callable[..., object]) -> str:
    try:
        return digest_bytes(textwrap.dedent(inspect.getsource(function)).encode())
    except (OSError, TypeError):  # typed at a prompt, or built by exec: its compiled form has to do
        code = getattr(function, "__code__", None)
        if code is None:
            return digest_bytes(repr(type(function)).encode())
        return digest_bytes(code.co_code + repr((code.co_names, _constants(code.co_consts))).encode())


def _constants(constants: tuple[object, ...]) -> list[str]:
    """Constants as text, nested code as its own bytes: their repr would hold addresses."""
    return [
        f"{c.co_code.hex()}{_constants(c.co_consts)}" if isinstance(c, CodeType) else repr(c)
        for c in constants
    ]


def workflow(
    name: str,
    *,
    state: type,
    events: Sequence[type],
    effects: Sequence[Effect | TimerEffect | str],
    key: str | None = None,
    terminal: Callable[[Any], bool] | None = None,
    rejected: bool = True,
    frames: bool = False,
    family: str | None = None,
    determinism: Determinism = "checked",
    version: str | int | None = None,
) -> Callable[[StepFunction], Workflow]:
    """Makes a step function a workflow. `effects` must be given; [] says that it asks for nothing."""

    def decorate(step: StepFunction) -> Workflow:
        return Workflow(
            name,
            step,
            state=state,
            events=events,
            effects=effects,
            key=key,
            terminal=terminal,
            rejected=rejected,
            frames=frames,
            family=family,
            determinism=determinism,
            version=version,
        )

    return decorate
