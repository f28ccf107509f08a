"""The file of a definition, read once more to tell a line of it.

A definition is its content; positions are no part of it. So its file is read again, and only once something has failed.
What has changed since, or is not there, is told without a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value
from treadle.lang.text import Document, parse


def text_of(file: str, base: str | None) -> str | None:
    """The file as it was named, or where the run's definition was: this process may stand elsewhere."""
    for path in _candidates(file, base):
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
    return None


def document_of(file: str, base: str | None) -> Document | None:
    try:
        return parse(text_of(file, base) or "", file=file)
    except DefinitionError:
        return None


def value_at(document: Document, path: tuple[str | int, ...]) -> Value:
    value: Any = document.value
    for part in path:
        value = value[part]
    return value


def _candidates(file: str, base: str | None) -> Iterator[Path]:
    if base is not None:
        yield Path(base) / Path(file).name
    yield Path(file)
