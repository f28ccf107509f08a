"""Spans of work as whoever performs it sees it: a piece of work in hand, and each call of a tool within it.

They continue the attempt that the journal tells of (`spans.py`), and are told by the process that did the work, under
its own name. Each is one thing that happened once, so its id is drawn; what a process that dies had in hand nobody can
tell of but the next one, who does it again. A bounded queue and a thread stand between work and the collector.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from treadle.kernel.model import Receipt
from treadle.kernel.tracing import TraceContext, TraceIds, parse_traceparent
from treadle.runtime.ports import Work

from .otlp import SPANS_MAX, Otlp
from .spans import ERROR, Attribute, Measured, Span, settled_attributes

QUEUE_MAX: Final = 20_000
SEND_S: Final = 1.0
FLUSH_S: Final = 5.0


class WorkSpan:
    """One piece of work in hand."""

    def __init__(self, tracer: Tracer, work: Work, parent: TraceContext) -> None:
        self._tracer = tracer
        self._work = work
        self._parent = parent
        self._start_ns = time.time_ns()
        self.context = _child_of(parent)
        self._noted: dict[str, Attribute] = {}

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        self._noted.update(attributes)

    def end(self, receipt: Receipt | None) -> None:
        """How it went; None if it was given up, and is done again by somebody."""
        intent = self._work.intent
        about: dict[str, Attribute] = {**self.about, **self._noted, "treadle.status": "given up"}
        if receipt is not None:
            measured = self._tracer.measured(self._work.dialect)
            about |= settled_attributes(receipt.status, receipt.error, measured, intent, receipt.value)
        self._tell(self.context, self._parent, f"perform {intent.name}".rstrip(), self._start_ns, about)

    @contextmanager
    def calling(self, tool: str, attempt: int) -> Iterator[ToolSpan]:
        """A call of a tool within it."""
        made = ToolSpan(_child_of(self.context))
        start_ns = time.time_ns()
        try:
            yield made
        finally:
            about = {**self.about, "treadle.tool": tool, "treadle.attempt": attempt, **made.about}
            self._tell(made.context, self.context, f"tool {tool}", start_ns, about, client=True)

    @property
    def about(self) -> dict[str, Attribute]:
        work = self._work
        return {
            "treadle.run": work.run,
            "treadle.workflow": work.workflow,
            "treadle.intent": work.intent.id,
            "treadle.kind": work.intent.kind,
            "treadle.worker": self._tracer.worker,
        }

    def _tell(
        self,
        context: TraceContext,
        parent: TraceContext,
        name: str,
        start_ns: int,
        about: Mapping[str, Attribute],
        *,
        client: bool = False,
    ) -> None:
        if context.sampled:
            told = Span(
                context.trace,
                context.span,
                parent.span,
                name,
                start_ns,
                time.time_ns(),
                about,
                kind="client" if client else "consumer",
            )
            self._tracer.put(told)


class ToolSpan:
    def __init__(self, context: TraceContext) -> None:
        self.context = context
        self.about: dict[str, Attribute] = {}

    def failed(self, code: str) -> None:
        self.about[ERROR] = code


def _child_of(parent: TraceContext) -> TraceContext:
    return TraceContext(parent.trace, os.urandom(8).hex(), parent.sampled)


class Tracer:
    """`ids` are those of the store whose work is done, where that is known; else the work says what it continues."""

    def __init__(
        self,
        otlp: Callable[[], Otlp],
        worker: str,
        ids: Callable[[], TraceIds] | None,
        measured: Callable[[str], Measured],
    ) -> None:
        self._connect = otlp
        self.worker = worker
        self._ids = ids
        self.measured = measured
        self._otlp: Otlp | None = None
        self._spans: deque[Span] = deque()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        # What there was no room for.
        self.dropped = 0

    def start(self) -> None:
        otlp = self._otlp = self._connect()
        self._stopping.clear()
        self._thread = threading.Thread(target=self._send, args=[otlp], name="treadle-spans", daemon=True)
        self._thread.start()

    def begin(self, work: Work) -> WorkSpan:
        return WorkSpan(self, work, self._parent(work))

    def _parent(self, work: Work) -> TraceContext:
        if self._ids is not None:
            return self._ids().context(work.run, work.options, work.intent.id)
        return parse_traceparent(work.traceparent) or TraceIds().origin(work.run, work.options)

    def put(self, span: Span) -> None:
        """From any thread; never waits."""
        if len(self._spans) >= QUEUE_MAX:
            self.dropped += 1
        else:
            self._spans.append(span)

    def stop(self) -> None:
        """Sends what is there, if the collector answers."""
        self._stopping.set()
        if self._thread is not None and self._otlp is not None:
            self._otlp.stop_within(FLUSH_S, self._thread)

    def _send(self, otlp: Otlp) -> None:
        while True:
            last = self._stopping.wait(SEND_S)
            while self._spans:
                batch = [self._spans.popleft() for _ in range(min(len(self._spans), SPANS_MAX))]
                if not otlp.deliver(batch, once=last):
                    return
            if last:
                return
