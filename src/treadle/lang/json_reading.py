"""JSON text to values, with the position of every value, as `yaml_reading` gives them.

JSON is YAML, and what stands in it is said by that reader. This one takes what is plain JSON and has nothing to
complain of, and leaves everything else to it: so the same text is the same document, and who has no YAML at hand does
not load what reads it.
"""

from __future__ import annotations

import math
import re
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

from treadle.kernel.limits import INT_MAX, INT_MIN, VALUE_DEPTH_MAX

from .document import Document, Path

CHARS_MAX: Final = 1024 * 1024
# YAML reads keys up to 1024 characters, with what stands before their colon.
_KEY_CHARS_MAX: Final = 1_000
_NODES_MAX: Final = 100_000

_SPACE: Final = re.compile(r"[ \n]*")
# On the line of its key.
_COLON: Final = re.compile(r" *:")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_JSON: Final = JSONDecoder()
_WORDS: Final = (("null", None), ("true", True), ("false", False))


class _NotPlain(Exception):
    """The text is no JSON, or one of which the reader of YAML may have something to say."""


def read(text: str, file: str | None) -> Document | None:
    """A document; None if YAML has to be asked."""
    if not text.lstrip().startswith(("{", "[")) or len(text) > CHARS_MAX:
        return None
    # Nothing that YAML takes for the end of a line, or refuses.
    if not text.replace("\n", "").isprintable():
        return None
    reader = _Reader(text, Document(None, file))
    try:
        reader.document.value, end = reader.value(reader.skip(0), (), 0)
        return reader.document if reader.skip(end) == len(text) else None
    except _NotPlain:
        return None


class _Reader:
    def __init__(self, text: str, document: Document) -> None:
        self.text = text
        self.document = document
        self._nodes = 0
        # The line that was come to, and where it begins: places come in order.
        self._line = 1
        self._begins = 0
        self._next = text.find("\n")

    def skip(self, at: int) -> int:
        """Where the next sign stands."""
        found = _SPACE.match(self.text, at)
        assert found is not None
        return found.end()

    def place(self, at: int) -> tuple[int, int]:
        while -1 < self._next < at:
            self._line, self._begins = self._line + 1, self._next + 1
            self._next = self.text.find("\n", self._begins)
        return self._line, at - self._begins + 1

    def value(self, at: int, path: Path, depth: int) -> tuple[Any, int]:
        """A value, and where it ends."""
        self._nodes += 1
        if self._nodes > _NODES_MAX or depth > VALUE_DEPTH_MAX:
            raise _NotPlain
        place = self.place(at)
        self.document.positions.setdefault(path, place)
        sign = self.text[at : at + 1]
        if sign == "{":
            return self._object(at + 1, path, depth)
        if sign == "[":
            return self._array(at + 1, path, depth)
        self.document.texts[path] = place[0]
        return self._text(at) if sign == '"' else self._word(at)

    def _object(self, at: int, path: Path, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self.skip(at)
        if self.text.startswith("}", at):
            return found, at + 1
        while True:
            if not self.text.startswith('"', at):
                raise _NotPlain
            key, end = self._text(at)
            colon = _COLON.match(self.text, end)
            if colon is None or key in found or colon.end() - at > _KEY_CHARS_MAX:
                raise _NotPlain
            inner = (*path, key)
            self.document.positions[inner] = self.place(at)
            found[key], at = self.value(self.skip(colon.end()), inner, depth + 1)
            at = self.skip(at)
            if self.text.startswith("}", at):
                return found, at + 1
            at = self._comma(at)

    def _array(self, at: int, path: Path, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self.skip(at)
        if self.text.startswith("]", at):
            return found, at + 1
        while True:
            item, at = self.value(at, (*path, len(found)), depth + 1)
            found.append(item)
            at = self.skip(at)
            if self.text.startswith("]", at):
                return found, at + 1
            at = self._comma(at)

    def _comma(self, at: int) -> int:
        if not self.text.startswith(",", at):
            raise _NotPlain
        return self.skip(at + 1)

    def _text(self, at: int) -> tuple[str, int]:
        try:
            found, end = _JSON.raw_decode(self.text, at)
            found.encode()  # half of a pair of escapes is no character
        except (JSONDecodeError, UnicodeEncodeError) as error:
            raise _NotPlain from error
        return found, end

    def _word(self, at: int) -> tuple[Any, int]:
        for word, meaning in _WORDS:
            if self.text.startswith(word, at):
                return meaning, at + len(word)
        number = _NUMBER.match(self.text, at)
        if number is None or number.end() - at > 64:
            raise _NotPlain
        value = float(number[0]) if number[1] else int(number[0])
        if not (math.isfinite(value) if number[1] else INT_MIN <= value <= INT_MAX):
            raise _NotPlain
        return value, number.end()
