"""Shapes: the types of values, each with one canonical form.

A shape turns whatever has its meaning (a typed object, or a raw value from JSON or CBOR) into the one
canonical value of it, and that value back into the typed object. So an event that a program publishes as
a dataclass and one that comes over HTTP as JSON give the same bytes, hence the same digests and intent ids.

Strict: what does not fit is refused with the path to it, never repaired by a guess. The forms, on top of
KERNEL.md §1: time and duration are integers in nanoseconds; decimals and UUIDs are text; sets are sorted
lists; maps with keys that are not text are sorted lists of pairs; a variant is {"$tag": t, "$value": v},
without "$value" for an arm that has none. `{tag: value}`, and bare text for an arm without a value, are
accepted on input only.

Not here: how shapes are derived from Python annotations (`types.py`).
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context as DecimalContext
from decimal import Decimal, Inexact, InvalidOperation
from enum import Enum
from typing import Final

# Only the class: a UUID is a value here, never drawn.
from uuid import UUID

from treadle.kernel.errors import InputInvalid, TreadleError
from treadle.kernel.showing import NUMBER_CHARS_MAX, shown
from treadle.kernel.values import Value, decode_trusted, encode, to_value

from .sets import SteadyFrozenSet, SteadySet

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_DEC128: Final = DecimalContext(prec=34, Emin=-6143, Emax=6144, traps=[Inexact, InvalidOperation])
_PLAIN_DIGITS_MAX: Final = 64
_MISSING: Final = object()


class Misfit(Exception):
    """A value does not fit its shape. `path` grows on the way out, so that a fit costs no path."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.path: list[str] = []

    def under(self, step: str) -> Misfit:
        self.path.insert(0, step)
        return self


def canonical(shape: Shape, raw: object, *, what: str) -> Value:
    """The canonical value of `raw`, or InputInvalid with the path to what does not fit."""
    try:
        return shape.canon(raw)
    except Misfit as misfit:
        path = "$" + "".join(misfit.path)
        raise InputInvalid(
            f"{what} does not fit its schema at {path}: {misfit.message}",
            where=what,
            details={"path": path, "errors": [{"path": path, "message": misfit.message}]},
        ) from None


def time_ns(moment: datetime) -> int:
    """Nanoseconds since 1970, exactly (no float in between)."""
    if moment.tzinfo is None:
        raise Misfit("a time without a zone; write datetime(..., tzinfo=UTC)")
    return _delta_ns(moment - _EPOCH)


def _delta_ns(delta: timedelta) -> int:
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1_000


