"""What this thread or task has in hand, for whoever speaks on its behalf: a line in the log says of which run it is,
a request to elsewhere passes its trace on.

It travels beside the work, not through every signature: tools, and the libraries below them, know nothing of runs. A
task of the event loop takes it to its end; a thread that goes on with something else says so.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol

from treadle.kernel.model import OpenIntent


class JobAtHand(Protocol):
    run: str
    workflow: str
    intent: OpenIntent
    # Who does it.
    worker: str


_JOB: Final[ContextVar[JobAtHand | None]] = ContextVar("treadle_job", default=None)


def current() -> JobAtHand | None:
    return _JOB.get()


def begin(job: JobAtHand) -> None:
    _JOB.set(job)


def end() -> None:
    _JOB.set(None)
