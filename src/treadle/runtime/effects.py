"""What follows from a step: rows for timers and tasks, messages to other runs, work for workers.

Everything here only adds to the batch at hand. Messages between runs of one owner are put into the
other run's mailbox and usually stepped in the same batch, so that a child which does not wait
starts, runs and reports within one commit; what does not fit is committed as an inbox row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.ids import child_id
from treadle.kernel.model import ENGINE_KINDS, Cancel, Domain, OpenIntent, Receipt, Started
from treadle.kernel.run import Step, error_of
from treadle.kernel.values import Value
from treadle.store.protocol import DefinitionRow, TaskRow, TimerRow

from .hot import Hot
from .payloads import put_back, refers
from .ports import Item, NewRun, Own, Work

if TYPE_CHECKING:
    from .core import Core


# Who cancels the child of a run that no longer waits for it; it then has nobody to report to.
PARENT = "treadle:parent"


def apply(core: Core, hot: Hot, step: Step, item: Item) -> None:
    if step.settled is not None:
        status = item.event.status if isinstance(item.event, Receipt) else "ok"
        by = getattr(item.event, "by", None)
        if status == "timeout" and step.settled.kind not in ENGINE_KINDS:
            core.staged.revoked.append(step.settled.id)
        outcome = {"ok": "completed", "timeout": "expired"}.get(status, "cancelled")
        answer = {"answer": item.event.value} if isinstance(item.event, Receipt) and status == "ok" else {}
        _close(core, hot, step.settled, outcome, by, **answer)
    for intent in step.cancelled:
        _close(core, hot, intent, "cancelled", None)
        if intent.kind == "child":
            cancel = Cancel(reason="its parent no longer waits", by=PARENT)
            _send(core, child_id(hot.state.id, intent.id), cancel, f"cancel:{intent.id}")
        elif intent.kind not in ENGINE_KINDS:
            core.staged.revoked.append(intent.id)
    for intent in step.opened:
        _open(core, hot, step, intent)
    if (
        step.ended
        and hot.state.parent_intent
        and hot.state.parent
        and getattr(item.event, "by", None) != PARENT
    ):
        _send(core, hot.state.parent, _report(hot), f"end:{hot.state.parent_intent}:{step.seq}")
    if step.seq == 1 and item.reply is not None and hot.state.parent_intent is None:
        run, intent_id = item.reply
        _send(core, run, Receipt(intent=intent_id, value={"run": hot.state.id}), f"started:{intent_id}")


def refused(core: Core, item: Item, error: dict[str, Any]) -> None:
    """A child that could not be started is a receipt like any other."""
    if item.reply is not None:
        run, intent_id = item.reply
        _send(
            core,
            run,
            Receipt(intent=intent_id, status="error", error=error),
            f"refused:{intent_id}",
        )


def deadline(core: Core, row: TimerRow) -> None:
    error = TreadleError("its time is up", cls="timeout", code="TIMEOUT").to_value()
    receipt = Receipt(intent=row.intent, status="timeout", error=error)
    core.post(Own(row.run_id, receipt))


def _send(core: Core, run: str, event: Any, key: str, **more: Any) -> None:
    core.post(Item(run, event, derived=True, message=key, **more))


def _open(core: Core, hot: Hot, step: Step, intent: OpenIntent) -> None:
    state = hot.state
    if intent.due_ns is not None and intent.id in state.open:
        core.staged.batch.timers[intent.id] = TimerRow(
            intent.id, hot.no, intent.due_ns, intent.kind == "timer"
        )
        core.arm(intent.due_ns)
    match intent.kind:
        case "timer" | "signal":
            return
        case "task":
            core.staged.batch.tasks_new[intent.id] = _task(core, hot, intent)
            earlier = intent.params.get("escalated_from")
            if earlier is not None and (task := find_task(core, earlier)) is not None:
                note(core, task, "escalated", None, to=intent.id)
        case "child" | "start":
            _start_child(core, hot, intent)
        case "deliver":
            params = intent.params
            create = NewRun(state.dialect, params["workflow"], None, params["definition"], params.get("key"))
            event = Domain(schema=params["event"]["schema"], value=step.carried(intent), source=intent.id)
            _send(core, params["run"], event, f"deliver:{intent.id}", create=create)
        case _:
            core.staged.dispatched.append(
                Work(
                    state.id,
                    state.workflow,
                    state.dialect,
                    state.definition,
                    state.options,
                    intent,
                    hot.definition,
                )
            )


def _close(core: Core, hot: Hot, intent: OpenIntent, outcome: str, by: str | None, **more: Value) -> None:
    batch = core.staged.batch
    if intent.due_ns is not None:
        core.fired(intent.id)
        if batch.timers.pop(intent.id, None) is None:
            batch.timers_done[intent.id] = hot.no
    if intent.kind == "task":
        close_task(core, intent.id, outcome, by, **more)
    if intent.kind not in ENGINE_KINDS:
        batch.checkpoints.pop(intent.id, None)
        if intent.id in hot.checkpoints:
            hot.checkpoints.discard(intent.id)
            batch.checkpoints_done.append(intent.id)


def close_task(core: Core, id: str, outcome: str, by: str | None, **more: Value) -> None:
    task = find_task(core, id)
    if task is None:
        return
    task.status = outcome
    note(core, task, outcome, by, **more)


def find_task(core: Core, id: str) -> TaskRow | None:
    """A task's row, to be changed in place: the batch's own if it holds one."""
    return (
        core.staged.batch.tasks_new.get(id) or core.staged.batch.tasks_changed.get(id) or core.store.task(id)
    )


def note(core: Core, task: TaskRow, what: str, by: str | None, **more: Any) -> None:
    """Adds to a task's history and puts its row into the batch."""
    entry: dict[str, Any] = {"at_ns": core.clock.now_ns(), "event": what, **more}
    if by is not None:
        entry["by"] = by
    task.history = [*task.history, entry]
    if task.id not in core.staged.batch.tasks_new:
        core.staged.batch.tasks_changed[task.id] = task