def moment_of(at_ns: int) -> datetime:
    """The instant, truncated to what Python can hold (microseconds)."""
    return _EPOCH + timedelta(microseconds=at_ns // 1_000)


class Shape(ABC):
    """One type of values. `floats` and `secrets` say whether such a value can be inside."""

    floats: bool = False
    secrets: bool = False

    @abstractmethod
    def canon(self, raw: object) -> Value:
        """The canonical value of a typed object or a raw value. Raises Misfit."""

    def load(self, value: Value) -> object:
        """The typed object of a canonical value."""
        return value

    @abstractmethod
    def describe(self) -> Value:
        """The type as it stands in a manifest."""


@dataclass(frozen=True)
class Scalar(Shape):
    """A type without parts. `read` gives the canonical value or raises Misfit."""

    name: str
    read: Callable[[object], Value]
    make: Callable[[Value], object] | None = None

    def canon(self, raw: object) -> Value:
        return self.read(raw)

    def load(self, value: Value) -> object:
        return value if self.make is None else self.make(value)

    def describe(self) -> Value:
        return {self.name: {}}


class _Float(Scalar):
    floats = True


def _expected(what: str, raw: object) -> Misfit:
    return Misfit(f"{what} is expected, got {type(raw).__name__}")


def _read_text(raw: object) -> Value:
    if type(raw) is str:
        return raw
    if isinstance(raw, str):
        return str.__str__(raw)
    raise _expected("text", raw)


def _read_bool(raw: object) -> Value:
    if isinstance(raw, bool):
        return raw
    raise _expected("true or false", raw)


def _integer(least: int, most: int, what: str) -> Callable[[object], Value]:
    def read(raw: object) -> Value:
        if not isinstance(raw, int) or isinstance(raw, bool):
            raise _expected(what, raw)
        if not least <= raw <= most:
            raise Misfit(
                f"{shown(raw, NUMBER_CHARS_MAX)} is not {what}: it must be between {least} and {most}"
            )
        return int(raw)

    return read


def _read_float(raw: object) -> Value:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise _expected("a number", raw)
    try:
        number = float(raw)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise Misfit(f"{shown(raw, NUMBER_CHARS_MAX)} is not a finite number")
    return number + 0.0


def _read_bytes(raw: object) -> Value:
    if isinstance(raw, bytes | bytearray | memoryview):
        return bytes(raw)
    raise _expected("bytes", raw)


def _read_unit(raw: object) -> Value:
    if raw is None:
        return None
    raise _expected("null", raw)


def _read_decimal(raw: object) -> Value:
    """Equal numbers have equal text: no trailing zeros, no exponent below 64 digits."""
    if isinstance(raw, str):
        try:
            raw = Decimal(raw)
        except InvalidOperation:
            raise Misfit("not a decimal number") from None
    if not isinstance(raw, Decimal):
        raise _expected("a decimal number (Decimal, or text)", raw)
    if not raw.is_finite():
        raise Misfit(f"{raw} is not a finite number")
    try:
        plain = raw.normalize(_DEC128)
    except (Inexact, InvalidOperation):
        raise Misfit(f"{raw} has more than 34 digits") from None
    if plain == 0:
        return "0"
    return format(plain, "f") if abs(plain.adjusted()) < _PLAIN_DIGITS_MAX else str(plain)


def _read_time(raw: object) -> Value:
    if isinstance(raw, datetime):
        return _I64(time_ns(raw))
    if isinstance(raw, int) and not isinstance(raw, bool):
        return _I64(raw)
    raise _expected("a time (nanoseconds since 1970)", raw)


def _read_duration(raw: object) -> Value:
    if isinstance(raw, timedelta):
        return _I64(_delta_ns(raw))
    if isinstance(raw, int) and not isinstance(raw, bool):
        return _I64(raw)
    raise _expected("a duration (nanoseconds)", raw)


def _read_uuid(raw: object) -> Value:
    if isinstance(raw, UUID):
        return str(raw)
    if isinstance(raw, str) and _UUID.match(raw):
        return raw.lower()
    raise _expected("a UUID", raw)


_I64 = _integer(-(2**63), 2**63 - 1, "an integer of 64 bits")

TEXT: Final = Scalar("text", _read_text)
BOOL: Final = Scalar("bool", _read_bool)
INT: Final = Scalar("int", _I64)
NAT: Final = Scalar("nat", _integer(0, 2**64 - 1, "a natural number of 64 bits"))
FLOAT: Final = _Float("float", _read_float)
BYTES: Final = Scalar("bytes", _read_bytes)
UNIT: Final = Scalar("unit", _read_unit)
DECIMAL: Final = Scalar("dec128", _read_decimal, Decimal)
TIME: Final = Scalar("time", _read_time, moment_of)
DURATION: Final = Scalar("duration", _read_duration, lambda ns: timedelta(microseconds=ns // 1_000))
IDENTITY: Final = Scalar("uuid", _read_uuid, UUID)


class Option(Shape):
    def __init__(self, inner: Shape) -> None:
        self.inner = inner
        self.floats, self.secrets = inner.floats, inner.secrets

    def canon(self, raw: object) -> Value:
        return None if raw is None else self.inner.canon(raw)

    def load(self, value: Value) -> object:
        return None if value is None else self.inner.load(value)

    def describe(self) -> Value:
        return {"option": self.inner.describe()}


# What a sequence is made with of its items.
Gather = Callable[[Iterable[object]], object]
_STEADY: Final[dict[Gather, Gather]] = {set: SteadySet, frozenset: SteadyFrozenSet}


class Sequence(Shape):
    """list, tuple[T, ...]; and sets, whose canonical form is sorted by bytes without duplicates."""

    def __init__(self, inner: Shape, make: Gather) -> None:
        self.inner, self.make = inner, make
        self.is_set = make in (set, frozenset)
        self.floats, self.secrets = inner.floats, inner.secrets

    def canon(self, raw: object) -> Value:
        allowed = (list, tuple, set, frozenset) if self.is_set else (list, tuple)
        if not isinstance(raw, allowed):
            raise _expected("a set" if self.is_set else "a list", raw)
        canon = self.inner.canon
        out = []
        for index, item in enumerate(raw):
            try:
                out.append(canon(item))
            except Misfit as misfit:
                raise misfit.under(f"[{index}]") from None
        if self.is_set:
            return list(dict(sorted((encode(item), item) for item in out)).values()) if out else out
        return out

    def load(self, value: Value) -> object:
        make = _STEADY.get(self.make, self.make)
        return make([self.inner.load(item) for item in value])

    def describe(self) -> Value:
        return {"set" if self.is_set else "list": self.inner.describe()}


class Mapped(Shape):
    """dict[K, V]: a map where keys are text, else a list of pairs sorted by the key's bytes."""

    def __init__(self, key: Shape, inner: Shape) -> None:
        self.key, self.inner = key, inner
        self.plain = key is TEXT
        self.floats, self.secrets = inner.floats, inner.secrets

    def canon(self, raw: object) -> Value:
        if isinstance(raw, Mapping):
            pairs: list[object] = list(raw.items())
        elif isinstance(raw, list) and not self.plain:
            pairs = raw
        else:
            raise _expected("a map" if self.plain else "a map, or a list of pairs", raw)
        out: dict[bytes, tuple[Value, Value]] = {}
        for index, pair in enumerate(pairs):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise Misfit("a pair [key, value] is expected").under(f"[{index}]")
            try:
                key = self.key.canon(pair[0])
                item = self.inner.canon(pair[1])
            except Misfit as misfit:
                raise misfit.under(f"[{shown(pair[0], NUMBER_CHARS_MAX)}]") from None
            name = encode(key)
            if name in out:
                raise Misfit(f"the key {key!r} stands twice")
            out[name] = (key, item)
        # In the order of the encoding: what a step walks over now is what its replay walks over.
        found = [out[name] for name in sorted(out)]
        return dict(found) if self.plain else [[*pair] for pair in found]

    def load(self, value: Value) -> object:
        pairs = value.items() if self.plain else value
        return {self.key.load(key): self.inner.load(item) for key, item in pairs}

    def describe(self) -> Value:
        return {"map": {"key": self.key.describe(), "value": self.inner.describe()}}


def _reader(shape: Shape) -> Callable[[object], Value]:
    """What gives the canonical value: of a type without parts that is all there is to it."""
    return shape.read if isinstance(shape, Scalar) else shape.canon


class RecordShape(Shape):
    """A class with fields. `schema` is its name where it has one: then others refer to it by name."""

    def __init__(self, cls: type, fields: dict[str, Shape], *, schema: str | None = None) -> None:
        self.cls, self.fields, self.schema = cls, fields, schema
        self.floats = any(shape.floats for shape in fields.values())
        self.secrets = any(shape.secrets for shape in fields.values())
        # Asked with every event: what reads each field, and whether all are the same typed as they are canonical.
        self._reads = {name: _reader(shape) for name, shape in fields.items()}
        self._is_plain = all(isinstance(one, Scalar) and one.make is None for one in fields.values())

    def canon(self, raw: object) -> Value:
        out: dict[str, Value] = {}
        if isinstance(raw, self.cls):
            name = ""
            try:
                for name, read in self._reads.items():
                    out[name] = read(getattr(raw, name))
            except Misfit as misfit:
                raise misfit.under(f".{name}") from None
            return out
        if raw is None and not self.fields:
            return out  # what has nothing to say may come as null: AIR's `unit`
        if not isinstance(raw, Mapping):
            raise _expected(f"{self.cls.__name__} or a map of its fields", raw)
        for name, shape in self.fields.items():
            item = raw.get(name, _MISSING)
            if item is _MISSING:
                if not isinstance(shape, Option):
                    raise Misfit("is missing").under(f".{name}")
                item = None
            try:
                out[name] = shape.canon(item)
            except Misfit as misfit:
                raise misfit.under(f".{name}") from None
        if len(raw) > len(out) or any(name not in out for name in raw):
            unknown = next(name for name in raw if name not in self.fields)
            raise Misfit(f"unknown field; {self.cls.__name__} has {', '.join(self.fields)}").under(
                f".{unknown}"
            )
        return out

    def load(self, value: Value) -> object:
        if self._is_plain and value.keys() == self.fields.keys():
            return self.cls(**value)
        # `get`: an option that a later version of the schema has added is absent from older bytes.
        return self.cls(**{name: shape.load(value.get(name)) for name, shape in self.fields.items()})

    def describe(self) -> Value:
        return {"ref": self.schema} if self.schema is not None else self.body()

    def body(self) -> Value:
        return {"record": {name: shape.describe() for name, shape in self.fields.items()}}


class Variant(Shape):
    """One of several arms. `arms` maps tags to shapes; `tag_of` says which arm a typed object is."""

    def __init__(
        self,
        arms: dict[str, Shape],
        tag_of: Callable[[object], str | None],
        make: Callable[[str], object] | None = None,
        *,
        schema: str | None = None,
    ) -> None:
        self.arms, self.tag_of, self.make, self.schema = arms, tag_of, make, schema
        self.floats = any(shape.floats for shape in arms.values())
        self.secrets = any(shape.secrets for shape in arms.values())

    def canon(self, raw: object) -> Value:
        tag, item = self._split(raw)
        shape = self.arms.get(tag)
        if shape is None:
            raise Misfit(f"{tag!r} is none of {', '.join(self.arms)}")
        try:
            value = shape.canon(item)
        except Misfit as misfit:
            raise misfit.under(".$value") from None
        return {"$tag": tag} if shape is UNIT else {"$tag": tag, "$value": value}

    def _split(self, raw: object) -> tuple[str, object]:
        tag = self.tag_of(raw)
        if tag is not None:
            return tag, None if self.make is not None else raw
        if isinstance(raw, Mapping):
            if "$tag" in raw:
                tag = raw["$tag"]
                if isinstance(tag, str) and all(name in ("$tag", "$value") for name in raw):
                    return tag, raw.get("$value")
            elif len(raw) == 1:
                ((tag, item),) = raw.items()
                if isinstance(tag, str):
                    return tag, item
        elif isinstance(raw, str) and _says_nothing(self.arms.get(raw)):
            return raw, None
        raise _expected(f"one of {', '.join(self.arms)} as {{$tag, $value}}", raw)

    def load(self, value: Value) -> object:
        tag = value["$tag"]
        return self.make(tag) if self.make is not None else self.arms[tag].load(value["$value"])

    def describe(self) -> Value:
        return {"ref": self.schema} if self.schema is not None else self.body()

    def body(self) -> Value:
        return {"variant": {tag: shape.describe() for tag, shape in self.arms.items()}}


def _says_nothing(shape: Shape | None) -> bool:
    return shape is UNIT or (isinstance(shape, RecordShape) and not shape.fields)


def enum_shape(cls: type[Enum], *, schema: str | None = None) -> Variant:
    return Variant(
        dict.fromkeys((member.name for member in cls), UNIT),
        lambda raw: raw.name if isinstance(raw, cls) else None,
        lambda tag: cls[tag],
        schema=schema,
    )


def literal_shape(words: tuple[str, ...]) -> Variant:
    return Variant(
        dict.fromkeys(words, UNIT),
        lambda raw: str.__str__(raw) if isinstance(raw, str) and raw in words else None,
        lambda tag: tag,
    )


def union_shape(records: list[RecordShape]) -> Variant:
    return tagged_shape({record.cls.__name__: record for record in records})


def tagged_shape(arms: dict[str, RecordShape]) -> Variant:
    """A variant of classes under any tags."""
    by_class = {record.cls: tag for tag, record in arms.items()}
    return Variant({**arms}, lambda raw: by_class.get(type(raw)))


def _read_json(raw: object) -> Value:
    try:
        return decode_trusted(encode(to_value(raw)))
    except TreadleError as error:
        raise Misfit(error.message) from None


# Any value, for what comes from outside Python: the configuration and the result of a tool. No annotation
# gives it, because a state or an event of unknown shape could not be checked.
JSON: Final = Scalar("json", _read_json)
