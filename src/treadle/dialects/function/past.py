"""A run's past as its state holds it, and how each record changes it.

Every change of the state goes through here twice the same: when a decision is made, and when its record is read
without the code. So what is shown of a run never depends on who looks.
"""

from __future__ import annotations

from typing import Any, Final, cast

from treadle.kernel.errors import InputInvalid, NotWaiting, TreadleError, Unsupported, ValueRefused
from treadle.kernel.model import (
    UNSET,
    Cancel,
    Context,
    Continue,
    Decision,
    Event,
    Intent,
    Patch,
    Receipt,
    Retry,
    Started,
    is_reference,
)
from treadle.kernel.values import Value, digest_bytes, encode, to_value

from . import ending
from .awaits import EXPIRED
from .life import AWAIT, BEFORE, CANCEL, PATCH, PAYLOAD, RECORD, REOPEN, SLICE, WHAT, Entry, Life
from .shapes import plain

CANCELLED: Final = "CANCELLED"


def fresh(event: Started, ctx: Context) -> dict[str, Any]:
    """The state of a run before its first line."""
    return {
        "input": event.input,
        "seed": event.seed,
        "root": ctx.run,
        "reference": event.reference,
        "generation": 0,
        "started_ns": ctx.now_ns,
        "began": ctx.seq,
        # `ctx.state`: as this generation began, and now.
        "first": {},
        "state": {},
        "patches": {},
        "awaits": [],
        "past": [],
        "cancelled": None,
        "undone": False,
        # The record that failed the run, where its own function did.
        "failed_at": None,
        # Between two generations: the past of the one is gone, the other has not begun.
        "between": False,
    }


def take(state: dict[str, Any], event: Event, ctx: Context) -> Entry | None:
    """Puts an event into the past; the entry, where the function is told one."""
    before = len(state["awaits"])
    match event:
        case Receipt():
            assert ctx.intent is not None
            number = int(ctx.intent.ref.partition(".")[2])
            payload = event.value if event.status == "ok" else event.error
            entry = [ctx.seq, ctx.now_ns, before, event.status, number, payload]
        case Cancel():
            entry = [ctx.seq, ctx.now_ns, before, CANCEL, None, None]
            state["cancelled"] = event.reason or "cancelled"
        case Patch():
            entry = [ctx.seq, ctx.now_ns, before, PATCH, None, _patched(event)]
        case Continue(more={"again": input}):
            _begin_again(state, input, ctx)
            return None
        case Continue():
            entry = [ctx.seq, ctx.now_ns, before, SLICE, None, None]
        case _:
            return None
    state["past"].append(entry)
    return entry


def _patched(event: Patch) -> dict[str, Any]:
    """`stage=done` and `state.stage=done` both mean ctx.state["stage"]."""
    data = {target.removeprefix("state."): value for target, value in event.data.items()}
    if any("." in target for target in data):
        raise Unsupported("a durable function's state is changed by its first names: stage=…")
    return data


def _begin_again(state: dict[str, Any], input: Value, ctx: Context) -> None:
    state.update(
        input=input,
        generation=state["generation"] + 1,
        started_ns=ctx.now_ns,
        began=ctx.seq,
        first=to_value(state["state"]),
        patches={},
        between=False,
    )


def retried(state: dict[str, Any], event: Retry, ctx: Context) -> tuple[int, Entry | None]:
    """How much of the past stays, and the entry that is told anew after it."""
    entries = state["past"]
    how = event.how
    unknown = [name for name in how if name not in ("skip", "from", "value")]
    if unknown:
        raise Unsupported(f"a durable function is not retried with {', '.join(unknown)}; use skip or from")
    if "from" in how:
        step = str(how["from"])
        numbers = [number for number, shape in enumerate(state["awaits"]) if shape[1] == step]
        if not numbers:
            raise NotWaiting(f"{ctx.run} has not come to {step!r}", code="NOT_STALLED")
        # The entry during which it was opened is told anew; without one, that was the start.
        made_in = [index for index, entry in enumerate(entries) if entry[BEFORE] <= numbers[-1]]
        return (made_in[-1], list(entries[made_in[-1]])) if made_in else (0, None)
    failed_at = state.get("failed_at")
    keep = next((n for n in reversed(range(len(entries))) if entries[n][RECORD] == failed_at), len(entries))
    if "skip" in how:
        kind = (
            state["awaits"][entries[keep][AWAIT]][:2]
            if keep < len(entries) and _is_failed(entries[keep])
            else None
        )
        if kind is None or kind == ["timer", EXPIRED]:
            raise NotWaiting(
                f"{ctx.run} did not fail at a step: there is nothing to skip", code="NOT_STALLED"
            )
        given = how.get("value") if how["skip"] is True else how["skip"]
        last = list(entries[keep])
        last[WHAT], last[PAYLOAD] = "ok", _as_receipt(kind[0], given)
        return keep, last
    return keep, None


