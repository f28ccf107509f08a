"""YAML and JSON text to values, with the position of every value.

YAML 1.2 core schema: `yes`, `on`, `NO`, `012`, `1e3` without a dot, dates and `12:30` stay what
they look like; only true/false, null, decimal, 0x and 0o integers and floats are converted. The
tags of that schema (`!!str 5`) are honoured. Duplicate keys, anchors that expand without bound, any
other tag and documents that are too large or too deep are errors that name the line.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import yaml

from treadle.kernel.errors import DefinitionError
from treadle.kernel.limits import INT_MAX, INT_MIN, VALUE_DEPTH_MAX

from .document import Document, Path
from .yaml_errors import explain

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

# PyYAML resolves plain scalars as YAML 1.1 has it. Here all of them get one tag of our own, so that
# what they mean is decided below, and a tag that the author wrote can be told from none.
_PLAIN: Final = "tag:treadle,2026:plain"
_CORE: Final = "tag:yaml.org,2002:"
_KINDS: Final = {"null": type(None), "bool": bool, "int": int, "float": float}
_Loader: Any = type(
    "_Loader",
    (getattr(yaml, "CSafeLoader", yaml.SafeLoader),),  # PyYAML may come without libyaml
    {"yaml_implicit_resolvers": {None: [(_PLAIN, re.compile(""))]}},
)

# The tag `!` makes text of anything. libyaml keeps it to itself, so it is looked for in the text.
_AS_TEXT: Final = re.compile(r"(?:&\S+\s+)?!(?:\s|\Z)")

# Compiled for an error only: so large a class of characters takes as long as reading a small file.
_NOT_PRINTABLE: Final = r"[^\x09\x0A\x0D\x20-\x7E\x85\xA0-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]"

# JSON writes what is beyond 16 bits as two escapes, YAML as one.
_SURROGATES: Final = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
)


def read(text: str, file: str | None) -> Document:
    """Raises DefinitionError with file, line and remedy."""
    if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise _bad(
            f"the text is larger than {TEXT_BYTES_MAX // 1024 // 1024} MiB", file, 1, 1, "TEXT_TOO_LARGE"
        )
    document = Document(None, file)
    try:
        builder = _yaml(text, document)
    except DefinitionError as error:
        found = _json(text, document) if error.code == "YAML_SYNTAX" else None
        if found is None:
            raise
        builder = found
    if builder.problems:  # all of them at once: nobody mends a file one key at a time
        first = builder.problems[0]
        raise DefinitionError(
            first["message"],
            code=first["code"],
            where=f"{file or '<text>'}:{first['line']}",
            details={"problems": builder.problems},
        )
    return document


def _yaml(text: str, document: Document) -> _Builder:
    file = document.file
    if text.lstrip().startswith(("{", "[")):
        text = _SURROGATES.sub(_joined, text)
    try:
        _check_depth(text, file)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        found = explain(error, text)
        message = f"not valid YAML: {found.message}"
        raise _bad(message, file, found.line, found.column, "YAML_SYNTAX", found.hint) from error
    except (yaml.YAMLError, UnicodeError) as error:
        if (odd := re.search(_NOT_PRINTABLE, text)) is None:
            raise _bad("not valid YAML: the text cannot be read", file, 1, 1, "YAML_SYNTAX") from error
        line, column = text.count("\n", 0, odd.start()) + 1, odd.start() - text.rfind("\n", 0, odd.start())
        message = f"the character U+{ord(odd[0]):04X} cannot stand in YAML"
        raise _bad(f"not valid YAML: {message}", file, line, column, "YAML_SYNTAX") from error
    builder = _Builder(document, text)
    if node is not None:
        document.value = builder.build(node, (), 0)
    return builder


def _json(text: str, document: Document) -> _Builder | None:
    """JSON that is no YAML: keys beyond 1024 characters, a line break before a colon, control
    characters. Where its values stand is not known; None if it is not JSON either."""
    builder = _Builder(document, text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        for key in found if len(found) < len(pairs) else ():
            if [name for name, _ in pairs].count(key) > 1:
                builder.problem(f"the key {key!r} stands twice", 1, 1, "DUPLICATE_KEY")
        return found

    def constant(name: str) -> None:
        raise ValueError(name)

    try:
        document.value = json.loads(
            text,
            object_pairs_hook=unique,
            parse_int=lambda digits: builder.whole(digits, 10, 1, 1),
            parse_float=lambda digits: builder.plain(digits, 1, 1),
            parse_constant=constant,
        )
    except ValueError:
        return None
    except RecursionError as error:
        raise _bad("nested too deeply", document.file, 1, 1, "TEXT_TOO_DEEP") from error
    document.positions[()] = (1, 1)
    level = [document.value]
    for _ in range(VALUE_DEPTH_MAX + 1):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise _bad("nested too deeply", document.file, 1, 1, "TEXT_TOO_DEEP")
    return builder


def _check_depth(text: str, file: str | None) -> None:
    """Before anything recurses: libyaml composes on the C stack, and a stack that overflows takes
    the process with it. Its events come from a loop."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > VALUE_DEPTH_MAX + 1:
                mark = event.start_mark
                assert mark is not None
                raise _bad("nested too deeply", file, mark.line + 1, mark.column + 1, "TEXT_TOO_DEEP")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _joined(match: re.Match[str]) -> str:
    high, low = int(match[2], 16), int(match[3], 16)
    return f"{match[1]}\\U{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:08x}"


