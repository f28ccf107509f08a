"""A process's calls, where a secret that is missing is told with the file and the line that name it."""

from __future__ import annotations

import asyncio
import re

from treadle.kernel.errors import SecretMissing
from treadle.work.again import document_of, value_at
from treadle.work.job import Done, Job

from .transports import Transports

# A text: compiled when the first is read, not at every start of a process.
_PART = r"\[(\d+)\]|([^.\[\]]+)"


class Calls:
    def __init__(self, transports: Transports) -> None:
        self._transports = transports

    async def perform(self, job: Job) -> Done:
        done = await self._transports(job)
        error = done.error
        if error is None or error.get("code") != SecretMissing.code:
            return done
        step, file = job.intent.params.get("path"), await job.definition_file()
        if file is not None and isinstance(step, str):
            said, base = str(error["message"]), job.options.get("base")
            line = await asyncio.to_thread(_line, file, base, step, said)
            if line is not None:
                done.error = {**error, "message": f"{file}, line {line}: {said}"}
        return done


def _line(file: str, base: str | None, step: str, said: str) -> int | None:
    """The line of a step that has a name of which something is said, else the one on which the step begins."""
    document = document_of(file, base)
    if document is None:
        return None
    at = tuple(int(number) if number else name for number, name in re.findall(_PART, step))
    own = [path for path in document.positions if path[: len(at)] == at]
    names = [path for path in own if _is_said(value_at(document, path), said)]
    return document.position((names or own)[0])[0] if own else None


def _is_said(value: object, said: str) -> bool:
    return isinstance(value, str) and f"'{value}'" in said
