"""`--log text|json`: what happens, a line each, on standard error.

A line is put together where something happens, because only there it is known for which run, by which worker and on
whose request, and it is written by a thread of its own: nothing waits for a terminal or a pipe, the core least of all.
When nobody reads, lines are dropped, and how many is said. Secrets are taken out of all that a line holds.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Full, SimpleQueue
from typing import Annotated, Any, Final, Literal, TextIO

import typer

LINES_MAX: Final = 10_000
FLUSH_S: Final = 5.0
# What a line may say besides its message; whoever logs gives it as `extra`.
FIELDS: Final = (
    *("run", "workflow", "intent", "worker", "request", "user", "method", "route", "status", "ms", "server"),
    "trace",
)

Form = Literal["text", "json"]
LogOption = Annotated[
    Form | None,
    typer.Option(
        "--log",
        envvar="TREADLE_LOG",
        help="Say what happens on standard error, a line each. Default: warnings only.",
        rich_help_panel="Common",
        show_default=False,
    ),
]


class LogLines(logging.Handler):
    def __init__(self, form: Form, stream: TextIO, *, lines_max: int = LINES_MAX) -> None:
        super().__init__()
        self._most = lines_max
        self._form = form
        self._stream = stream
        self._lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="treadle-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._lines.qsize() >= self._most:
                raise Full
            self._lines.put(_line(record))
        except Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._lines.put(None)
        self._thread.join(FLUSH_S)
        super().close()

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._dropped and self._lines.qsize() < self._most // 2:
                dropped, self._dropped = self._dropped, 0
                line = {**line, "dropped": dropped}
            try:
                self._stream.write(_as_json(line) if self._form == "json" else _as_text(line))
                self._stream.flush()
            except (OSError, ValueError):
                return  # nobody is left to read


def _line(record: logging.LogRecord) -> dict[str, Any]:
    from treadle.host import acting
    from treadle.kernel.tracing import parse_traceparent
    from treadle.lang.duration import instant_text
    from treadle.work import at_hand

    found: dict[str, Any] = {
        "at": instant_text(int(record.created * 1_000) * 1_000_000),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    if (job := at_hand.current()) is not None:
        found |= {"run": job.run, "workflow": job.workflow, "intent": job.intent.id, "worker": job.worker}
        if (trace := parse_traceparent(at_hand.traceparent())) is not None:
            found |= {"trace": trace.trace, "span": trace.span}
    if (origin := acting.origin()) is not None and origin.request:
        found |= {"request": origin.request, "user": origin.user}
    given = vars(record)
    found |= {name: given[name] for name in FIELDS if given.get(name) is not None}
    if record.exc_info and record.exc_info[1] is not None:
        found["traceback"] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return found


def _as_json(line: dict[str, Any]) -> str:
    from treadle.lang.json_text import to_json

    return f"{to_json(_cleaned(line))}\n"


def _as_text(line: dict[str, Any]) -> str:
    line = _cleaned(line)
    message, trace = line["message"], line.pop("traceback", "")
    head = " ".join(str(line.pop(name)) for name in ("at", "level", "logger", "message"))
    # What the message says already is not said again.
    more = "".join(f" {name}={value}" for name, value in line.items() if str(value) not in message)
    return f"{head}{more}\n{trace}\n" if trace else f"{head}{more}\n"


def _cleaned(line: dict[str, Any]) -> dict[str, Any]:
    from treadle.secrets.logs import cleaned

    return {name: cleaned(value) if isinstance(value, str) else value for name, value in line.items()}


@contextmanager
def written(form: Form | None, stream: TextIO | None = None) -> Iterator[None]:
    """What is logged in here is written in this form; None: as Python does it by itself."""
    if form is None:
        yield
        return
    root, ours = logging.getLogger(), logging.getLogger("treadle")
    handler, before = LogLines(form, stream or sys.stderr), ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        ours.setLevel(before)
        handler.close()
