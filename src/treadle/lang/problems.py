"""Problems in a definition: all of them at once, each with file, line, rule and remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict

from treadle.kernel.errors import DefinitionError

from .text import Document, Path, path_text


class Problem(msgspec.Struct, frozen=True):
    severity: Literal["error", "warning"]
    code: str
    message: str
    hint: str = ""
    rule: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        hint = f"\n    {self.hint}" if self.hint else ""
        return f"{place or self.path}: {self.severity}: {self.message} [{self.code}]{hint}"


class Problems(msgspec.Struct):
    """Collects what is wrong with one document. `where` paths are looked up in its positions."""

    document: Document | None = None
    found: list[Problem] = msgspec.field(default_factory=list)

    def error(
        self,
        code: str,
        path: Path,
        message: str,
        *,
        hint: str = "",
        rule: str = "",
        inside: int | None = None,
    ) -> None:
        """`inside` names a line of the text at that path, counted from one."""
        self._add("error", code, path, message, hint, rule, inside)

    def warning(self, code: str, path: Path, message: str, *, hint: str = "", rule: str = "") -> None:
        self._add("warning", code, path, message, hint, rule)

    def _add(
        self,
        severity: Literal["error", "warning"],
        code: str,
        path: Path,
        message: str,
        hint: str,
        rule: str,
        inside: int | None = None,
    ) -> None:
        file, line, column = None, None, None
        if self.document is not None:
            file = self.document.file
            line, column = self.document.position(path)
            if inside is not None and (start := self.document.text_line(path)) is not None:
                line, column = start + inside - 1, 1
        problem = Problem(severity, code, message, hint, rule, file, line, column, path_text(path))
        # A template that two rules look at is one mistake.
        if problem not in self.found:
            self.found.append(problem)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.found)

    @property
    def errors(self) -> list[Problem]:
        return [problem for problem in self.found if problem.severity == "error"]

    def to_value(self) -> list[dict[str, Any]]:
        return [asdict(problem) for problem in self.found]

    def raise_errors(self) -> None:
        """Raises one DefinitionError that carries every problem, if any of them is an error."""
        if errors := self.errors:
            first = errors[0]
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            place = f"{first.file or ''}:{first.line}" if first.line else (first.file or first.path or None)
            raise DefinitionError(
                first.message + more, code=first.code, where=place, details={"problems": self.to_value()}
            )
