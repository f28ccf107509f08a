"""A definition as text again. A dialect that knows how to write its own says so (`export`); for the
others the canonical form is the text: it compiles to itself."""

from __future__ import annotations

import re
from typing import Any

import yaml

from treadle.kernel.errors import Unsupported
from treadle.lang.definition import Definition, Dialect
from treadle.lang.json_text import to_json

FORMATS = ("yaml", "json", "python")

# Texts that no reader takes for anything but text, so that they need no quotes.
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*(?: [\w./-]+)*\Z")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])


def export_text(definition: Definition, dialect: Dialect, format: str, *, canonical: bool) -> str:
    """The definition in one of FORMATS."""
    if format not in FORMATS:
        raise Unsupported(f"there is no format {format!r}; choose one of {', '.join(FORMATS)}")
    own = getattr(dialect, "export", None)
    if own is not None:
        text: str = own(definition, format, canonical=canonical)
        return text
    match format:
        case "yaml":
            dumped: str = yaml.dump(
                definition.body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110
            )
            return dumped
        case "json":
            return to_json(definition.body, indent=2) + "\n"
    raise Unsupported(f"a {definition.dialect} cannot be written as Python; choose yaml or json")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    if "\n" in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|")
    plain = _PLAIN.match(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else "'")


_Dumper.add_representer(str, _text)
