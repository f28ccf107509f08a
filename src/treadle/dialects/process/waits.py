"""Steps that wait: how each opens its intent, and what its receipt leads to.

Every wait is one open intent, found again by its `ref` (`thread/number`). Deadlines are the
intent's own `due_ns`. A call whose attempt failed waits for a timer before the next one: nothing
sleeps. A wait that ends badly with no branch to take stalls the thread; `retry_stalled` is how a
person moves it on.
"""

from __future__ import annotations

from typing import Final

from treadle.kernel.errors import DefinitionError, NotWaiting, RunEnded, TreadleError, Unsupported
from treadle.kernel.limits import DUE_NS_MAX
from treadle.kernel.model import Intent, OpenIntent, Receipt, Retry, is_reference
from treadle.kernel.values import Value, digest
from treadle.lang.duration import DURATION_NS_MAX, parse_duration, parse_instant
from treadle.lang.expressions.functions import json, measure, mistake, type_name
from treadle.lang.expressions.references import is_large, part_of

from . import undo
from .durations import duration_text
from .program import Ask, Await, Call, Op, RetryPolicy, Start, Wait
from .scope import RunScope, Thread
from .turn import HANDLERS, NAMES_STEPS, Again, Turn, shortened

# Results of calls by HTTP ride in the receipt's value, status and headers in an event beside it.
RESPONSE_EVENT: Final = "call.response"


def open_intent(
    turn: Turn,
    current: Thread,
    op: Op,
    kind: str,
    params: dict[str, Value],
    *,
    wait: dict[str, Value] | None = None,
    due_ns: int | None = None,
    key: str | None = None,
    pool: str = "",
) -> bool:
    """Opens an intent for a thread, which waits for it from now on."""
    # As the kernel has it: the state holds no instant that its bytes could not.
    due_ns = None if due_ns is None else min(due_ns, DUE_NS_MAX)
    ref = f"{current['id']}/{turn.next_id()}"
    params["path"] = op.path
    turn.bytes += measure(params)
    turn.intents.append(
        Intent(kind=kind, params=params, ref=ref, due_ns=due_ns, idempotency_key=key, pool=pool)
    )
    current["wait"] = {
        "kind": kind,
        "path": op.path,
        "ref": ref,
        "name": params["name"],
        "due": due_ns,
        **(wait or {}),
    }
    return True


def _due(turn: Turn, after_ns: int | None) -> int | None:
    return None if after_ns is None else min(turn.ctx.now_ns + after_ns, DUE_NS_MAX)


# --- opening --------------------------------------------------------------------------------------


def _ask(turn: Turn, current: Thread, op: Ask, *, escalated_from: str | None = None) -> bool:
    task, escalated = op.task, escalated_from is not None
    params: dict[str, Value] = {"name": task.name, **task.fixed}
    params["roles"] = task.escalate_to if escalated else task.roles
    override = current.pop("input", None)
    if override is not None:
        params["payload"] = override["value"]
    elif task.payload is not None:
        params["payload"] = task.payload(turn.scope(current))
    if turn.reference is not None:
        params["reference"] = turn.reference
    if task.escalate_to and not escalated:
        params["escalate_to"] = task.escalate_to
    if escalated and turn.ctx.machine >= NAMES_STEPS:
        params["escalated_from"] = escalated_from
    turn.event("task.opened", op.path, task=task.name, roles=params["roles"])
    # Who a task is escalated to has no one above: it waits for them without a deadline.
    due_ns = None if escalated else _due(turn, task.timeout_ns)
    return open_intent(turn, current, op, "task", params, wait={"escalated": escalated}, due_ns=due_ns)


def _call(turn: Turn, current: Thread, op: Call) -> bool:
    scope = turn.scope(current)
    params: dict[str, Value] = {
        "name": op.label,
        "path": op.path,
        "transport": op.transport,
        **_address(scope, op),
    }
    if op.pool and not turn.knows_pools:
        params["pool"] = op.pool  # a field like any other, then
    if op.timeout_ns is not None:
        params["timeout"] = duration_text(op.timeout_ns)
    override = current.pop("input", None)
    if override is not None:
        params["payload"] = override["value"]
    elif op.payload is not None:
        params["payload"] = op.payload(scope)
    earlier = current.pop("earlier", None)
    # The same request once more carries the key of the first; another request is another call.
    key = earlier["key"] if earlier and earlier["sent"] == digest(params) else None
    deadline = None if op.deadline_ns is None else _due(turn, op.deadline_ns)
    return _attempt(turn, current, op, params, number=1, deadline=deadline, key=key)


