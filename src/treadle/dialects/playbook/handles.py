"""What templates see: results behind handles, payloads behind references, names in layers.

A handle stands for the result of a step or a task. An attribute of it is a key of the result,
`.data` falls back to the whole result, and a few names are its own (`status`, `error`, `_ref`, …).
A reference is loaded when somebody looks inside it, never before; where the payload is not at
hand (a worker loads it with an await), `PayloadNeeded` passes through the template, and the caller
evaluates it again once it has it.

Nothing here knows Jinja; templates ask `attribute` and `item` for every dot and bracket.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol

import msgspec

from treadle.kernel.model import addressed, is_manifest, is_reference
from treadle.kernel.values import Value

from .edition import is_first

Loader = Callable[[Mapping[str, Value]], Value]


class PayloadNeeded(BaseException):
    """A template looked inside a reference whose payload is not at hand. Not an Exception, so that
    no handler of template errors takes it for one."""

    def __init__(self, reference: Mapping[str, Value]) -> None:
        super().__init__(str(reference["checksum"]))
        self.reference = reference


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final[Any] = _Missing()


def _nothing_at_hand(reference: Mapping[str, Value]) -> Value:
    raise PayloadNeeded(reference)


# Set for the length of one evaluation; templates are evaluated from threads and tasks alike.
loader: ContextVar[Loader] = ContextVar("treadle_playbook_loader", default=_nothing_at_hand)


def is_stored(value: Value) -> bool:
    """Whether a value stands in for a payload: a reference, or a manifest of several."""
    return type(value) is dict and (is_reference(value) or is_manifest(value))


def payload_of(value: Value) -> Value:
    """The payload behind a reference or a manifest; any other value is itself."""
    if not is_stored(value):
        return value
    if not is_reference(value):
        out: list[Value] = []
        for part in value["parts"]:
            # A part is a chunk of items, or (in a long loop) again a manifest of chunks.
            out.extend(payload_of(payload_of(part)))
        return out
    return addressed(value, loader.get()(value))


class Handle:
    """A result as templates see it. Compares, iterates and prints like the result itself."""

    __slots__ = ("envelope", "error", "extracted", "http", "meta", "raw", "status")

    def __init__(
        self,
        raw: Value,
        *,
        status: str = "ok",
        error: Value = None,
        http: Value = None,
        meta: Value = None,
        extracted: Mapping[str, Value] | None = None,
        envelope: Mapping[str, Value] | None = None,
    ) -> None:
        self.raw, self.status, self.error, self.http, self.meta = raw, status, error, http, meta
        # What `select` picks of a result that was not stored yet; a reference brings its own.
        self.extracted = extracted
        # What else is known of the outcome, read where the result has no such key.
        self.envelope = envelope

    def payload(self) -> Value:
        return payload_of(self.raw)

    def attribute(self, name: str) -> object:
        if is_first():
            return self._attribute_first(name)
        if name in _OF_REFERENCE and (found := _OF_REFERENCE[name](self)) is not MISSING:
            return found
        picked = self._picked(name)
        if picked is not MISSING:
            return picked
        value = payload_of(self.raw)
        if type(value) is dict and name in value:
            # The body of an http result is a handle again, so that `output.data.data` finds it too.
            return Handle(value[name]) if name == "data" and _is_http(value) else wrap(value[name])
        if name in _OWN and (found := _OWN[name](self)) is not MISSING:
            return found
        if name in _ALIASES and (found := _ALIASES[name](value)) is not MISSING:
            return found
        return MISSING if self.envelope is None else self.envelope.get(name, MISSING)

    def _picked(self, name: str) -> object:
        """What `select` picked is read without loading the rest."""
        raw = self.raw
        if type(raw) is dict and "extracted" in raw and is_stored(raw) and name in (raw["extracted"] or ()):
            return raw["extracted"][name]
        if self.extracted is not None and name in self.extracted:
            return self.extracted[name]
        return MISSING

    def _attribute_first(self, name: str) -> object:
        """In 0.1.0 the envelope's names hid the result's."""
        if name in _OWN:
            return _OWN[name](self)
        if name in _OF_REFERENCE:
            found = _OF_REFERENCE[name](self)
            return None if found is MISSING else found
        picked = self._picked(name)
        if picked is not MISSING:
            return picked
        value = payload_of(self.raw)
        if type(value) is dict and name in value:
            return wrap(value[name])
        return _ALIASES[name](value) if name in _ALIASES else MISSING

    def __getitem__(self, key: object) -> object:
        if isinstance(key, str):
            found = self.attribute(key)
            if found is not MISSING:
                return found
        return wrap(self.payload()[key])

    def __iter__(self) -> Iterator[Value]:
        return iter(self.payload())

    def __len__(self) -> int:
        return len(self.payload())

    def __bool__(self) -> bool:
        return bool(self.payload())

    def __contains__(self, item: object) -> bool:
        return item in self.payload()

    def __eq__(self, other: object) -> bool:
        return bool(self.payload() == (other.payload() if isinstance(other, Handle) else other))

    def __lt__(self, other: object) -> bool:
        return bool(self.payload() < bare(other))

    def __le__(self, other: object) -> bool:
        return bool(self.payload() <= bare(other))

    def __gt__(self, other: object) -> bool:
        return bool(self.payload() > bare(other))

    def __ge__(self, other: object) -> bool:
        return bool(self.payload() >= bare(other))

    def __add__(self, other: Value) -> Value:
        return self.payload() + bare(other)

    def __radd__(self, other: Value) -> Value:
        return other + self.payload()

    def __hash__(self) -> int:
        return hash(str(self.payload()))

    def __int__(self) -> int:
        return int(self.payload())

    def __float__(self) -> float:
        return float(self.payload())

    def __str__(self) -> str:
        return str(self.payload())


def _field(name: str) -> Callable[[Handle], object]:
    def read(handle: Handle) -> object:
        raw = handle.raw
        return raw.get(name) if is_stored(raw) else MISSING

    return read


_OWN: Final[dict[str, Callable[[Handle], object]]] = {
    "status": lambda handle: handle.status,
    "error": lambda handle: handle.error if handle.error is not None else MISSING,
    "http": lambda handle: handle.http if handle.http is not None else MISSING,
    "meta": lambda handle: handle.meta if handle.meta is not None else MISSING,
}
# What a reference says of itself; of a result that is no reference these are undefined.
_OF_REFERENCE: Final[dict[str, Callable[[Handle], object]]] = {
    "ref": _field("ref"),
    "_ref": _field("ref"),
    "__ref__": _field("ref"),
    "_preview": _field("preview"),
    "_store": _field("store"),
}
# Read only where the result itself has no such key.
_ALIASES: Final[dict[str, Callable[[Value], object]]] = {
    "data": lambda value: value,
    "result": lambda value: value,
    "body": lambda value: value["data"] if _is_http(value) else MISSING,
}


def _is_http(value: Value) -> bool:
    return type(value) is dict and "data" in value and "status_code" in value


def bare(value: object) -> Any:
    return value.payload() if isinstance(value, Handle) else value


def wrap(value: Value) -> Value | Handle:
    """A stored payload becomes a handle, so that the next dot looks inside it."""
    return Handle(value) if type(value) is dict and is_stored(value) else value


def attribute(target: Any, name: str) -> Any:
    """`target.name` for values and handles; MISSING where there is no such key."""
    kind = type(target)
    if kind is dict:
        found = target.get(name, MISSING)
        if found is MISSING and name == "body" and _is_http(target):
            found = target["data"]
        return wrap(found) if type(found) is dict else found
    if kind is Handle:
        return target.attribute(name)
    return MISSING


class Layer(Protocol):
    """Names, and what they stand for."""

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> object: ...


class TemplateScope(msgspec.Struct):
    """The names of one evaluation. Fixed names win; then the first layer that has the key."""

    names: dict[str, Any]
    layers: tuple[Layer, ...] = ()
    # Steps and tasks: names that may have no value yet.
    later: Container[str] = ()

    def resolve(self, name: str) -> Any:
        found = self.names.get(name, MISSING)
        if found is not MISSING:
            return found
        for layer in self.layers:
            if name in layer:
                return wrap(layer[name])
        return MISSING


class StepResults(msgspec.Struct):
    """Results of earlier steps as a layer of names; a step that has not ended yet is no name."""

    steps: Mapping[str, Value]

    def __contains__(self, name: object) -> bool:
        entry = self.steps.get(name)  # type: ignore[call-overload]  # a template may ask for any key
        return entry is not None and entry["status"] in ("done", "failed")

    def __getitem__(self, name: str) -> Handle:
        entry = self.steps[name]
        status = "ok" if entry["status"] == "done" else "error"
        return Handle(entry.get("result"), status=status, error=entry.get("error"))
