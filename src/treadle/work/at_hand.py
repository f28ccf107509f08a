"""What this thread or task has in hand, for whoever speaks on its behalf: a line in the log says of which run it is,
a request to elsewhere passes its trace on.

It travels beside the work, not through every signature: tools, and the libraries below them, know nothing of runs. A
task of the event loop takes it to its end; a thread that goes on with something else says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

from treadle.kernel.model import OpenIntent

if TYPE_CHECKING:
    from treadle.telemetry.tracer import ToolSpan, WorkSpan


if TYPE_CHECKING:

    class JobAtHand(Protocol):
        run: str
        workflow: str
        intent: OpenIntent
        # Who does it.
        worker: str
        # Where it is traced here.
        span: WorkSpan | None

        @property
        def traceparent(self) -> str | None:
            """What it continues, for those who go on with its trace."""
            ...


_JOB: Final[ContextVar[JobAtHand | None]] = ContextVar("treadle_job", default=None)
# A call of a tool within it, where calls are traced.
_CALL: Final[ContextVar[ToolSpan | None]] = ContextVar("treadle_call", default=None)


# What is at hand; None: nothing is. And what is from now on. Asked for every piece of work: no functions of our own.
current: Final = _JOB.get
begin: Final = _JOB.set


def traceparent() -> str | None:
    """What a request to elsewhere passes on."""
    if (call := _CALL.get()) is not None:
        return str(call.context)
    return None if (job := _JOB.get()) is None else job.traceparent


@contextmanager
def calling(span: WorkSpan, tool: str, attempt: int) -> Iterator[ToolSpan]:
    """A call of a tool on behalf of the job at hand, which is traced."""
    with span.calling(tool, attempt) as made:
        token = _CALL.set(made)
        try:
            yield made
        finally:
            _CALL.reset(token)