def _address(scope: RunScope, op: Call) -> dict[str, Value]:
    """Where a call goes. One that is large as a whole is named part by part."""
    address: dict[str, Value] = op.address(scope)
    if "store" not in address or not is_reference(address):
        return address
    return {key: part_of(address, key) for key in scope.at_hand(address)}


def _attempt(
    turn: Turn,
    current: Thread,
    op: Call,
    params: dict[str, Value],
    *,
    number: int,
    deadline: int | None,
    key: str | None,
) -> bool:
    due_ns = _due(turn, op.timeout_ns) if op.timeout_ns is not None else deadline
    if deadline is not None and due_ns is not None and deadline < due_ns:
        due_ns = deadline
    wait = {"attempt": number, "deadline": deadline}
    turn.event("call.started", op.path, name=op.label, transport=op.transport, attempt=number)
    return open_intent(
        turn,
        current,
        op,
        "call",
        params,
        wait=wait,
        due_ns=due_ns,
        key=key,
        pool=op.pool if op.pool and turn.knows_pools else "",
    )


def _wait(turn: Turn, current: Thread, op: Wait) -> bool:
    now_ns = turn.ctx.now_ns
    if op.value is None:
        assert op.constant_ns is not None
        due_ns = op.constant_ns if op.until else now_ns + op.constant_ns
    else:
        scope = turn.scope(current)
        value = scope.at_hand(op.value(scope))
        if not isinstance(value, str):
            mistake(f"a wait is text such as '30s' or an instant, not {type_name(value)}")
        try:
            due_ns = parse_instant(value) if op.until else now_ns + parse_duration(value)
        except DefinitionError as error:
            mistake(shortened(error.message), error.code)
    turn.event("timer.set", op.path)
    return open_intent(turn, current, op, "timer", {"name": op.label}, due_ns=max(due_ns, 0))


def _await(turn: Turn, current: Thread, op: Await) -> bool:
    current.pop("input", None)
    turn.event("signal.awaited", op.path, name=op.signal)
    return open_intent(turn, current, op, "signal", {"name": op.signal}, due_ns=_due(turn, op.timeout_ns))


def _start(turn: Turn, current: Thread, op: Start) -> bool:
    override = current.pop("input", None)
    input = override["value"] if override is not None else op.input(turn.scope(current)) if op.input else None
    params = {"name": op.workflow, "workflow": op.workflow, "input": input, "into": op.into}
    turn.event("child.started" if op.kind == "child" else "run.continued_with", op.path, workflow=op.workflow)
    return open_intent(turn, current, op, "child" if op.kind == "child" else "start", params)


HANDLERS.update({Ask: _ask, Call: _call, Wait: _wait, Await: _await, Start: _start})


# --- receipts -------------------------------------------------------------------------------------


def receive(turn: Turn, receipt: Receipt, intent: OpenIntent) -> None:
    """What one settled intent leads to."""
    current = turn.data["threads"].get(intent.ref.partition("/")[0])
    if current is None and "undoing" in turn.data:
        return  # another run was started by the step that failed; nobody waits to hear of it
    assert current is not None, "a receipt for a thread that is not there"
    wait = current["wait"]
    assert wait["ref"] == intent.ref, "a receipt for what nobody waits for"
    op = turn.program.ops[wait["path"]]
    if wait["kind"] == "retry":
        assert isinstance(op, Call)
        _attempt(
            turn,
            current,
            op,
            wait["params"],
            number=wait["attempt"],
            deadline=wait["deadline"],
            key=wait["key"],
        )
    elif receipt.status == "ok":
        _succeeded(turn, current, op, receipt.value, receipt)
    else:
        _failed(turn, current, op, receipt, intent)


def _succeeded(turn: Turn, current: Thread, op: Op, value: Value, receipt: Receipt | None) -> None:
    """A wait is over and gave a value (or a person gave one in its stead)."""
    by = receipt.by if receipt else None
    match op:
        case Ask():
            _paid(turn, current, value)
            turn.event("task.completed", op.path, task=op.task.name, by=by)
        case Await():
            if op.into is None:
                _paid(turn, current, value)
            turn.event("signal.received", op.path, name=op.signal, by=by)
        case Call():
            _store_response(turn, op, receipt)
            turn.event("call.done", op.path, name=op.label)
        case Start(kind="child"):
            if receipt is not None:
                turn.event("child.done", op.path, workflow=op.workflow, run=value.get("run"))
                value = value.get("result")
        case Wait():
            turn.event("timer.fired", op.path)
    into = getattr(op, "into", None)
    if into is not None:
        turn.data["results"][into] = value
    turn.ready(current)
    if isinstance(op, Call | Start) and op.undo is not None:
        results = turn.data["results"]
        own = {key: results[key] for key in (op.into or "", f"{op.into}_meta") if key in results}
        undo.register(turn, current, op, op.undo, own)
    if success := getattr(op, "handlers", {}).get("on_success"):
        turn.push(current, success)


