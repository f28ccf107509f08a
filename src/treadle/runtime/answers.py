"""What those are told who asked for something, with the commit that decides it.

A caller in this process gets its answer after the commit; one in another process finds it as a row of that same
commit. A refusal changes nothing, and leaves a line in the diagnostics. The answer of a submission id stays, with its run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.model import Receipt, Signal
from treadle.kernel.run import error_of
from treadle.kernel.values import Value, encode
from treadle.store.protocol import GUEST, Reads

from .audit import outcome
from .commands import Change, Write
from .hot import Hot
from .mail import Mail
from .messages import reply_to_bytes
from .ports import Ack, Clock, Item
from .staging import Staging


class Answers:
    def __init__(self, staging: Staging, mail: Mail, reads: Reads, *, clock: Clock) -> None:
        self._staging = staging
        self._mail = mail
        self._reads = reads
        self._clock = clock

    def settle(self, asked: Item | Change, value: Any, error: TreadleError | None) -> None:
        """Answers a command with the commit at hand, which also says who did it."""
        self.write_down(asked, value, error)
        message = None if isinstance(asked, Write) else asked.inbox
        if asked.ack is not None:
            self.tell(asked.ack, value, error)
            if message is not None:
                # Who waits for its answer is here, and needs no row.
                self._staging.batch.inbox_done.append(message)
        elif message is not None:
            self.dispose(message, value, error)

    def write_down(self, asked: Item | Change, value: Any, error: TreadleError | None) -> None:
        if asked.entry is not None:
            self._staging.batch.audit.append(outcome(asked.entry, self._clock.now_ns(), value, error))

    def tell(self, ack: Ack, value: Any, error: TreadleError | None) -> None:
        self._staging.staged.answers.append((ack, value, error))

    def dispose(self, key: str, value: Any, error: TreadleError | None) -> None:
        """A message is done with, and answered if somebody waits for that in another process."""
        batch = self._staging.batch
        batch.inbox_done.append(key)
        if key.startswith(GUEST):
            batch.replies.append((key, self._clock.now_ns(), reply_to_bytes(value, error)))

    def refuse(self, item: Item, error: TreadleError) -> None:
        """Nothing changes; whoever asked is told, be it the run that wanted a child."""
        kind = item.event.kind if item.event is not None else None
        value = error_of(error)
        self._staging.diagnose(item.run, "refused", {"event": kind, "error": value})
        self.settle(item, None, error)
        # A signal that was refused was none: under its key it is judged anew, when its run is there or has come that far.
        if item.submission is not None and not isinstance(item.event, Signal):
            self.remember(item.submission, {"error": value})
        if item.reply is not None:
            run, intent = item.reply
            receipt = Receipt(intent=intent, status="error", error=value)
            self._mail.send(run, receipt, f"refused:{intent}")

    def stale(self, hot: Hot, item: Item, code: str, body: dict[str, Any]) -> None:
        """It came too late, or twice: noted, shown, and answered with where the run is."""
        state = hot.state
        self.note_stale(hot, code, body)
        value = {"run": item.run, "seq": state.seq, "status": state.status, "stale": True}
        self.settle(item, value, None)

    def note_stale(self, hot: Hot, code: str, body: dict[str, Any]) -> None:
        """Kept among the diagnostics, which are counted, and shown among the run's events."""
        state = hot.state
        self._staging.diagnose(state.id, code, body)
        if not (state.ended and hot.machine.traits.last_event_closes):
            self._staging.show(hot, {"type": "stale", "code": code, **body})

    def given_before(self, item: Item) -> bool:
        """Answers a submission that was answered before; False if it is new."""
        assert item.submission is not None
        found = self.remembered(item.submission)
        if found is None:
            return False
        if "error" in found:
            self.settle(item, None, TreadleError.from_value(found["error"]))
        else:
            self.settle(item, {**found, "duplicate": True}, None)
        return True

    def remembered(self, submission: tuple[str, str]) -> Value:
        """The answer of a submission id, if it has one."""
        submitted = self._staging.staged.submitted
        return answer_of(lambda *id: submitted.get(id) or self._reads.submission(*id), *submission)

    def remember(self, submission: tuple[str, str], body: Value) -> None:
        """The durable answer of a submission id, written with what it answers."""
        self._staging.staged.submitted[submission] = body
        self._staging.batch.submissions.append((*submission, self._clock.now_ns(), encode(body)))


def answer_of(find: Callable[[str, str], Value], scope: str, id: str) -> Value:
    """The durable answer of a submission id. One that went to several runs has a refusal for its answer
    if one of them refused it."""
    found = find(scope, id)
    each = {run: (find(f"run:{run}", id) or {}).get("error") for run in (found or {}).get("runs", ())}
    refusal = refusal_of(each)
    return found if refusal is None else {"error": refusal}


def refusal_of(each: Mapping[str, dict[str, Any] | None]) -> dict[str, Any] | None:
    """The error of an event that went to several runs: the first refusal, with what each of them answered
    (None: it took the event) in `details["deliveries"]`. None if nobody refused it."""
    first = next((error for error in each.values() if error is not None), None)
    if first is None or len(each) == 1:
        return first
    told = [{"run": run, "error": error} for run, error in each.items()]
    return {**first, "details": {**first["details"], "deliveries": told}}
