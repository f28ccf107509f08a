"""Runs that runs start: their inputs, their messages, and what they report to whoever waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.limits import Limits
from treadle.kernel.model import Cancel, OpenIntent, Receipt, ReceiptStatus, Started, child_id
from treadle.kernel.run import Step, error_of
from treadle.kernel.values import Value
from treadle.store.rows import DefinitionRow

from .commands import Deliver
from .hot import BlobCache, Hot
from .mail import Mail
from .payloads import put_back, refers
from .ports import NewRun
from .registry import Registry
from .staging import Staging

# Who cancels the child of a run that no longer waits for it; it then has nobody to report to.
PARENT: Final = "treadle:parent"


class Children:
    def __init__(
        self,
        registry: Registry,
        staging: Staging,
        mail: Mail,
        blobs: BlobCache,
        *,
        entropy: Callable[[int], bytes],
        limits: Limits,
    ) -> None:
        self._registry = registry
        self._staging = staging
        self._mail = mail
        self._blobs = blobs
        self._entropy = entropy
        self._limits = limits

    def start(self, hot: Hot, intent: OpenIntent) -> None:
        state, params = hot.state, intent.params
        waits = intent.kind == "child"
        reply = (state.id, intent.id) if intent.id in state.open else None
        try:
            if state.depth + 1 > self._limits.run_depth and waits:
                raise TreadleError(
                    f"runs are nested deeper than {self._limits.run_depth}", cls="user", code="RUN_TOO_DEEP"
                )
            options = {**state.options, **(params.get("options") or {})}
            row = self._named(str(params["workflow"]), state.definition)
            input = self._prepared(row, params.get("input"), options)
        except PASSING:
            raise
        except TreadleError as error:
            if reply is not None:
                receipt = Receipt(intent=intent.id, status="error", error=error_of(error))
                self._mail.send(state.id, receipt, f"refused:{intent.id}")
            return
        event = Started(
            definition=row.digest,
            input=input,
            seed=self._entropy(16),
            machine=self._registry.load(row.digest).machine.version,
            reference=params.get("reference"),
            parent=state.id if waits else None,
            parent_intent=intent.id if waits else None,
            depth=state.depth + 1 if waits else 0,
            options=options,
            continued_from=None if waits else state.id,
        )
        create = NewRun(row.dialect, row.name, row.version, row.digest)
        child = child_id(state.id, intent.id)
        self._mail.send(child, event, f"start:{intent.id}", create=create, reply=reply)

    def _named(self, workflow: str, caller: str) -> DefinitionRow:
        """What a caller's definition means by a name: a thousand children of one commit ask the store once."""
        known = self._staging.staged.named
        if (row := known.get((workflow, caller))) is None:
            row = known[workflow, caller] = self._registry.find(workflow, caller=caller)
        return row

    def _prepared(self, row: DefinitionRow, input: Value, options: dict[str, Value]) -> Value:
        """The input a child starts with. Where it may hold references, it is checked with their payloads
        in place, and handed on as it is."""
        if not refers(input):
            return self._registry.prepare(row, input, options)
        prepared = self._registry.prepare(row, put_back(self._blobs, input), options)
        return input if self._registry.load(row.digest).machine.traits.large_data else prepared

    def cancel(self, hot: Hot, intent: OpenIntent) -> None:
        cancel = Cancel(reason="its parent no longer waits", by=PARENT)
        self._mail.send(child_id(hot.state.id, intent.id), cancel, f"cancel:{intent.id}")

    def report_end(self, hot: Hot, step: Step, item: Deliver) -> None:
        """A run that a parent waits for has ended: it is told, unless it was the parent that ended it."""
        state = hot.state
        ended_by = item.event.by if isinstance(item.event, Cancel) else None
        if state.parent is not None and ended_by != PARENT:
            self._mail.send(state.parent, _end(hot), f"end:{state.parent_intent}:{step.seq}")

    def report_start(self, hot: Hot, reply: tuple[str, str]) -> None:
        """A run goes on by itself: whoever started it is told that it has begun."""
        run, intent = reply
        self._mail.send(run, Receipt(intent=intent, value={"run": hot.state.id}), f"started:{intent}")


def _end(hot: Hot) -> Receipt:
    state = hot.state
    assert state.parent_intent is not None
    about = {"run": state.id, "workflow": state.workflow, "version": state.version}
    if state.status in ("completed", "partial"):
        # A cell has no result but its state.
        result = state.result if hot.machine.traits.final else state.state
        return Receipt(intent=state.parent_intent, value={**about, "result": result})
    error = state.error or {"class": "user", "code": "RUN_FAILED", "message": f"{state.id} {state.status}"}
    wrapped = {
        "class": error.get("class", "user"),
        "code": "CHILD_FAILED" if state.status == "failed" else "CHILD_CANCELLED",
        "message": f"{state.workflow} ({state.id}) {state.status}: {error.get('message', '')}",
        "where": state.id,
        "details": {**about, "error": error, "result": state.result},
    }
    status: ReceiptStatus = "error" if state.status == "failed" else "cancelled"
    return Receipt(intent=state.parent_intent, status=status, error=wrapped)