def told_anew(event: Retry, entry: Entry | None, count: int, ctx: Context) -> list[Entry]:
    """What a retry puts into the past: that all is opened anew, and what is told besides."""
    at = [ctx.seq, ctx.now_ns, count]
    again = [*at, REOPEN, None, {"by": event.by, "followed": entry is not None}]
    return [again] if entry is None else [again, [*at, *entry[WHAT:]]]


def _is_failed(entry: Entry) -> bool:
    return entry[AWAIT] is not None and entry[WHAT] != "ok"


def _as_receipt(kind: str, value: Value) -> Value:
    """A value that somebody gives, as it would have come."""
    if kind == "child":
        return {"run": None, "result": value}
    return {"run": value} if kind == "start" else value


# --- decisions ------------------------------------------------------------------------------------


def decision(life: Life, ctx: Context) -> Decision:
    """What the function did, as a decision, with the log of what changes in the state."""
    state, made = life.state, life.take()
    log: dict[str, Any] = {"awaits": made.awaits if ctx.logged is None else _placed(made.awaits, ctx)}
    if made.patches:
        log["patches"] = made.patches
    if (life.data or state["state"]) and (changed := _changes(life)):
        log["state"] = changed
    decided = Decision(state=state, events=made.events, intents=made.intents, cancel=made.cancel)
    if life.outcome is not None and life.is_over:
        _end(life, decided, log, ctx)
    elif life.owes:
        decided.status, decided.more = "running", {"slice": True}
        if life.outcome is not None:  # it opens nothing any more
            decided.intents = []
    elif life.cancelled:
        decided.status = "running"
    decided.log = log
    apply(state, log)
    return decided


def _placed(awaits: list[list[Value]], ctx: Context) -> list[list[Value]]:
    """The awaits of a decision. Lines are never compared: a record that is decided again keeps its own."""
    logged = ctx.logged.get("awaits") if isinstance(ctx.logged, dict) else None
    if logged is None or len(logged) != len(awaits):
        return awaits
    return [[*shape[:3], was[3]] for shape, was in zip(awaits, logged, strict=True)]


def _changes(life: Life) -> dict[str, Any]:
    """How `ctx.state` changed, by its first names."""
    was = life.state["state"]
    now = {str(name): plain(value) for name, value in life.data.items()}
    changed = {
        name: life.lightened(value)
        for name, value in now.items()
        if name not in was or not _is_same(was[name], encode(value))
    }
    gone = sorted(name for name in was if name not in now)
    told: dict[str, Any] = {}
    if changed:
        told["set"] = changed
    if gone:
        told["drop"] = gone
    return told


def _is_same(was: Value, body: bytes) -> bool:
    """Whether a value is what the state has, itself or by reference."""
    return bool(was["checksum"] == digest_bytes(body)) if is_reference(was) else encode(was) == body