def _task(core: Core, hot: Hot, intent: OpenIntent) -> TaskRow:
    params, now = intent.params, core.clock.now_ns()
    task = TaskRow(
        no=core.next_task_no,
        id=intent.id,
        run=hot.no,
        run_id=hot.state.id,
        workflow=hot.state.workflow,
        name=intent.name,
        type=params.get("type"),
        roles=list(params.get("roles") or []),
        payload=params.get("payload"),
        schema=params.get("schema"),
        reference=params.get("reference", hot.state.reference),
        created_ns=now,
        due_ns=intent.due_ns,
        history=[{"at_ns": now, "event": "created", **_about(params)}],
    )
    core.next_task_no += 1
    return task


def _about(params: dict[str, Any]) -> dict[str, Value]:
    """What its author says of a task. It is told once, so it stands in the row's first entry."""
    return {
        key: params[key] for key in ("title", "description", "escalated_from") if params.get(key) is not None
    }


def _start_child(core: Core, hot: Hot, intent: OpenIntent) -> None:
    state, params = hot.state, intent.params
    waits = intent.kind == "child"
    reply = (state.id, intent.id) if intent.id in state.open else None
    try:
        if state.depth + 1 > core.limits.run_depth and waits:
            raise TreadleError(
                f"runs are nested deeper than {core.limits.run_depth}", cls="user", code="RUN_TOO_DEEP"
            )
        options = {**state.options, **(params.get("options") or {})}
        row = core.registry.find(str(params["workflow"]), caller=state.definition)
        input = _prepared(core, row, params.get("input"), options)
    except PASSING:
        raise
    except TreadleError as error:
        if reply is not None:
            receipt = Receipt(intent=intent.id, status="error", error=error_of(error))
            _send(core, state.id, receipt, f"refused:{intent.id}")
        return
    event = Started(
        definition=row.digest,
        input=input,
        seed=core.entropy(16),
        machine=core.registry.load(row.digest).machine.version,
        reference=params.get("reference"),
        parent=state.id if waits else None,
        parent_intent=intent.id if waits else None,
        depth=state.depth + 1 if waits else 0,
        options=options,
        continued_from=None if waits else state.id,
    )
    create = NewRun(row.dialect, row.name, row.version, row.digest)
    _send(core, child_id(state.id, intent.id), event, f"start:{intent.id}", create=create, reply=reply)


def _prepared(core: Core, row: DefinitionRow, input: Value, options: dict[str, Any]) -> Value:
    """The input a child starts with. Where it may hold references, it is checked with their payloads
    in place, and handed on as it is."""
    if not refers(input):
        return core.registry.prepare(row, input, options)
    prepared = core.registry.prepare(row, put_back(core.blobs, input), options)
    return input if core.registry.load(row.digest).machine.large_data else prepared


def _report(hot: Hot) -> Receipt:
    state = hot.state
    assert state.parent_intent is not None
    about = {"run": state.id, "workflow": state.workflow, "version": state.version}
    if state.status in ("completed", "partial"):
        # A cell has no result but its state.
        result = state.result if hot.machine.final else state.state
        return Receipt(intent=state.parent_intent, value={**about, "result": result})
    error = state.error or {"class": "user", "code": "RUN_FAILED", "message": f"{state.id} {state.status}"}
    wrapped = {
        "class": error.get("class", "user"),
        "code": "CHILD_FAILED" if state.status == "failed" else "CHILD_CANCELLED",
        "message": f"{state.workflow} ({state.id}) {state.status}: {error.get('message', '')}",
        "where": state.id,
        "details": {**about, "error": error, "result": state.result},
    }
    status: Any = "error" if state.status == "failed" else "cancelled"
    return Receipt(intent=state.parent_intent, status=status, error=wrapped)
