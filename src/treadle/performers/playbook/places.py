"""Where inline code stands in its file: an error in it names the line that its author has to look at.

The file is read again (`work/again.py`), and only once code has failed. What has changed since, or is not there, is told
by the code's own line numbers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.dialects.playbook.model import Task
from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value
from treadle.lang.text import Document, parse
from treadle.tools.protocol import Outcome
from treadle.work.again import document_of, text_of, value_at
from treadle.work.job import Job

# The file that a job's definition came from.
FileOf = Callable[[Job], Awaitable[str | None]]


async def relocate(outcome: Outcome, step: str, task: Task, file: str | None, base: str | None) -> None:
    """Has the traceback and the message of failed inline code name the file and its lines."""
    error, code = outcome.error, task.verbatim.get("code")
    if error is None or file is None or not isinstance(code, str):
        return
    place = await asyncio.to_thread(_find, file, base, step, code)
    if place is None:
        return
    own = re.escape(f"<{task.name}>")
    for told in (error.get("details"), outcome.py):
        if told and isinstance(trace := told.get("traceback"), str):
            told["traceback"] = place.named(trace, rf'File "{own}", line (\d+)', 'File "{}", line {}')
    error["message"] = place.named(str(error["message"]), rf"\({own}, line (\d+)\)", "({}, line {})")


async def say_line(error: dict[str, Any], step: str | None, job: Job, file_of: FileOf) -> None:
    """Has the message about a missing secret say the file and the line that name it: in a step, or in the keychain."""
    secret, file = (error.get("details") or {}).get("name"), await file_of(job)
    if file is None or not isinstance(secret, str):
        return
    line = await asyncio.to_thread(_naming, file, job.options.get("base"), step, secret)
    if line is not None:
        error["message"] = f"{file}, line {line}: {error['message']}"


def _naming(file: str, base: str | None, step: str | None, name: str) -> int | None:
    document = document_of(file, base)
    if document is None:
        return None
    named = [path for path in document.positions if _names(value_at(document, path), name)]
    wanted = [path for path in named if step is not None and _step_of(document, path) == step]
    wanted += [path for path in named if path[:1] == ("keychain",)]
    return document.position(wanted[0])[0] if wanted else None


def _names(value: Value, name: str) -> bool:
    """Whether a text is a name, or has it as a word."""
    return isinstance(value, str) and re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", value) is not None


def _find(file: str, base: str | None, step: str, code: str) -> _Place | None:
    text = text_of(file, base)
    return None if text is None else _Place.of(text, file, step, code)


class _Place:
    """A text in a file: the line it begins on."""

    def __init__(self, file: str, lines: list[str], code: list[str], first: int) -> None:
        self.file, self._lines, self._code, self._first = file, lines, code, first

    @staticmethod
    def of(text: str, file: str, step: str, code: str) -> _Place | None:
        try:
            document = parse(text, file=file)
        except DefinitionError:
            return None
        paths = [path for path in document.texts if value_at(document, path) == code]
        own = [path for path in paths if _step_of(document, path) == step]
        for path in [*own, *paths]:
            if (first := document.text_line(path)) is not None:
                return _Place(file, text.splitlines(), code.splitlines(), first)
        return None

    def line(self, number: int) -> int:
        """The file's line of a line of the code; of quoted text that hides its line breaks, where it begins."""
        at = self._first + number - 1
        wanted = self._code[number - 1].strip() if number <= len(self._code) else ""
        return at if at <= len(self._lines) and wanted in self._lines[at - 1] else self._first

    def named(self, text: str, pattern: str, form: str) -> str:
        return re.sub(pattern, lambda match: form.format(self.file, self.line(int(match[1]))), text)


def _step_of(document: Document, path: tuple[str | int, ...]) -> Value:
    found = value_at(document, path[:2]) if path[:1] == ("workflow",) else None
    return found.get("step") if isinstance(found, dict) else None