def apply(state: dict[str, Any], log: dict[str, Any]) -> None:
    """The same, when it is decided and when it is read."""
    if len(log) == 1 and "awaits" in log:
        state["awaits"] += log["awaits"]
        return  # as nearly always
    if cut := log.get("cut"):
        state["past"] = state["past"][: cut[0]]
        state["awaits"] = state["awaits"][: cut[1]]
        state["failed_at"] = None
        state["past"] += log["told"]
    state["awaits"] += log.get("awaits", ())
    state["patches"].update(log.get("patches") or {})
    changed = log.get("state") or {}
    for name in changed.get("drop", ()):
        state["state"].pop(name, None)
    state["state"].update(to_value(changed.get("set") or {}))
    if log.get("again"):
        state.update(awaits=[], past=[], between=True)
    if log.get("undone"):
        state["undone"] = True
    if "failed_at" in log:
        state["failed_at"] = log["failed_at"]


def told(state: dict[str, Any], ctx: Context) -> Decision:
    """A decision as its record tells it."""
    record = ctx.recorded
    assert record is not None
    log = record.get("log") or {}
    apply(state, log)
    gone = set(record.get("cancelled", ()))
    return Decision(
        state=state,
        events=list(record.get("events", ())),
        intents=[
            Intent(
                kind=opened["kind"],
                params=opened["params"],
                ref=opened.get("ref", ""),
                due_ns=opened.get("due_ns"),
                idempotency_key=opened.get("idempotency_key"),
                pool=opened.get("pool", ""),
            )
            for opened in record.get("opened", ())
        ],
        cancel=[intent.ref for intent in ctx.open.values() if intent.id in gone],
        status=record["status"],
        result=record.get("result"),
        error=record.get("error"),
        more=record.get("more"),
        log=record.get("log"),
        reference=record.get("reference", UNSET),
        # Their bytes are there already; the record has their names.
        blobs=dict.fromkeys(record.get("blobs", ()), b""),
    )


# --- ends -----------------------------------------------------------------------------------------


def _end(life: Life, decided: Decision, log: dict[str, Any], ctx: Context) -> None:
    assert life.outcome is not None
    how, value = life.outcome
    if how == "again":
        decided.status, decided.more = "running", {"again": life.lightened(value)}
        decided.intents = []
        decided.cancel = [intent.ref for intent in ctx.open.values()]
        log["again"] = True
        decided.events.append({"type": "workflow.continued", "generation": life.generation + 1})
        return
    decided.intents, decided.cancel = [], []
    error: dict[str, Any] | None = None
    if life.expired is not None:
        how = "failed"
        log["failed_at"] = life.expired
        message = f"{life.code.name} took longer than its timeout"
        error = {"class": "timeout", "code": "TIMEOUT", "message": message, "where": None, "details": {}}
    elif how == "completed":
        try:
            result = plain(value)
            life.code.result(result)
            decided.result = life.lightened(result)
        except (ValueRefused, InputInvalid) as refused:
            how, error = "failed", _unfit(life, refused)
            log["failed_at"] = life.record
    elif how == "cancelled":
        reason = life.state["cancelled"] or "cancelled"
        error = {"class": "user", "code": CANCELLED, "message": reason, "where": None, "details": {}}
    else:
        how = "failed"
        error = ending.error_of(value)
        raised = _raised(value, ctx)
        log["failed_at"] = ending.record_of(value) or life.record
        log["raised"] = raised
        error["where"] = error["where"] or raised["where"]
        error["details"] = {**error["details"], "traceback": raised["traceback"]}
    if error is not None and life.undone:
        error["details"] = {**error["details"], "compensations": life.undone}
        log["undone"] = True
    decided.status, decided.error = cast("Any", how), error
    decided.events.append({"type": "workflow.finished", "status": how})


def _unfit(life: Life, refused: TreadleError) -> dict[str, Any]:
    """What was returned cannot be stored, or is not what the annotation promises to whoever waits for it."""
    return ValueRefused(f"what {life.code.name} returned: {refused.message}").to_value()


def _raised(error: BaseException, ctx: Context) -> dict[str, Any]:
    """Where an exception came from; a record that is decided again keeps its own lines."""
    if isinstance(ctx.logged, dict) and "raised" in ctx.logged:
        return cast("dict[str, Any]", ctx.logged["raised"])
    lines = ending.traceback_of(error.__traceback__)
    where = f"{lines[-1]['file']}:{lines[-1]['line']}" if lines else None
    return {"where": where, "traceback": lines}
