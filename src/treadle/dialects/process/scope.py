"""What an expression of a run can read: its business data, its place in loops, its error."""

from __future__ import annotations

from typing import Final

import msgspec

from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import Context, addressed, is_reference
from treadle.kernel.values import Value
from treadle.lang.duration import instant_text
from treadle.lang.expressions.functions import measure, mistake
from treadle.lang.expressions.references import is_large, part_of

from .program import Program

Thread = dict[str, Value]
# Since this version of the machine what a process builds may have any size: it is stored if it is large.
STORES: Final = 2
# What one value may take when it is put together in memory.
BUILT_BYTES_MAX: Final = 64 * 1024 * 1024
# How often the expressions of one step may look at a value, before they take too long for everybody else.
TURNS_MAX: Final = 1_000_000
# So many characters of a text are counted as one turn.
CHARS_PER_TURN: Final = 1024


class Meter(msgspec.Struct):
    """What the expressions of a slice have cost so far."""

    turns: int = 0
    stored: int = 0


# What fits into the journal, however large it is of its kind.
_SMALL: Final = frozenset({bool, int, float})


class RunScope:
    """The scope of one thread of a run. `reference` follows the run's within a slice."""

    __slots__ = ("_counts", "ctx", "data", "left", "meter", "program", "reference", "thread")

    def __init__(
        self,
        program: Program,
        data: dict[str, Value],
        ctx: Context,
        thread: Thread,
        reference: str | None,
        meter: Meter,
    ) -> None:
        self.meter = meter
        self.left = TURNS_MAX
        self._counts = ctx.machine >= STORES
        self.program = program
        self.data = data
        self.ctx = ctx
        self.thread = thread
        self.reference = reference

    @property
    def now_ns(self) -> int:
        return self.ctx.now_ns

    def at_hand(self, value: Value) -> Value:
        """Whatever looks into values asks here for each of them, so here is where work is counted."""
        found = value
        if type(value) is dict and "store" in value and is_reference(value):
            found = addressed(value, self.ctx.blob(value))
        if self._counts:
            turns = 1 + len(found) // CHARS_PER_TURN if type(found) is str else 1
            self.meter.turns += turns
            self.left -= turns
            if self.left < 0:
                mistake(
                    f"the expressions of this step take more than {TURNS_MAX:,} turns", "EXPRESSION_RANGE"
                )
        return found

    def made(self, value: Value) -> Value:
        """What an expression has built, bounded at once: `[x, x]` of `[x, x]` doubles with each level, until
        it is stored; from then on it holds two references."""
        if value is None or type(value) in _SMALL:
            return value
        if not self._counts:
            if isinstance(value, list | dict):
                measure(value)
            return value
        if is_reference(value) or measure(value, BUILT_BYTES_MAX) <= PAYLOAD_INLINE_BYTES_MAX:
            return value
        reference = self.ctx.store(value, schema_hint="process")
        self.meter.stored += reference["size"]
        return reference

    def root(self, name: str) -> Value:
        match name:
            case "state":
                return self.data["state"]
            case "result":
                return self._results()
            case "start":
                return self.data["start"]
            case "payload":
                return self.thread["payload"]
            case "error":
                return self._error()
            case "run":
                return self._run()
            case _:
                return self._loop(name)

    def whole(self, name: str) -> Value:
        """A root passed on as a value. `state` and `result` are written to in place, so what is
        passed on must be a copy, or a later write would show through it."""
        value = self.root(name)
        if name in ("state", "result"):
            return dict(value)
        if is_reference(value) and "path" in value and not is_large(found := self.at_hand(value)):
            return found  # a small item of a large list
        return value

    def frames(self) -> list[dict[str, Value]]:
        """The frames around, innermost first, through forks up to the run's own."""
        found: list[dict[str, Value]] = []
        thread: Thread | None = self.thread
        while thread is not None:
            for frame in reversed(thread["frames"]):
                found.append(frame)
                # An undo stands in the loops it was registered in.
                found.extend(frame.get("around", ()))
            parent = thread.get("parent")
            thread = self.data["threads"][parent] if parent is not None else None
        return found

    def _results(self) -> dict[str, Value]:
        """An undo reads the result of its own step, whatever a later round made of that name."""
        results: dict[str, Value] = self.data["results"]
        if "undoing" in self.data:
            for frame in self.frames():
                if "results" in frame:
                    return {**results, **frame["results"]}
        return results

    def _error(self) -> Value:
        for frame in self.frames():
            if "error" in frame:
                return frame["error"]
        return None

    def _loop(self, name: str) -> Value:
        for frame in self.frames():
            loop = frame.get("name")
            if loop is None:
                continue
            if name == loop:
                if "item" in frame:
                    return frame["item"]
                items, index = frame["items"], frame["round"]
                return part_of(items, index) if is_reference(items) else items[index]
            if name in ("item_index", f"{loop}_index"):
                return frame["round"]
        return None

    def _run(self) -> dict[str, Value]:
        return {
            "id": self.ctx.run,
            "workflow": self.program.name,
            "version": self.program.version,
            "reference": self.reference,
            "started_at": instant_text(self.ctx.started_ns),
        }
