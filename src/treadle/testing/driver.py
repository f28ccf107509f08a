"""Drives one run of a machine with no engine, store or clock: feed events, look at intents, answer
with receipts, move the time. Everything it does is journaled and can be replayed."""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.history import Stored, replay, restore, snapshot_of
from treadle.kernel.machine import Machine
from treadle.kernel.model import Cancel, Event, OpenIntent, Patch, Receipt, Retry, Signal, Started
from treadle.kernel.run import advance, error_of, fault
from treadle.kernel.state import RunState
from treadle.kernel.values import Value, decode_trusted, digest

START_NS = 1_800_000_000 * 10**9


class Driver:
    """`d = Driver(machine, body); d.start({...}); d.ok(d.open("call")[0], value); d.status`."""

    def __init__(
        self, machine: Machine, body: Value, *, name: str = "wf", key: Value = None, id: str = "r1"
    ) -> None:
        self.machine = machine
        self.definition = machine.load(body)
        self.digest = digest(body)
        self.name, self.key, self.id = name, key, id
        self.now_ns = START_NS
        self.journal: list[Stored] = []
        self.events: list[dict[str, Any]] = []
        self.blobs: dict[str, Value] = {}
        self.run = self._fresh()

    def _fresh(self) -> RunState:
        return RunState(
            id=self.id,
            dialect=self.machine.dialect,
            workflow=self.name,
            version=None,
            definition=self.digest,
            key=self.key,
        )

    def start(self, input: Value = None, **more: Any) -> Driver:
        event = Started(input=input, seed=b"seed", machine=self.machine.version, **more)
        return self.feed(event)

    def feed(self, event: Event) -> Driver:
        """Admits one event and whatever the run owes itself after it."""
        pending: Event | None = event
        while pending is not None:
            before = snapshot_of(self.run)
            try:
                step = advance(
                    self.run,
                    self.machine,
                    self.definition,
                    pending,
                    at_ns=self.now_ns,
                    blobs=self.blobs.__getitem__,
                )
            except Exception as error:
                seq = self.run.seq
                self.run = restore(before) if seq else self._fresh()
                if pending.kind not in ("receipt", "continue", "frame"):
                    raise
                step = fault(self.run, pending, error_of(error), at_ns=self.now_ns)
            self.blobs.update((checksum, decode_trusted(body)) for checksum, body in step.blobs.items())
            self.journal.append(Stored(step.seq, step.body, step.digest))
            self.events += step.events
            pending = self.run.pending()
        return self

    @property
    def status(self) -> str:
        return self.run.status

    @property
    def state(self) -> Value:
        return self.run.state

    def view(self) -> dict[str, Any]:
        return self.machine.view(self.definition, self.run.state)

    def types(self) -> list[str]:
        return [str(event["type"]) for event in self.events]

    def open(
        self, kind: str | None = None, *, name: str | None = None, ref: str | None = None
    ) -> list[OpenIntent]:
        return [
            intent
            for intent in self.run.open.values()
            if (kind is None or intent.kind == kind)
            and (name is None or intent.name == name)
            and (ref is None or intent.ref == ref)
        ]

    def ok(self, intent: OpenIntent, value: Value = None, **more: Any) -> Driver:
        return self.feed(Receipt(intent=intent.id, value=value, **more))

    def error(
        self, intent: OpenIntent, message: str = "", *, cls: Any = "transport", code: str = "FAILED"
    ) -> Driver:
        error = TreadleError(message, cls=cls, code=code).to_value()
        return self.feed(Receipt(intent=intent.id, status="error", error=error))

    def timeout(self, intent: OpenIntent) -> Driver:
        error = TreadleError("timed out", cls="timeout", code="TIMEOUT").to_value()
        return self.feed(Receipt(intent=intent.id, status="timeout", error=error))

    def signal(self, name: str, data: Value = None) -> Driver:
        return self.feed(Signal(name=name, data=data))

    def patch(self, **data: Value) -> Driver:
        return self.feed(Patch(data=data))

    def retry(self, **how: Value) -> Driver:
        return self.feed(Retry(how=how))

    def cancel(self, reason: str = "") -> Driver:
        return self.feed(Cancel(reason=reason))

    def advance(self, seconds: float) -> Driver:
        """Moves the clock, firing timers and deadlines in order of time."""
        until = self.now_ns + int(seconds * 10**9)
        while due := [i for i in self.run.open.values() if i.due_ns is not None and i.due_ns <= until]:
            intent = min(due, key=lambda i: (i.due_ns, i.id))
            self.now_ns = max(self.now_ns, intent.due_ns or 0)
            if intent.kind == "timer":
                self.ok(intent)
            else:
                self.timeout(intent)
        self.now_ns = until
        return self

    def assert_replays(self) -> None:
        """The journal decided again, from its start and from every snapshot cut, gives equal bytes."""
        run = self._fresh()
        cuts = []
        for stored in self.journal:
            replay(run, self.machine, lambda _: self.definition, [stored], blobs=self.blobs.__getitem__)
            cuts.append(snapshot_of(run))
        assert cuts[-1] == snapshot_of(self.run), "replay ends in another state"
        # From each cut to the next: what is equal there goes on equally, so this is every cut to the end, in one walk.
        for index, (cut, stored, expected) in enumerate(
            zip(cuts, self.journal[1:], cuts[1:], strict=False), 1
        ):
            again = restore(cut)
            replay(again, self.machine, lambda _: self.definition, [stored], blobs=self.blobs.__getitem__)
            assert snapshot_of(again) == expected, f"replay from the snapshot at {index} goes another way"