def _paid(turn: Turn, current: Thread, value: Value) -> None:
    """`payload` is what the last completion of this thread brought."""
    current["payload"], current["paid"] = value, turn.ctx.seq


def _store_response(turn: Turn, op: Call, receipt: Receipt | None) -> None:
    if op.into is None or receipt is None:
        return
    for event in receipt.events:
        if event.get("type") == RESPONSE_EVENT:
            turn.data["results"][f"{op.into}_meta"] = {
                "status": event.get("status"),
                "headers": event.get("headers"),
            }


def _failed(turn: Turn, current: Thread, op: Op, receipt: Receipt, intent: OpenIntent) -> None:
    error = _error_of(turn, op, receipt)
    timed_out = receipt.status == "timeout"
    match op:
        case Call():
            brief = {"class": error["class"], "code": error["code"], "message": error["message"]}
            turn.event("call.failed", op.path, name=op.label, attempt=current["wait"]["attempt"], error=brief)
            if _retried(turn, current, op, intent):
                return
            handler = op.handlers.get("on_timeout") if timed_out else None
            handler = handler or op.handlers.get("on_failure")
        case Ask():
            turn.event("task.expired" if timed_out else "task.cancelled", op.path, task=op.task.name)
            handler = op.task.on_timeout if timed_out else None
            if timed_out and handler is None and op.task.escalate_to and not current["wait"]["escalated"]:
                turn.event("task.escalated", op.path, task=op.task.name, to=op.task.escalate_to)
                _ask(turn, current, op, escalated_from=intent.id)
                return
        case Await():
            turn.event("signal.timed_out", op.path, name=op.signal)
            handler = op.handlers.get("on_timeout") if timed_out else None
        case _:
            assert isinstance(op, Start), op
            turn.event("child.failed", op.path, workflow=op.workflow)
            handler = op.handlers.get("on_failure")
    if handler is None:
        stall(turn, current, op, error, intent)
    else:
        turn.ready(current)
        turn.push(current, handler, error=error)


def _error_of(turn: Turn, op: Op, receipt: Receipt) -> dict[str, Value]:
    given = receipt.error or {}
    fallback = {
        "timeout": ("timeout", "TIMEOUT", f"{op.label} did not end in time"),
        "cancelled": ("user", "CANCELLED", f"{op.label} was cancelled"),
    }.get(receipt.status, ("transport", "FAILED", f"{op.label} failed"))
    error: dict[str, Value] = {
        "class": "timeout" if receipt.status == "timeout" else given.get("class") or fallback[0],
        "code": given.get("code") or fallback[1],
        "message": shortened(given.get("message") or fallback[2]),
        "where": op.path,
        # The receipt has all of it; where the error is kept and shown, what is large would stand twice.
        "details": {key: part for key, part in (given.get("details") or {}).items() if not is_large(part)},
    }
    return turn.named(error, op.path)


def _retried(turn: Turn, current: Thread, op: Call, intent: OpenIntent) -> bool:
    """Schedules the next attempt, if there is one and the step's deadline leaves room for it."""
    wait = current["wait"]
    number, deadline = wait["attempt"], wait["deadline"]
    if op.retry is None or number >= op.retry.attempts:
        return False
    due_ns = turn.ctx.now_ns + delay_ns(op.retry, number, turn.ctx.entropy)
    if deadline is not None and due_ns >= deadline:
        return False
    more = {
        "kind": "retry",
        "attempt": number + 1,
        "deadline": deadline,
        "key": intent.idempotency_key or intent.id,
        "params": intent.params,
    }
    turn.data["retries"] = turn.data.get("retries", 0) + 1
    turn.event("call.retry", op.path, name=op.label, attempt=number + 1)
    return open_intent(turn, current, op, "timer", {"name": f"retry {op.label}"}, wait=more, due_ns=due_ns)