class _Builder:
    def __init__(self, document: Document, text: str) -> None:
        self.document = document
        self.text = text
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
            self.document.texts[path] = line + 1 if node.style in ("|", ">") else line
            return self.scalar(node, line, column)
        own = "seq" if isinstance(node, yaml.SequenceNode) else "map"
        if node.tag != _CORE + own:
            self.unknown_tag(node.tag, line, column)
            return None
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
            if not _is_core(key_node.tag):
                self.unknown_tag(key_node.tag, line, column)
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

    def unknown_tag(self, tag: str, line: int, column: int) -> None:
        written = "!!" + tag.removeprefix(_CORE) if tag.startswith(_CORE) else tag
        self.problem(f"the tag {written[:80]} is not supported here", line, column, "YAML_TAG")

    def scalar(self, node: yaml.ScalarNode, line: int, column: int) -> Any:
        text = str(node.value)
        if node.tag == _PLAIN and not node.style and not _AS_TEXT.match(self.text, node.start_mark.index):
            return self.plain(text, line, column)
        if node.tag in (_PLAIN, _CORE + "str"):
            return text
        if not _is_core(node.tag):
            self.unknown_tag(node.tag, line, column)
            return None
        return self.tagged(node.tag.removeprefix(_CORE), text, line, column)

    def tagged(self, kind: str, text: str, line: int, column: int) -> Any:
        """`!!int "5"`: read as if it were plain; it must then be of the kind that the tag says."""
        before = len(self.problems)
        value = self.plain(text, line, column)
        if kind == "float" and type(value) is int:
            return float(value)
        if type(value) is not _KINDS[kind] and len(self.problems) == before:
            self.problem(f"{text[:64]!r} is not a !!{kind}", line, column, "YAML_TAG")
        return value

    def plain(self, text: str, line: int, column: int) -> Any:
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
                self.problem(f"{text[:64]} is too large a number", line, column, "YAML_NUMBER")
                return None
            return value
        if _NOT_FINITE.match(text):
            self.problem(f"{text} is not a finite number", line, column, "YAML_NUMBER")
            return None
        return text


def _is_core(tag: str) -> bool:
    """Whether a scalar may have this tag."""
    return tag in (_PLAIN, _CORE + "str") or (tag.startswith(_CORE) and tag.removeprefix(_CORE) in _KINDS)


_HINTS = {
    "DUPLICATE_KEY": "remove one of the two, or give it another name",
    "YAML_TAG": "write the value without a tag; !!str, !!int, !!float, !!bool and !!null are known",
    "YAML_NUMBER": "quote it if it is text",
    "YAML_KEY": 'write the key as a word; quote templates: "{{ x }}"',
}


def _problem(
    message: str, file: str | None, line: int, column: int, code: str, hint: str = ""
) -> dict[str, Any]:
    return {
        "severity": "error",
        "code": code,
        "rule": "YAML 1.2 core",
        "message": message,
        "hint": hint or _HINTS.get(code, ""),
        "file": file,
        "line": line,
        "column": column,
        "path": "",
    }


def _bad(
    message: str, file: str | None, line: int, column: int, code: str, hint: str = ""
) -> DefinitionError:
    problem = _problem(message, file, line, column, code, hint)
    return DefinitionError(
        message, code=code, where=f"{file or '<text>'}:{line}", details={"problems": [problem]}
    )
