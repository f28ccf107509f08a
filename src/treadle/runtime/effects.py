"""What follows from a step: rows for timers and tasks, messages to other runs, work for workers.

Everything here only adds to the batch at hand. Messages between runs of one owner are put into the
other run's mailbox and usually stepped in the same batch, so that a child which does not wait
starts, runs and reports within one commit; what does not fit is committed as an inbox row.
"""

from __future__ import annotations

from treadle.kernel.model import ENGINE_KINDS, Domain, OpenIntent, Receipt
from treadle.kernel.run import Step
from treadle.store.protocol import TimerRow

from .ahead import Ahead
from .board import Board
from .children import Children, by_of
from .hot import Hot
from .mail import Mail
from .meter import settled_as
from .ports import Item, NewRun, Work
from .staging import Closed, Staging
from .timers import Timers


class Effects:
    def __init__(
        self,
        staging: Staging,
        mail: Mail,
        timers: Timers,
        board: Board,
        children: Children,
        ahead: Ahead,
    ) -> None:
        self._staging = staging
        self._mail = mail
        self._timers = timers
        self._board = board
        self._children = children
        self._ahead = ahead

    def apply(self, hot: Hot, step: Step, item: Item) -> None:
        state, staged = hot.state, self._staging.staged
        if (settled := step.settled) is not None:
            if self._ahead.begun:
                self._ahead.settled(settled.id)
            else:
                staged.firm = True
            self._close(hot, settled)
            status = item.event.status if type(item.event) is Receipt else settled_as(item.event)
            staged.closed.append(Closed(settled, status, step.at_ns))
            if settled.kind == "task":
                self._settle_task(settled, item)
            elif status == "timeout" and settled.kind not in ENGINE_KINDS:
                staged.revoked.append(settled.id)
        for intent in step.cancelled:
            self._cancel(hot, intent)
            staged.closed.append(Closed(intent, "cancelled", step.at_ns))
        for intent in step.opened:
            if intent.due_ns is not None and intent.id in state.open:
                self._arm(hot, intent, intent.due_ns)
            if intent.kind in ENGINE_KINDS:
                self._open(hot, step, intent)
            else:
                work = Work(state.id, state.workflow, state.dialect, state.definition, state.options, intent)
                # Nobody can read a payload of this very commit before it is durable.
                if not staged.batch.blobs and self._ahead.is_pure(work, hot.definition):
                    self._ahead.opened(work)
                else:
                    staged.dispatched.append(work)
        if (state.parent_intent is not None and step.ended) or (item.reply is not None and step.seq == 1):
            self._children.report(hot, step, item)

    def _settle_task(self, intent: OpenIntent, item: Item) -> None:
        receipt = item.event if isinstance(item.event, Receipt) else None
        status = receipt.status if receipt is not None else "ok"
        outcome = {"ok": "completed", "timeout": "expired"}.get(status, "cancelled")
        answer = {"answer": receipt.value} if receipt is not None and status == "ok" else {}
        self._board.close(intent.id, outcome, by_of(item), **answer)

    def _cancel(self, hot: Hot, intent: OpenIntent) -> None:
        self._close(hot, intent)
        if intent.kind == "task":
            self._board.close(intent.id, "cancelled", None)
        elif intent.kind == "child":
            self._children.cancel(hot, intent)
        elif intent.kind not in ENGINE_KINDS:
            self._staging.staged.revoked.append(intent.id)
            self._ahead.cancelled(intent.id)

    def _arm(self, hot: Hot, intent: OpenIntent, due_ns: int) -> None:
        self._staging.batch.timers[intent.id] = TimerRow(
            intent.id, hot.no, due_ns, intent.kind == "timer", hot.state.id
        )
        self._timers.arm(due_ns)

    def _open(self, hot: Hot, step: Step, intent: OpenIntent) -> None:
        match intent.kind:
            case "task":
                self._board.open(hot, intent)
            case "child" | "start":
                self._children.start(hot, intent)
            case "deliver":
                self._deliver(hot, step, intent)

    def _deliver(self, hot: Hot, step: Step, intent: OpenIntent) -> None:
        params = intent.params
        create = NewRun(hot.state.dialect, params["workflow"], None, params["definition"], params.get("key"))
        event = Domain(schema=params["event"]["schema"], value=step.carried(intent), source=intent.id)
        self._mail.send(params["run"], event, f"deliver:{intent.id}", create=create)

    def _close(self, hot: Hot, intent: OpenIntent) -> None:
        """Nobody waits for it any more: its time and its checkpoint go."""
        batch = self._staging.batch
        if intent.due_ns is not None:
            self._timers.closed(intent.id)
            if batch.timers.pop(intent.id, None) is None:
                batch.timers_done[intent.id] = hot.no
        if batch.checkpoints:
            batch.checkpoints.pop(intent.id, None)
        if intent.id in hot.checkpoints:
            hot.checkpoints.discard(intent.id)
            batch.checkpoints_done.append(intent.id)