def delay_ns(policy: RetryPolicy, failed: int, entropy: bytes) -> int:
    """How long to wait after the attempt with the number `failed`."""
    factor = {"none": 1, "linear": failed, "exponential": 1 << min(failed - 1, 60)}[policy.backoff]
    delay = min(policy.delay_ns * factor, policy.max_delay_ns or DURATION_NS_MAX, DURATION_NS_MAX)
    if policy.jitter:
        # Between half of it and all of it, the same again on replay.
        delay = delay // 2 + (delay - delay // 2) * int.from_bytes(entropy[:8], "big") // 2**64
    return delay


# --- stalled --------------------------------------------------------------------------------------


def stall(turn: Turn, current: Thread, op: Op, error: dict[str, Value], intent: OpenIntent) -> None:
    """The recoverable error state: the thread keeps its place and shows its error. An undo does not
    wait for people to mend it: the others must have their turn."""
    if "undoing" in turn.data:
        turn.end("failed", None, error, op.path)
        return
    wait: dict[str, Value] = {
        "kind": "stalled",
        "path": op.path,
        "error": error,
        "seq": turn.ctx.seq,
        "name": op.label,
    }
    if isinstance(op, Call):
        wait["earlier"] = {"key": intent.idempotency_key or intent.id, "sent": digest(intent.params)}
    current["wait"] = wait
    turn.may_stall = True
    turn.event("run.stalled", op.path, error={key: error[key] for key in ("class", "code", "message")})


_HOW: Final = ("from", "input", "skip", "fail")


def retry_stalled(turn: Turn, event: Retry) -> None:
    """A person moves stalled threads on: again, with another input, past the step, or to its end."""
    how = event.how
    if unknown := sorted(set(how) - set(_HOW)):
        raise Unsupported(f"a process cannot be retried with {', '.join(unknown)}; use input, skip or fail")
    if len(set(how) & {"input", "skip", "fail"}) > 1:
        raise Unsupported("choose one of input, skip and fail")
    chosen = _chosen(turn, how)
    turn.may_stall = True
    way = next((key for key in _HOW[1:] if key in how), "again")
    if way == "fail":
        wait = chosen[0]["wait"]
        turn.event("run.retried", wait["path"], how=way, by=event.by)
        _given_up(turn, turn.program.ops[wait["path"]], how["fail"], wait["error"])
        return
    for current in chosen:
        wait = current["wait"]
        if "earlier" in wait and way != "skip":
            current["earlier"] = wait["earlier"]
        # Noted, not done: the turn takes as many of them as one record holds, and then goes on.
        mark = {"path": wait["path"], "kind": wait["kind"], "how": way, "value": how.get(way), "by": event.by}
        current["again"] = mark
        turn.ready(current)


def _again(turn: Turn, current: Thread, mark: Again) -> bool:
    op = turn.program.ops[mark.path]
    turn.event("run.retried", op.path, how=mark.how, by=mark.by)
    if mark.how == "skip":
        _succeeded(turn, current, op, mark.value, None)
        return True
    if mark.how == "input":
        current["input"] = {"value": mark.value}
    return HANDLERS[type(op)](turn, current, op)


HANDLERS[Again] = _again


def _chosen(turn: Turn, how: dict[str, Value]) -> list[Thread]:
    stalled = turn.stalled()
    if ended := turn.data.get("ended"):
        raise RunEnded(
            f"this run has {ended['status']}; `treadle fork ID --at SEQ` goes on from an earlier point of it"
        )
    if "undoing" in turn.data:
        raise NotWaiting("this run is being undone; it ends when that is done", code="NOT_STALLED")
    if not stalled:
        raise NotWaiting("this run is not stalled; only a stalled process can be retried", code="NOT_STALLED")
    paths = [current["wait"]["path"] for current in stalled]
    if (wanted := how.get("from")) is not None:
        stalled = [current for current in stalled if current["wait"]["path"] == wanted]
        if not stalled:
            raise NotWaiting(f"{wanted} is not stalled; stalled: {', '.join(paths)}", code="NOT_STALLED")
    elif len(stalled) > 1 and ("input" in how or "skip" in how):
        raise Unsupported(f"several steps are stalled; say which with --from: {', '.join(paths)}")
    return stalled


def _given_up(turn: Turn, op: Op, text: Value, cause: dict[str, Value]) -> None:
    message = text if isinstance(text, str) and text else json(text) if text is not None else cause["message"]
    error = TreadleError(
        shortened(message), cls="user", code="FAILED", where=op.path, details={"cause": cause}
    )
    turn.end("failed", None, turn.named(error.to_value(), op.path), op.path)
