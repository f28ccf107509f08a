"""What a run is doing while it does it.

On a terminal: what is in hand, with a spinner and the time it has taken, and a line for each thing
that ended. In a pipe: one plain line per change. It reads the run's events and nothing else, so it
shows any dialect; an event it does not know is no line. `following` finds the events.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .output import Output, elapsed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from treadle.kernel.model import OpenIntent

# How an event's type ends, and what it says about its subject.
_BEGINS = ("started", ":enter", "opened", "tool:call", "claimed")
_ENDS = ("done", ":exit", "completed", "settled", "tool:result", "finished", "fired")
_FAILS = ("failed", "rejected", "expired", "timeout", "stalled")
_NOTES = (
    "progress",
    "retry",
    "warning",
    ":waiting",
    "halted",
    "patched",
    "route",
    "signal.received",
    "stale",
)
# Ids of the subject of an event, most specific first.
_SUBJECTS = ("tool", "task", "step", "node", "name", "effect", "signal", "workflow")


@dataclass(slots=True)
class _Activity:
    label: str
    since: float
    note: str = ""
    # Iterations of a loop that are done.
    count: int = 0
    # What a node has asked of models.
    turns: set[tuple[int, int]] = field(default_factory=set)
    tokens: int = 0
    usd: float = 0.0

    @property
    def spent(self) -> str:
        parts = [f"{len(self.turns)} turns"] if len(self.turns) > 1 else []
        if self.tokens:
            parts += [f"{self.tokens:,} tokens", f"${self.usd:.4f}"]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _Subject:
    """What an event is about: a key that its begin and its end share, and how people call it."""

    key: str
    label: str
    # The key of what it is inside of, if it is.
    outer: str = ""

    @property
    def inner(self) -> bool:
        return bool(self.outer)

    @staticmethod
    def of(event: Mapping[str, Any], whose: str = "") -> _Subject:
        """`whose`: the head of everything that a called run is about."""
        home = [str(event[name]) for name in ("step", "node") if isinstance(event.get(name), str)]
        parts = list(home)
        if isinstance(event.get("iteration"), int) and "node" not in event:
            parts.append(f"#{event['iteration']}")
        # The task of a node is a person's, and its name an id.
        inner = ("tool",) if "node" in event else ("task", "tool")
        parts += [str(event[name]) for name in inner if isinstance(event.get(name), str)]
        if not parts:
            parts = [str(event[name]) for name in _SUBJECTS if isinstance(event.get(name), str)][:1]
        if not parts:
            return _Subject("", "")
        outer = f"{whose}{'/'.join(home)}" if home and parts != home else ""
        return _Subject(f"{whose}{'/'.join(parts)}", f"{whose}{' › '.join(parts)}", outer)


class Progress:
    """Feed it events; it tells people. A context manager, because the live display must be closed."""

    def __init__(self, out: Output, *, silent: bool = False) -> None:
        self._out = out
        terminal = out.people.is_terminal
        # With --json a pipe gets no remarks: whoever reads it reads the document.
        self._silent = silent or (out.as_json and not terminal)
        self._fancy = terminal and not self._silent
        self._active: dict[str, _Activity] = {}
        self._live: Live | None = None
        # The last reason that was given for a failure, and of what.
        self._said = ("", "")

    def __enter__(self) -> Self:
        if self._fancy:
            from rich.live import Live

            self._live = Live(
                get_renderable=self._display, console=self._out.people, refresh_per_second=8, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def feed(self, event: Mapping[str, Any], whose: str = "") -> None:
        if self._silent:
            return
        kind = str(event.get("type") or "")
        subject = _Subject.of(event, whose)
        if not subject.label:
            return
        if kind in ("node:turn", "node:usage"):
            self._spend(subject, event)
        elif kind.endswith(_FAILS) or (event.get("error") and not kind.endswith(_BEGINS)):
            self._end(subject, event, "[red]✗[/]", _why(event))
        elif kind.endswith(_BEGINS):
            self._begin(subject, event)
        elif kind.endswith(_ENDS):
            if _status(event) == "failed":
                self._end(subject, event, "[red]✗[/]", _why(event))
            else:
                self._end(subject, event, "" if subject.inner else "[green]✓[/]", "")
        elif kind.endswith(_NOTES):
            self._note(subject, kind, event)

    @property
    def shows(self) -> bool:
        return not self._silent

    def in_hand(self, intents: Mapping[str, OpenIntent], whose: str = "") -> None:
        """Work that is under way, known by its intents."""
        from treadle.kernel.model import ENGINE_KINDS

        for intent in intents.values():
            if intent.kind not in ENGINE_KINDS:
                at = datetime.fromtimestamp(intent.at_ns / 1e9, UTC).isoformat()
                subject = _Subject.of(intent.params, whose)
                if subject.label:
                    self._begin(subject, {"at": at})

    def _begin(self, subject: _Subject, event: Mapping[str, Any]) -> None:
        if subject.key in self._active:
            return
        self._active[subject.key] = _Activity(subject.label, _at(event))
        if self._fancy:
            return
        if not subject.inner:
            self._say(f"· {_escaped(subject.label)} started")
        elif event.get("type") == "tool:call":
            self._say(f"[dim]  {_escaped(subject.label)}[/]")

    def _spend(self, subject: _Subject, event: Mapping[str, Any]) -> None:
        active = self._active.get(subject.key)
        if active is None:
            return
        if "turn" in event:
            active.turns.add((event["nth"], event["turn"]))
        usage = event.get("usage") or {}
        active.tokens += (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
        active.usd += usage.get("usd") or 0

    def _end(self, subject: _Subject, event: Mapping[str, Any], sign: str, why: str) -> None:
        """Something ended. What ends well inside something else is no line of its own."""
        begun = self._active.pop(subject.key, None)
        if not sign:
            outer = self._active.get(subject.outer)
            if outer is not None and str(event.get("type")).endswith("iteration.done"):
                outer.count += 1
            return
        last, reason = self._said
        if why == reason and last.startswith(f"{subject.key}/"):
            why = ""  # the same reason, one level further out
        elif why:
            self._said = (subject.key, why)
        took = ""
        if begun is not None and not (subject.inner and _at(event) <= begun.since):
            took = f" [dim]{elapsed(max(0.0, _at(event) - begun.since))}[/]"
        counted = f" [dim]{begun.count} iterations[/]" if begun is not None and begun.count else ""
        if begun is not None and begun.spent:
            counted += f" [dim]{begun.spent}[/]"
        self._say(f"{sign} {_escaped(subject.label)}{took}{counted}{_escaped(f'  {why}') if why else ''}")

    def _note(self, subject: _Subject, kind: str, event: Mapping[str, Any]) -> None:
        text = _remark(kind, event)
        if kind.endswith("progress") and subject.key in self._active:
            self._active[subject.key].note = text
            if self._fancy:
                return
        self._say(f"[dim]  {_escaped(subject.label)}: {_escaped(text)}[/]")

    def _say(self, text: str) -> None:
        self._out.people.print(text)

    def _display(self) -> RenderableType:
        from rich.spinner import Spinner
        from rich.table import Table

        grid = Table.grid(padding=(0, 1))
        now = time.time()
        shown = list(self._active.values())[-12:]
        for active in shown:
            took = elapsed(max(0.0, now - active.since))
            note = f"{active.count} iterations" if active.count else active.note
            grid.add_row(
                Spinner("dots", style="blue"),
                _escaped(active.label),
                f"[dim]{took}[/]",
                f"[dim]{active.spent}[/]",
                f"[dim]{_escaped(note)}[/]",
            )
        if len(self._active) > len(shown):
            grid.add_row("", f"[dim]and {len(self._active) - len(shown)} more[/]")
        return grid


def _at(event: Mapping[str, Any]) -> float:
    """When it happened, in seconds; the run's own clock, not the reader's."""
    try:
        return datetime.fromisoformat(str(event.get("at"))).timestamp()
    except ValueError:
        return time.time()


def _status(event: Mapping[str, Any]) -> str:
    result = event.get("result")
    return str(result.get("status")) if isinstance(result, Mapping) else str(event.get("status") or "")


def _why(event: Mapping[str, Any]) -> str:
    error = event.get("error")
    if error is None and isinstance(result := event.get("result"), Mapping):
        data = result.get("data")
        error = data.get("error") if isinstance(data, Mapping) else None
    if isinstance(error, Mapping):
        return str(error.get("message") or error.get("kind") or error.get("code") or "")
    return str(error or "")


def _remark(kind: str, event: Mapping[str, Any]) -> str:
    for name in ("message", "reason", "data", "to"):
        if isinstance(event.get(name), str):
            text = str(event[name])
            return f"→ {event['to']} ({text})" if name == "reason" and event.get("to") else text
    if kind == "node:waiting":
        return "waits for a person"
    word = kind.replace(":", ".").rsplit(".", 1)[-1]
    more = " ".join(
        f"{k}={v}" for k, v in event.items() if isinstance(v, int | float) and k not in ("seq", "record")
    )
    return f"{word} {more}".strip()


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
