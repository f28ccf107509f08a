"""YAML and JSON text to values, with the position of every value.

YAML 1.2 core schema: `yes`, `on`, `NO`, `012`, `1e3` without a dot, dates and `12:30` stay what
they look like; only true/false, null, decimal, 0x and 0o integers and floats are converted.
Duplicate keys, anchors that expand without bound, tags and documents that are too large or too
deep are errors that name the line.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from treadle.kernel.errors import DefinitionError
from treadle.kernel.limits import INT_MAX, INT_MIN, VALUE_DEPTH_MAX

Path = tuple[str | int, ...]

TEXT_BYTES_MAX: Final = 4 * 1024 * 1024
NODES_MAX: Final = 500_000

_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCT = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}

try:
    _Loader: Any = yaml.CSafeLoader
except AttributeError:  # PyYAML without libyaml
    _Loader = yaml.SafeLoader


@dataclass(slots=True)
class Document:
    """A parsed text: its value, and where each part of it stands (1-based line and column)."""

    value: Any
    file: str | None = None
    positions: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def position(self, path: Path) -> tuple[int | None, int | None]:
        """The position of a path, or of the nearest parent that stands in the text."""
        for length in range(len(path), -1, -1):
            if found := self.positions.get(path[:length]):
                return found
        return None, None


def path_text(path: Path) -> str:
    """`steps[3].then[0]`, as people write it."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out


def parse(text: str, *, file: str | None = None) -> Document:
    """Parses YAML (and so JSON). Raises DefinitionError with file, line and remedy."""
    if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise _bad(
            f"the text is larger than {TEXT_BYTES_MAX // 1024 // 1024} MiB", file, 1, 1, "TEXT_TOO_LARGE"
        )
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        message = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise _bad(f"not valid YAML: {message}", file, line, column, "YAML_SYNTAX") from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise _bad(f"not valid YAML: {error}", file, 1, 1, "YAML_SYNTAX") from error
    document = Document(None, file)
    if node is not None:
        builder = _Builder(document)
        document.value = builder.build(node, (), 0)
        if builder.problems:  # all of them at once: nobody mends a file one key at a time
            first = builder.problems[0]
            raise DefinitionError(
                first["message"],
                code=first["code"],
                where=f"{file or '<text>'}:{first['line']}",
                details={"problems": builder.problems},
            )
    return document


class _Builder:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.nodes = 0
        self.problems: list[dict[str, Any]] = []

    def problem(self, message: str, line: int, column: int, code: str) -> None:
        self.problems.append(_problem(message, self.document.file, line, column, code))

    def build(self, node: yaml.Node, path: Path, depth: int) -> Any:
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        self.document.positions.setdefault(path, (line, column))
        self.nodes += 1
        if self.nodes > NODES_MAX:
            raise _bad(
                "the document expands to too many values", self.document.file, line, column, "TEXT_TOO_LARGE"
            )
        if depth > VALUE_DEPTH_MAX:
            raise _bad("nested too deeply", self.document.file, line, column, "TEXT_TOO_DEEP")
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, line, column)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.MappingNode)
        return self.mapping(node, path, depth)

    def mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problem("a key must be text", line, column, "YAML_KEY")
                continue
            key = str(key_node.value)
            if key in out:
                self.problem(f"the key {key!r} stands twice", line, column, "DUPLICATE_KEY")
                continue
            self.document.positions[(*path, key)] = (line, column)
            out[key] = self.build(value_node, (*path, key), depth + 1)
        return out

    def whole(self, digits: str, base: int, line: int, column: int) -> int | None:
        # Python refuses to read very long ones at all; none of more than 64 digits fits.
        value = int(digits, base) if len(digits) <= 64 else INT_MAX + 1
        if INT_MIN <= value <= INT_MAX:
            return value
        self.problem(f"{digits[:64]} does not fit into 64 bits", line, column, "YAML_NUMBER")
        return None

    def scalar(self, node: yaml.ScalarNode, line: int, column: int) -> Any:
        text = str(node.value)
        # The style of a plain scalar is None to PyYAML and '' to libyaml.
        if node.style or (node.tag == "tag:yaml.org,2002:str" and text not in _WORDS and not _plain(text)):
            return text
        if node.tag.startswith("!") or (
            node.tag.startswith("tag:") and not node.tag.startswith("tag:yaml.org,2002:")
        ):
            self.problem(f"the tag {node.tag} is not supported", line, column, "YAML_TAG")
            return None
        if text in _WORDS:
            return _WORDS[text]
        if _INT.match(text):
            return self.whole(text, 10, line, column)
        if _OCT.match(text):
            return self.whole(text[2:], 8, line, column)
        if _HEX.match(text):
            return self.whole(text[2:], 16, line, column)
        if _FLOAT.match(text):
            value = float(text)
            if not math.isfinite(value):
                self.problem(f"{text} is too large a number", line, column, "YAML_NUMBER")
                return None
            return value
        if _NOT_FINITE.match(text):
            self.problem(f"{text} is not a finite number", line, column, "YAML_NUMBER")
            return None
        return text


def _plain(text: str) -> bool:
    return bool(
        _INT.match(text)
        or _OCT.match(text)
        or _HEX.match(text)
        or _FLOAT.match(text)
        or _NOT_FINITE.match(text)
    )


_HINTS = {
    "DUPLICATE_KEY": "remove one of the two, or give it another name",
    "YAML_TAG": "write the value without a tag",
    "YAML_NUMBER": "quote it if it is text",
    "YAML_KEY": 'write the key as a word; quote templates: "{{ x }}"',
}


def _problem(message: str, file: str | None, line: int, column: int, code: str) -> dict[str, Any]:
    return {
        "severity": "error",
        "code": code,
        "rule": "YAML 1.2 core",
        "message": message,
        "hint": _HINTS.get(code, ""),
        "file": file,
        "line": line,
        "column": column,
        "path": "",
    }


def _bad(message: str, file: str | None, line: int, column: int, code: str) -> DefinitionError:
    problem = _problem(message, file, line, column, code)
    return DefinitionError(
        message, code=code, where=f"{file or '<text>'}:{line}", details={"problems": [problem]}
    )
