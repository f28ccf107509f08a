"""The inbox of human tasks: who may do what to which task.

A task is an open intent; its row is a projection of it. Completing a task is a receipt: a second
one is stale. Claim, release, assign and comment change the row only, they are no commits of the
run. Holders of one of the task's roles (or of `admin`) may claim and comment; the assignee (or an
admin) may release and complete; anything else is refused, changes nothing, and is audited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from treadle.kernel.errors import Forbidden, InputInvalid, NotWaiting, TreadleError
from treadle.kernel.model import Receipt
from treadle.kernel.values import Value
from treadle.lang.duration import instant_text
from treadle.store.rows import TaskRow

from .commands import Deliver, Operate, only_hands_on
from .payloads import whole

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk, Handing


OPEN = ("open", "claimed")
STATUSES = (*OPEN, "completed", "expired", "cancelled")
ADMIN = "admin"


class Actor(msgspec.Struct, frozen=True):
    """Who acts. On an embedded store the caller says so; a server takes it from the token."""

    user: str | None = None
    roles: tuple[str, ...] = ()

    @property
    def admin(self) -> bool:
        return ADMIN in self.roles

    def holds(self, task: TaskRow) -> bool:
        return self.admin or not task.roles or any(role in task.roles for role in self.roles)


class Operation(msgspec.Struct, frozen=True):
    """One operation on one task, as data: it also travels through the inbox of another process."""

    name: str
    task: str
    actor: Actor
    to: str | None = None
    text: str | None = None
    data: Value = None
    expected_version: int | None = None

    def to_value(self) -> dict[str, Value]:
        value = {
            name: getattr(self, name) for name in ("name", "task", "to", "text", "data", "expected_version")
        }
        return {**value, "user": self.actor.user, "roles": list(self.actor.roles)}

    @staticmethod
    def from_value(value: dict[str, Value]) -> Operation:
        fields = dict(value)
        actor = Actor(fields.pop("user"), tuple(fields.pop("roles")))
        return Operation(actor=actor, **fields)


# --- what people do with them ---


def perform(desk: Handing, asked: Operate) -> object:
    """Runs on the core thread. Raises a TreadleError that changes nothing."""
    operation = Operation.from_value(asked.body)
    if not isinstance(operation.task, str):
        raise no_task(operation.task)
    task = _there(desk.task(operation.task), operation.task)
    actor = operation.actor
    match operation.name:
        case "claim":
            _require_open(task)
            _require(desk, task, actor, "claim", actor.user is not None and actor.holds(task))
            if task.assignee not in (None, actor.user) and not actor.admin:
                raise _refused(desk, task, actor, "claim", f"it is claimed by {task.assignee}")
            task.assignee, task.status = actor.user, "claimed"
            desk.note(task, "claimed", actor.user)
        case "release":
            _require_open(task)
            _require(desk, task, actor, "release", _is_assignee(task, actor))
            task.assignee, task.status = None, "open"
            desk.note(task, "released", actor.user)
        case "assign":
            _require_open(task)
            _require(desk, task, actor, "assign", _is_assignee(task, actor))
            if not operation.to:
                raise InputInvalid("say whom to assign the task to")
            task.assignee, task.status = operation.to, "claimed"
            desk.note(task, "assigned", actor.user, to=operation.to)
        case "comment":
            allowed = actor.holds(task) or _is_assignee(task, actor)
            _require(desk, task, actor, "comment", actor.user is not None and allowed)
            desk.note(task, "commented", actor.user, text=operation.text)
        case "complete":
            return _complete(desk, task, operation, asked)
        case _:
            raise InputInvalid(f"{operation.name!r} is not an operation on tasks")
    return task_value(task, desk.store)


def _complete(desk: Handing, task: TaskRow, operation: Operation, asked: Operate) -> object:
    if task.status in OPEN:
        _may_complete(desk, task, operation.actor)
        _check_schema(task, operation.data)
    receipt = Receipt(intent=task.id, value=operation.data, by=operation.actor.user)
    return desk.hand_on(asked, Deliver(task.run_id, receipt, expected_version=operation.expected_version))


def recheck(desk: Desk, asked: Operate) -> None:
    """Asked again when a completion has its turn: what was asked in between may have given the task to somebody else."""
    if only_hands_on(asked):
        operation = Operation.from_value(asked.body)
        task = _there(desk.task(operation.task), operation.task)
        if task.status in OPEN:
            _may_complete(desk, task, operation.actor)


def _may_complete(desk: Desk, task: TaskRow, actor: Actor) -> None:
    _require(desk, task, actor, "complete", _is_assignee(task, actor))


def _is_assignee(task: TaskRow, actor: Actor) -> bool:
    return actor.admin or (actor.user is not None and task.assignee == actor.user)


def _require_open(task: TaskRow) -> None:
    if task.status not in OPEN:
        raise NotWaiting(
            f"the task {task.name} is {task.status}", code="TASK_CLOSED", details={"task": task.id}
        )


def _require(desk: Desk, task: TaskRow, actor: Actor, what: str, allowed: bool) -> None:
    if not allowed:
        needs = f"it takes one of the roles {', '.join(task.roles)}" if task.roles else "it takes a user"
        if task.assignee is not None and what != "claim":
            needs = f"it is {task.assignee}'s"
        elif what != "claim" and actor.holds(task):
            needs = "claim it first"
        raise _refused(desk, task, actor, what, needs)


def _refused(desk: Desk, task: TaskRow, actor: Actor, what: str, why: str) -> TreadleError:
    who = actor.user or "who gives no user (--user)"
    details = {"task": task.id, "user": actor.user, "roles": list(actor.roles), "operation": what}
    desk.diagnose(task.run_id, "task.refused", details)
    return Forbidden(f"{who} may not {what} the task {task.name}: {why}", details=details)


def _check_schema(task: TaskRow, data: Value) -> None:
    if task.schema is None:
        return
    from treadle.lang.json_schema import CANNOT_APPLY, validator

    try:
        errors = sorted(validator(task.schema).iter_errors(data), key=lambda e: [str(p) for p in e.path])
    except CANNOT_APPLY as error:
        raise InputInvalid(
            f"the answer cannot be checked: the schema of the task {task.name}: {error}"
        ) from error
    if errors:
        found = [
            {"field": ".".join(str(part) for part in e.path) or "$", "message": e.message} for e in errors
        ]
        summary = "; ".join(f"{e['field']}: {e['message']}" for e in found)
        raise InputInvalid(
            f"the answer does not fit the task {task.name}: {summary}", details={"errors": found}
        )


def _there(task: TaskRow | None, id: str) -> TaskRow:
    if task is None:
        raise no_task(id)
    return task


def no_task(id: object) -> NotWaiting:
    return NotWaiting(f"there is no task {id!r}; `treadle tasks` lists them", code="TASK_NOT_FOUND")


def found(reads: Reads, id: str) -> TaskRow:
    return _there(reads.task(id), id)


def home(reads: Reads, id: str) -> str:
    """The run that a task belongs to; "" if there is no such task."""
    task = reads.task(id)
    return task.run_id if task is not None else ""


def shown(reads: Reads, id: str) -> dict[str, Value]:
    """One task as people see it."""
    return task_value(found(reads, id), reads)


# Told by an entry of a task's history, and shown as a field of the row.
_TOLD = ("title", "description", "escalated_from", "answer")


def task_value(task: TaskRow, reads: Reads) -> dict[str, Value]:
    """A task row as people see it, with what its payload refers to in place."""
    told = {key: entry[key] for entry in task.history for key in _TOLD if key in entry}
    last = {entry["event"]: entry for entry in task.history}
    return {
        "id": task.id,
        "run": task.run_id,
        "workflow": task.workflow,
        "name": task.name,
        "title": told.get("title"),
        "description": told.get("description"),
        "type": task.type,
        "roles": task.roles,
        "payload": whole(reads, task.payload),
        "schema": task.schema,
        "reference": task.reference,
        "status": task.status,
        "assignee": task.assignee,
        "created_at": instant_text(task.created_ns),
        "due": None if task.due_ns is None else instant_text(task.due_ns),
        "answer": whole(reads, told.get("answer")),
        "completed_by": last.get("completed", {}).get("by"),
        "escalated_from": told.get("escalated_from"),
        "escalated_to": last.get("escalated", {}).get("to"),
        "history": [
            {"at": instant_text(e["at_ns"]), **{k: v for k, v in e.items() if k not in ("at_ns", *_TOLD)}}
            for e in task.history
        ],
    }
