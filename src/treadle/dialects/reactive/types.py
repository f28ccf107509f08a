"""From Python annotations to shapes, at decoration.

Whatever cannot have one canonical form (`Any`, recursion, fixed tuples, a float in a key, a class without
declared fields) is refused here, where it is written, with the path to it; never later, at run time.
Dataclasses, msgspec structs and pydantic models are all classes with declared fields; the last two are
recognised by what they declare, so neither has to be imported.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from treadle.kernel.errors import DefinitionError

from .names import check_name
from .secret import SECRET, Secret
from .shapes import (
    BOOL,
    BYTES,
    DECIMAL,
    DURATION,
    FLOAT,
    IDENTITY,
    INT,
    NAT,
    TEXT,
    TIME,
    UNIT,
    Gather,
    Mapped,
    Option,
    RecordShape,
    Sequence,
    Shape,
    Variant,
    enum_shape,
    literal_shape,
    union_shape,
)

T = TypeVar("T")

_SCHEMA: Final = "__treadle_schema__"
# The name alone, for those who publish an object without knowing this dialect.
SCHEMA_NAME: Final = "__treadle_schema_name__"
_NAT: Final = "treadle.nat"
# A whole number from 0 to 2^64-1.
Nat = Annotated[int, _NAT]

_SCALARS: Final[dict[object, Shape]] = {
    str: TEXT,
    bool: BOOL,
    int: INT,
    float: FLOAT,
    bytes: BYTES,
    Decimal: DECIMAL,
    datetime: TIME,
    timedelta: DURATION,
    UUID: IDENTITY,
    type(None): UNIT,
    None: UNIT,
    Secret: SECRET,
}
_SEQUENCES: Final[dict[object, Gather]] = {list: list, set: set, frozenset: frozenset}
_MAP_KEYS: Final = (TEXT, INT, NAT, IDENTITY)


def refused(path: str, message: str) -> DefinitionError:
    problem = {
        "severity": "error",
        "code": "SCHEMA_TYPE",
        "path": path,
        "message": message,
        "hint": "",
        "rule": "",
    }
    return DefinitionError(
        f"{path}: {message}", code="SCHEMA_TYPE", where=path, details={"path": path, "problems": [problem]}
    )


def schema(name: str) -> Callable[[type[T]], type[T]]:
    """Names a class as a schema and derives its shape."""
    check_name(name, "schema")
    if name.startswith("sys/"):
        raise DefinitionError(f"{name}: names under sys/ are built in; choose another", code="NAME_RESERVED")

    def decorate(cls: type[T]) -> type[T]:
        if not isinstance(cls, type):
            raise refused(name, "rx.schema decorates a class")
        if issubclass(cls, Enum):
            shape: Shape = enum_shape(cls, schema=name)
        else:
            shape = _Deriver(_caller_names(cls)).record(cls, cls.__name__, (), schema=name)
        setattr(cls, _SCHEMA, (cls, shape))
        setattr(cls, SCHEMA_NAME, name)
        return cls

    return decorate


def shape_of(cls: object) -> RecordShape | Variant | None:
    """The shape of a class that was decorated itself (not one that merely inherits from such a class)."""
    found = getattr(cls, _SCHEMA, None)
    return found[1] if found is not None and found[0] is cls else None


def derive(annotation: object, path: str) -> Shape:
    """The shape of an annotation that stands alone (an effect's params, a key)."""
    return _Deriver({}).shape(annotation, path, ())


def _caller_names(cls: type) -> Mapping[str, object]:
    """Local names at the decoration, so that classes inside a function can refer to one another. The
    class itself is not bound yet while it is decorated; naming it here makes recursion visible."""
    frame = sys._getframe(2)
    return {**frame.f_locals, cls.__name__: cls}


class _Deriver:
    def __init__(self, names: Mapping[str, object]) -> None:
        self.names = dict(names)

    def shape(self, annotation: object, path: str, within: tuple[type, ...]) -> Shape:
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return NAT if _NAT in args[1:] and args[0] is int else self.shape(args[0], path, within)
        if isinstance(annotation, typing.NewType):
            return self.shape(annotation.__supertype__, path, within)
        if annotation is Any or isinstance(annotation, TypeVar):
            raise refused(path, "Any has no canonical form; name the type")
        if origin is None and isinstance(annotation, Hashable) and annotation in _SCALARS:
            return _SCALARS[annotation]
        if origin is Literal:
            if not all(isinstance(word, str) for word in args):
                raise refused(path, "a Literal of anything but text; use an Enum")
            return literal_shape(args)
        if origin in (Union, types.UnionType):
            return self.union(args, path, within)
        if origin in _SEQUENCES:
            return self.sequence(args[0], _SEQUENCES[origin], f"{path}[]", within)
        if origin is tuple:
            if len(args) != 2 or args[1] is not ...:
                raise refused(path, "a tuple of fixed length; use tuple[T, ...] or a class with named fields")
            return self.sequence(args[0], tuple, f"{path}[]", within)
        if origin is dict:
            return self.mapped(args, path, within)
        if isinstance(annotation, type) and origin is None:
            if (own := shape_of(annotation)) is not None:
                return own
            if issubclass(annotation, Enum):
                return enum_shape(annotation)
            if annotation in (list, tuple, set, frozenset, dict):
                raise refused(path, f"{annotation.__name__} without the type of its items")
            return self.record(annotation, path, within)
        raise refused(path, f"{annotation!r} has no canonical form")

    def sequence(self, item: object, make: Gather, path: str, within: tuple[type, ...]) -> Sequence:
        return Sequence(self.shape(item, path, within), make)

    def mapped(self, args: tuple[object, ...], path: str, within: tuple[type, ...]) -> Mapped:
        key = self.shape(args[0], f"{path}.<key>", within)
        if key not in _MAP_KEYS:
            raise refused(f"{path}.<key>", "a key of a dict is str, int, rx.Nat or UUID")
        return Mapped(key, self.shape(args[1], f"{path}[]", within))

    def union(self, args: tuple[object, ...], path: str, within: tuple[type, ...]) -> Shape:
        some = [arg for arg in args if arg is not type(None)]
        inner: Shape
        if len(some) == 1:
            inner = self.shape(some[0], path, within)
        else:
            records: list[RecordShape] = []
            for arg in some:
                shape = shape_of(arg)
                if not isinstance(shape, RecordShape):
                    raise refused(path, "a union is of classes decorated with rx.schema, or T | None")
                records.append(shape)
            if len({record.cls.__name__ for record in records}) < len(records):
                raise refused(path, "two classes of this union have the same name, which is their tag")
            inner = union_shape(records)
        return Option(inner) if len(some) < len(args) else inner

    def record(
        self, cls: type, path: str, within: tuple[type, ...], *, schema: str | None = None
    ) -> RecordShape:
        if cls in within:
            raise refused(path, f"{cls.__name__} contains itself; recursive types have no fixed shape")
        names = field_names(cls)
        if names is None:
            raise refused(
                path, f"{cls.__name__} is no type of values; use a dataclass, a msgspec or a pydantic class"
            )
        try:
            hints = get_type_hints(cls, localns=self.names, include_extras=True)
        except (NameError, TypeError) as error:
            raise refused(path, f"an annotation cannot be resolved here: {error}") from error
        fields = {name: self.shape(hints[name], f"{path}.{name}", (*within, cls)) for name in names}
        return RecordShape(cls, fields, schema=schema)


def field_names(cls: type) -> list[str] | None:
    """The declared fields of a dataclass, a msgspec struct or a pydantic model; None for anything else."""
    if dataclasses.is_dataclass(cls):
        hidden = [field.name for field in dataclasses.fields(cls) if not field.init]
        if hidden:
            raise refused(f"{cls.__name__}.{hidden[0]}", "a field that the constructor does not take")
        return [field.name for field in dataclasses.fields(cls)]
    if hasattr(cls, "__struct_fields__"):
        return list(cls.__struct_fields__)
    if hasattr(cls, "model_fields") and hasattr(cls, "model_construct"):
        for name, info in cls.model_fields.items():
            if getattr(info, "alias", None) not in (None, name):
                raise refused(f"{cls.__name__}.{name}", "an alias; fields are stored under their own names")
        return list(cls.model_fields)
    return None
