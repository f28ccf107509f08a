"""That runs began, ended or stalled, said in the log once it is durable."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from treadle.kernel.tracing import parse_traceparent

from .staging import RunTurn

log = logging.getLogger("treadle.runs")


def tell(turns: Sequence[RunTurn]) -> None:
    if not turns or not log.isEnabledFor(logging.INFO):
        return
    for turn in turns:
        trace = parse_traceparent(turn.traceparent)
        words = ["started"] if turn.first else []
        words += [turn.status] if turn.status is not None else []
        for word in words:
            about = {"run": turn.run, "workflow": turn.workflow, "status": word}
            if trace is not None:
                about["trace"] = trace.trace
            log.info("run %s", word, extra=about)
