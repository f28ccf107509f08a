"""How a tool says which fields its tasks have: what `check` holds tasks to, and editors complete by.

A declaration is data: it is read without making the tool or importing what the tool needs. A tool
that declares nothing takes whatever it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

Type = Literal["text", "number", "integer", "boolean", "mapping", "list", "duration", "any"]

_WORDS: Final[dict[Type, str]] = {
    "text": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "mapping": "a mapping",
    "list": "a list",
    "duration": "a time (30, 500ms, 2m)",
    "any": "anything",
}
# As JSON Schema has them. A text may stand anywhere, because it may be a template.
_SCHEMAS: Final[dict[Type, dict[str, Any]]] = {
    "text": {"type": ["string", "number", "boolean"]},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "mapping": {"type": "object"},
    "list": {"type": "array"},
    "duration": {"type": ["number", "string"]},
    "any": {},
}
_TEMPLATE: Final = {"type": "string", "pattern": r"\{[{%]"}


class Field(msgspec.Struct, frozen=True):
    """One field of a task. `also` are other names it is read under."""

    name: str
    types: tuple[Type, ...]
    about: str
    also: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    def takes(self, value: object) -> bool:
        """Whether a value that is no template fits. Null is as good as left out."""
        if value is None:
            return True
        if self.choices and isinstance(value, str):
            return value in self.choices
        return any(_FITS[kind](value) for kind in self.types)

    @property
    def wanted(self) -> str:
        return ", ".join(self.choices) or " or ".join(_WORDS[kind] for kind in self.types)

    def schema(self) -> dict[str, Any]:
        kinds = [_SCHEMAS[kind] for kind in self.types]
        if self.choices:
            kinds = [{"enum": list(self.choices)}, *(k for k in kinds if "string" not in k.get("type", ()))]
        if any(not kind for kind in kinds):
            return {"description": self.about}
        return {"description": self.about, "anyOf": [*kinds, _TEMPLATE]}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_FITS: Final[dict[Type, Callable[[object], bool]]] = {
    "text": lambda value: isinstance(value, str | int | float | bool),
    "number": _is_number,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "mapping": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "duration": lambda value: _is_number(value) or isinstance(value, str),
    "any": lambda value: True,
}


class Fields(msgspec.Struct, frozen=True):
    """The fields of a kind of task. Of each group in `required` one must be there; `spec` are knobs
    that stand under `spec`. With `in_args` the fields may stand under `args` as well."""

    about: str
    fields: tuple[Field, ...] = ()
    required: tuple[tuple[str, ...], ...] = ()
    spec: tuple[Field, ...] = ()
    in_args: bool = False
    # Which fields hold code, and in what language: `{"code": "python"}`.
    languages: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Every name that is read, canonical names first."""
        return [f.name for f in self.fields] + [name for f in self.fields for name in f.also]

    def find(self, name: str) -> Field | None:
        return next((f for f in self.fields if name == f.name or name in f.also), None)


# Asked for a kind: what its tasks may hold, or None if that is nobody's business.
Declared = Callable[[str], Fields | None]
