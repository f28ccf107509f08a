"""One run's function while it lives: its loop, its open awaits, and what one decision makes of an entry.

A run's past is a list of entries: results of awaits, in the order in which they came, with the time of their
record. `feed` gives the function one entry and runs it until it waits again. A life that is made again from the
past is fed the same entries and compared, await by await, with what was recorded (`expected`).

Nothing in here is stored. Whatever the state needs of it is in `Made`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, Literal

from treadle.kernel.errors import Undecidable
from treadle.kernel.limits import (
    PAYLOAD_INLINE_BYTES_MAX,
    STEP_BYTES_MAX,
    STEP_EVENTS_MAX,
    STEP_INTENTS_MAX,
)
from treadle.kernel.model import Intent, addressed, is_reference
from treadle.kernel.values import Value, encode

from .awaits import AT_REST, NOTHING, Await, Decided, Made, Settled
from .errors import Dropped, NotDeterministic
from .guard import here
from .loop import FlowFuture, FlowTask, Ours, make_loop
from .patience import PATIENCE, Patience
from .shapes import CheckedState, plain
from .source import place_of

if TYPE_CHECKING:
    from .workflow import Workflow

log = logging.getLogger("treadle.flow")

Outcome = Literal["completed", "failed", "cancelled", "again"]
# An entry of the past: record, time, how many awaits there were before it, what it is, which await, payload.
Entry = list[Any]
RECORD, AT, BEFORE, WHAT, AWAIT, PAYLOAD = range(6)
# What an entry may be besides the status of a receipt.
SLICE: Final = "slice"
CANCEL: Final = "cancel"
PATCH: Final = "patch"
REOPEN: Final = "reopen"


# What one decision opens, about, of what a record may hold.
BYTES_AT_ONCE_MAX: Final = STEP_BYTES_MAX // 2
# What one decision tells; the rest of a record is for how it ends.
EVENTS_AT_ONCE_MAX: Final = STEP_EVENTS_MAX - 16
EVENT_BYTES_AT_ONCE_MAX: Final = STEP_BYTES_MAX // 4
# The parameters in which a caller's values are.
_LARGE: Final = frozenset({"args", "data", "value", "input", "payload"})


class Life:
    # Ten thousand of them may wait at a time.
    __slots__ = (
        "__weakref__",
        "_dropped",
        "_patience",
        "_timers",
        "answered",
        "cancelled",
        "code",
        "context",
        "count",
        "ctx",
        "data",
        "ending",
        "expected",
        "expired",
        "generation",
        "guarded",
        "loop",
        "made",
        "now_ns",
        "offence",
        "open",
        "outcome",
        "patches",
        "queue",
        "record",
        "reference",
        "repeating",
        "root",
        "run",
        "seed",
        "started_ns",
        "state",
        "undo",
        "undone",
    )

    def __init__(
        self,
        code: Workflow[Any, Any],
        state: dict[str, Any],
        *,
        run: str,
        ctx: Decided,
        patience: Patience = PATIENCE,
    ) -> None:
        self.code = code
        self.guarded = code.guard
        self.state = state
        self.run = run
        self.ctx = ctx
        self.reference: str | None = state.get("reference")
        self.root: str = state["root"]
        self.generation: int = state["generation"]
        self.seed: bytes = state["seed"]
        self.started_ns: int = state["started_ns"]
        self.now_ns: int = self.started_ns
        # The record that is being decided, or repeated.
        self.record: int = state["began"]
        self.data = CheckedState({name: plain(self.loaded(part)) for name, part in state["first"].items()})
        self.count = 0
        self.open: dict[int, Await] = {}
        # A list: many lives wait at the same time, and an empty deque is ten times as large.
        self.queue: list[Await] = []
        self.undo: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        self.undone: list[dict[str, Any]] = []
        # Set while a recorded decision is repeated: the awaits that it has to make again.
        self.expected: Sequence[list[Value]] = ()
        self.repeating = False
        self.patches: dict[str, bool] = dict(state["patches"])
        # On a replay of a record that is decided again: the patches it answered with True.
        self.answered: Mapping[str, bool] | None = None
        self.cancelled = False
        # The record at which the run was past its timeout.
        self.expired: int | None = None
        self.ending = False
        self.outcome: tuple[Outcome, Any] | None = None
        self.offence: Undecidable | None = None
        self.made = Made()
        self.loop = make_loop(self)
        self.context = Context()
        self._timers: dict[int, Await] = {}
        self._patience = patience
        self._dropped = False

    # --- decisions ---

    def begin(self, main: Coroutine[Any, Any, None]) -> None:
        task: FlowTask[None] = self.loop.create_task(main, name=self.code.name, context=self.context)
        task.add_done_callback(Ours(self._ended), context=self.context)
        self.go()

    def feed(self, entry: Entry) -> None:
        """Takes one entry of the past, or the one that has just come."""
        self.now_ns, self.record = entry[AT], entry[RECORD]
        if self.made is NOTHING:
            self.made = Made()
        what = entry[WHAT]
        if entry[BEFORE] != self.count:
            self._differs(entry, f"{entry[BEFORE]} awaits", f"{self.count} awaits")
        elif what == SLICE:
            pass
        elif what == CANCEL:
            self._cancel()
        elif what == REOPEN:
            self._reopen(entry[PAYLOAD]["by"])
            if entry[PAYLOAD]["followed"]:
                return  # by what is told anew, before anything is opened
        elif what == PATCH:
            self.data.update({name: plain(self.loaded(part)) for name, part in entry[PAYLOAD].items()})
        else:
            self._settle(entry)
        self.go()

    def go(self) -> None:
        """Runs the function until it waits, then opens what it waits for."""
        self._drive()
        if self.offence is not None:
            raise self.offence
        room = BYTES_AT_ONCE_MAX
        opened = 0
        for wait in self.queue:
            if room <= 0 or len(self.made.intents) >= STEP_INTENTS_MAX:
                break
            opened += 1
            room -= wait.bytes
            self._open(wait)
        del self.queue[:opened]

    def _drive(self) -> None:
        if self.offence is None:
            self._patience.during(self, self.loop.drive)

    def rest(self) -> None:
        """Lets go of the decision that is over: between decisions a life holds on to nobody's store."""
        self.ctx = AT_REST

    def take(self) -> Made:
        """What goes into one record. What there is more to tell is left for the next."""
        made, self.made = self.made, NOTHING
        if made.sizes is None and len(made.events) <= EVENTS_AT_ONCE_MAX:
            return made  # as nearly always
        sizes, room = made.sizes or {}, 0
        for index in range(len(made.events)):
            room += sizes.get(index, 0)
            if index >= EVENTS_AT_ONCE_MAX or (room > EVENT_BYTES_AT_ONCE_MAX and index > 0):
                left = {at - index: size for at, size in sizes.items() if at >= index}
                self.made = Made(events=made.events[index:], sizes=left or None)
                made.events = made.events[:index]
                break
        return made

    @property
    def owes(self) -> bool:
        """Whether there is more to open, or to tell, than one record may."""
        return bool(self.queue or self.made.events)

    @property
    def is_over(self) -> bool:
        return self.outcome is not None and not self.made.events

    def tell(self, event: dict[str, Any], *, bytes: int = 0) -> None:
        made = self.made
        made.events.append(event)
        if bytes:
            made.sizes = {} if made.sizes is None else made.sizes
            made.sizes[len(made.events) - 1] = bytes

    def _open(self, wait: Await) -> None:
        wait.opened = True
        params = wait.params
        params.setdefault("name", wait.name)
        if wait.bytes > PAYLOAD_INLINE_BYTES_MAX and not self.repeating:
            params = {key: self.lightened(part) if key in _LARGE else part for key, part in params.items()}
        self.made.intents.append(
            Intent(
                kind=wait.kind,
                params=params,
                ref=f"{self.generation}.{wait.number}",
                due_ns=wait.due_ns,
                idempotency_key=wait.key,
                pool=str(params.get("pool") or ""),
            )
        )
        self._tell(wait, "opened")

    def _reopen(self, by: str | None) -> None:
        """Everything that is open will be opened anew, because it was cancelled when the run failed."""
        self.tell({"type": "workflow.retried", "by": by})
        self.queue = list(self.open.values())
        for wait in self.queue:
            wait.opened = False
            if wait.is_expiry and self.code.timeout_ns is not None:  # it has its time anew
                wait.due_ns = self.now_ns + self.code.timeout_ns

    def _settle(self, entry: Entry) -> None:
        wait = self.open.pop(entry[AWAIT], None)
        if wait is None:
            self._differs(entry, f"await {entry[AWAIT]}", "no such await is open")
            return
        if not wait.opened:
            self.queue.remove(wait)
        what, payload = entry[WHAT], entry[PAYLOAD]
        self._tell(wait, what, payload)
        if (future := wait.future) is not None:
            if future.done():
                return
            if what == "ok":
                future.set_result(Settled(what, payload, None, entry[RECORD]))
            elif what == "cancelled" and wait.kind != "child":
                asyncio.Future.cancel(future)  # which nobody has to be told of
            else:
                future.set_result(Settled(what, None, payload, entry[RECORD]))
        elif wait.handle is not None:
            self._timers.pop(id(wait.handle), None)
            self.loop.put(wait.handle)
        elif wait.is_expiry:
            self.expired = entry[RECORD]
            self._cancel()

    def _tell(self, wait: Await, what: str, payload: Any = None) -> None:
        about: dict[str, Any] = {
            "type": f"{wait.kind}.{_WORDS.get(what, what)}",
            "name": wait.name,
            "await": wait.number,
        }
        if payload is None or what in ("ok", "opened"):
            self.made.events.append(about)
            return
        about["error"] = payload
        self.tell(about, bytes=len(encode(payload)))

    # --- what the function asks for ---

    def wait(
        self,
        kind: str,
        name: str,
        params: dict[str, Any],
        *,
        due_ns: int | None = None,
        key: str | None = None,
        future: bool = True,
        place: str | None = None,
    ) -> Await:
        """Makes an await; what it stands for is opened with this decision."""
        if self._dropped:
            raise Dropped
        number = self.count
        self.count += 1
        body = encode([params, due_ns])
        shape = [kind, name, hashlib.sha256(body).digest()[:8]]
        place = place or place_of(sys._getframe(1))
        made = Await(number, kind, name, params, due_ns, key, None, place=place, bytes=len(body))
        if self.repeating and self.offence is None:
            self._compare(number, shape, place)
        self.made.awaits.append([*shape, place])
        if future:
            made.future = self.loop.await_future(number)
        self.open[number] = made
        self.queue.append(made)
        return made

    def check(self) -> None:
        """Raises if this life is being dropped: nothing it asks for reaches anybody."""
        if self._dropped:
            raise Dropped

    def check_here(self) -> None:
        """Raises unless this run is being decided: a context that was handed on must not change another run."""
        if self._dropped:
            raise Dropped
        if here.turn.life is not self:
            raise RuntimeError(f"this is the context of {self.run}, which is not being decided here")

    def loaded(self, value: Value) -> Value:
        """A result at hand: what was too large for the journal comes from where it is kept."""
        return addressed(value, self.ctx.blob(value)) if is_reference(value) else value

    def input(self) -> Value:
        """What the function is given, at hand."""
        return self.loaded(self.state["input"])

    def lightened(self, value: Value) -> Value:
        """A value for a record: by reference, where it is too large for one."""
        if len(encode(value)) <= PAYLOAD_INLINE_BYTES_MAX:
            return value
        return self.ctx.store(value, schema_hint="payload")

    def awaited(
        self,
        kind: str,
        name: str,
        params: dict[str, Any],
        due_ns: int | None = None,
        key: str | None = None,
        place: str | None = None,
    ) -> FlowFuture[Settled]:
        """What to wait for; `unwatched` calls it, for none of the author's code is asked. Whoever waits is cancelled
        where the await is; a child that was cancelled has failed."""
        if not isinstance(name, str):
            raise TypeError(f"a {kind} has a text for its name, not {name!r}")
        if here.turn.life is not self:
            self.check_here()
        made = self.wait(kind, name, params, due_ns=due_ns, key=key, place=place)
        assert made.future is not None
        return made.future

    def unwanted(self, number: int) -> None:
        """The function does not wait for it any more."""
        if self._dropped or (wait := self.open.pop(number, None)) is None:
            return
        if not wait.opened:
            self.queue.remove(wait)
            return
        self.made.cancel.append(f"{self.generation}.{wait.number}")
        self._tell(wait, "cancelled")

    def _compare(self, number: int, shape: list[Value], place: str | None) -> None:
        if number >= len(self.expected):
            self.offence = self.differs(
                f"await {number}", "the end of what is recorded", f"{shape[0]} {shape[1]}", now_at=place
            )
            return
        was = self.expected[number]
        if was[:3] != shape:
            same = was[:2] == shape[:2]
            more = " with other arguments" if same else ""
            self.offence = self.differs(
                f"await {number}",
                f"{was[0]} {was[1]}",
                f"{shape[0]} {shape[1]}{more}",
                was_at=was[3],
                now_at=place,
            )

    def _differs(self, entry: Entry, expected: str, got: str) -> None:
        self.offence = self.differs(f"record {entry[RECORD]}", expected, got)

    def differs(
        self, where: str, expected: str, got: str, *, was_at: str | None = None, now_at: str | None = None
    ) -> NotDeterministic:
        """That the code does not do again what it did: what, and the two lines."""
        was = f"{expected} ({was_at})" if was_at else expected
        now = f"{got} ({now_at})" if now_at else got
        return NotDeterministic(
            f"{self.run}: the code does not do again what it did: at {where} it had {was}, and has {now} now. "
            "Give the change a version of its own or guard it with ctx.patched(name), or load the code that began it",
            where=now_at or was_at,
            details={
                "seq": self.record,
                "expected": expected,
                "got": got,
                "expected_at": was_at,
                "got_at": now_at,
            },
        )

    def patched(self, name: str) -> bool:
        self.check_here()
        if not isinstance(name, str):
            raise TypeError(f"ctx.patched takes a text, not {name!r}")
        if name in self.patches:
            return self.patches[name]
        answer = not self.repeating if self.answered is None else name in self.answered
        self.patches[name] = answer
        if answer:
            self.made.patches[name] = True
        return answer

    # --- the loop's side (`Numbered`) ---

    def at(self, due_ns: int, handle: asyncio.TimerHandle) -> None:
        made = self.wait("timer", "sleep", {}, due_ns=due_ns, future=False)
        made.handle = handle
        self._timers[id(handle)] = made

    def not_at(self, handle: asyncio.TimerHandle) -> None:
        if (wait := self._timers.pop(id(handle), None)) is not None:
            self.unwanted(wait.number)

    def refuse(self, what: str, instead: str) -> NotDeterministic:
        place = place_of(sys._getframe(1))
        offence = NotDeterministic(
            f"{what}() reaches outside of the run; {instead}", where=place, details={"call": what}
        )
        self.offence = self.offence or offence
        return offence

    def unheard(self, context: dict[str, Any]) -> None:
        if not self.repeating and not self._dropped:
            raised = context.get("exception")
            log.warning(
                "%s: %s", self.run, context.get("message"), exc_info=raised if raised is not None else False
            )

    # --- ends ---

    def _cancel(self) -> None:
        """Raises Cancelled wherever the function waits: in its main task, which hands it on, then in those tasks
        that nobody waits for."""
        if self.cancelled or self.ending:
            self.cancelled = True
            return
        self.cancelled = True
        here = list(self.loop.tasks)
        for task in here:
            if not task.done() and task.cancelling() == 0:
                task.cancel()
                self._drive()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """The main task leaves an outcome, unless the function has cancelled it behind its own back."""
        if not self._dropped and self.outcome is None:
            self.outcome = "failed", asyncio.CancelledError() if task.cancelled() else task.exception()

    def drop(self) -> None:
        """Ends the function where it stands, cut off: what its `finally` asks for reaches nothing."""
        self._dropped = True
        if self.loop.is_idle():
            self.loop.let_go()
        else:
            self._patience.during(self, self.loop.end)
        self.open.clear()
        self.queue.clear()
        self._timers.clear()


_WORDS: Final = {"ok": "done", "error": "failed"}
