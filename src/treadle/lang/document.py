"""A text that has been read: its value, and where each part of it stands. Knows nothing of how texts are written."""

from __future__ import annotations

from typing import Any

import msgspec

Path = tuple[str | int, ...]


class Document(msgspec.Struct):
    """A parsed text: its value, and where each part of it stands (1-based line and column)."""

    value: Any
    file: str | None = None
    positions: dict[Path, tuple[int, int]] = msgspec.field(default_factory=dict)
    # Where texts begin that go over several lines, such as code: behind `|`, on the line after it.
    texts: dict[Path, int] = msgspec.field(default_factory=dict)

    def text_line(self, path: Path) -> int | None:
        """The line on which the text at a path begins."""
        return self.texts.get(path) or self.position(path)[0]

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
