"""YAML as text, written for our own reader (YAML 1.2 core): any text that could be read as something
else is quoted, which PyYAML's own dumper, made for YAML 1.1, would not always do."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from treadle.kernel.values import Value

# Texts that no reader takes for anything but text, so that they need no quotes.
_PLAIN: Final = re.compile(r"[A-Za-z_][\w./-]*(?: [\w./-]+)*\Z")
_WORDS: Final = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null"])
# What readers of YAML 1.1 take for the end of a line, or for nothing.
BREAKS: Final = re.compile("[\x85\u2028\u2029\ufeff]")
WIDTH: Final = 110


def to_yaml(value: Value) -> str:
    """Keys in the order they have; every value in full, however often it stands there."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    if BREAKS.search(text):
        style: str | None = '"'
    elif "\n" in text:
        style = "|"
    else:
        style = None if _PLAIN.match(text) and text.lower() not in _WORDS else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
