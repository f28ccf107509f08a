"""The life of one step-run: started, suspended and resumed, ended, routed.

A step-run is one token being consumed. Without a loop it is one intent at a time (a new one after
each suspension); with a loop it is one intent per iteration in flight, or per lease of iterations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import ExpressionError
from treadle.kernel.model import Intent, Receipt, is_reference
from treadle.kernel.values import Value

from . import loops, waiting
from .errands import KIND
from .failures import failure, template_failure, worker_failure
from .handles import is_stored, payload_of
from .layers import merge
from .marking import Ref, Turn, canonical
from .model import Step
from .needs import gather
from .pools import pool_of
from .routing import Boundary, after
from .suspension import answer

if TYPE_CHECKING:
    from .states import TokenState

# Values without parts. Not floats: -0.0 is one that becomes another when it is written.
_FLAT: Final = frozenset({int, str, bool, type(None)})


def begin(turn: Turn, name: str, step: Step, token: TokenState) -> None:
    """Consumes an admitted token."""
    token["status"] = "running"
    token.pop("denied", None)
    entry = turn.entry(step)
    entry["runs"] += 1
    entry["active"] += 1
    if step.once:
        entry["latched"] = True
    error: dict[str, Value] | None = None
    if step.args is not None and (turn.first or not step.per_item):
        try:
            defaults = step.args.arguments(turn.scope(token["args"], event=token.get("event") or {}))
            token["args"] = turn.light_args(
                canonical(merge(defaults, _mergeable(turn, defaults, token["args"])))
            )
        except ExpressionError as problem:
            error = template_failure(problem)
    is_timed = step.timeout_ns is not None or step.deadline_ns is not None
    if error is None and is_timed and not _arm(turn, name, step, token):
        error = failure("timeout", f"step {step.name!r}: its deadline has passed", code="DEADLINE")
    if error is not None:
        turn.tell(step.told.started)
        end(turn, name, step, token, error=error)
    elif step.loop is not None:
        error = loops.start(turn, step, token)
        if error is not None:
            turn.tell(step.told.started)
            end(turn, name, step, token, error=error)
        else:
            advance_loop(turn, name, step, token)
    elif not step.tasks:
        turn.tell(step.told.started)
        end(turn, name, step, token)
    else:
        params, size = measured_params(turn, step, token)
        if (again := token.pop("again", None)) is not None:
            params |= {"first": again["first"], "resume": {"frame": again["frame"]}}
            turn.emit("step.started", step=step.name, data={"resumed": True})
            size = None
        elif step.only_waits and turn.takes_waits and waiting.begin(turn, Ref(name), step, token, params):
            return
        # The label is that of `Ref(name)`.
        turn.open(Intent(kind=KIND, params=params, ref=name, pool="" if turn.first else step.pool), size)


def _mergeable(turn: Turn, defaults: dict[str, Value], given: dict[str, Value]) -> dict[str, Value]:
    """What a token brings, with the mappings at hand that are to be merged into mappings."""
    if turn.first:
        return given
    return {
        key: payload_of(value) if isinstance(defaults.get(key), dict) else value
        for key, value in given.items()
    }


def _arm(turn: Turn, name: str, step: Step, token: TokenState) -> bool:
    """Opens the timer of a step-run with a lifecycle; False where its time is up already."""
    now = turn.ctx.now_ns
    limits = [now + step.timeout_ns] if step.timeout_ns is not None else []
    if step.deadline_ns is not None:
        limits.append(turn.ctx.started_ns + step.deadline_ns)
    due = min(limits)
    if due <= now:
        return False
    if step.tasks:
        token["due"] = True
        ref = str(Ref(name, mark="due"))
        turn.open(Intent(kind="timer", params={"name": f"{step.name} lifecycle"}, ref=ref, due_ns=due))
    return True


def params_of(turn: Turn, step: Step, token: TokenState) -> dict[str, Value]:
    return measured_params(turn, step, token)[0]


def measured_params(turn: Turn, step: Step, token: TokenState) -> tuple[dict[str, Value], int | None]:
    """What the worker needs: only what the step's templates name; and its size, where it is known."""
    per_item = step.per_item and not turn.first
    needs = step.item_needs if per_item else step.needs
    params: dict[str, Value] = {"name": step.name, "step": step.name}
    if needs.of_state:
        params |= gather(needs, turn.state)
    if token["args"] and (needs.args or (step.args is not None and not turn.first)):
        params["args"] = token["args"]
    if per_item:
        params["per_item"] = True
    if turn.own_iter:
        params["iter"] = turn.own_iter
    return turn.light_params(params)


def receive(turn: Turn, ref: Ref, receipt: Receipt, value: Value) -> None:
    """The receipt of what was opened for a token: a suspension, the end of a pipeline, …"""
    name = ref.token
    token = turn.state["tokens"].get(name)
    if token is None:
        return
    step = turn.playbook.steps[token["step"]]
    if ref.mark == "args":
        _args_stored(turn, name, token, receipt, value)
    elif ref.mark == "keep":
        assert ref.part is not None
        _chunk_kept(turn, name, step, token, ref.part, receipt, value)
    elif ref.mark == "on":
        _resume(turn, step, token, ref.base, receipt, value)
    elif ref.mark == "lease":
        _lease_ended(turn, name, step, token, receipt, value)
    elif receipt.status == "ok" and isinstance(value, dict) and "suspended" in value:
        _suspend(turn, token, ref, value)
    else:
        _pipeline_ended(turn, name, step, token, ref, _report(receipt, value))


def _suspend(turn: Turn, token: TokenState, ref: Ref, value: dict[str, Value]) -> None:
    waiting.hold(turn, token, ref, {"frame": value["suspended"], "on": value["on"], "first": value["first"]})


def _lease_ended(
    turn: Turn, name: str, step: Step, token: TokenState, receipt: Receipt, value: Value
) -> None:
    """A worker reports on the iterations of its lease, in the order in which they ended; those that
    it did not begin are handed out again."""
    tracker = token["loop"]
    began = loops.take_lease(tracker)
    if receipt.status != "ok" or not isinstance(value, dict) or "iterations" not in value:
        # The worker itself failed, before it could tell one iteration from another.
        reports: list[Value] = [[index, _report(receipt, None)] for index in began]
    else:
        reports = value["iterations"]
        tracker["next"] = value["next"]
    tracker["running"] += [index for index, _ in reports]
    for index, report in reports:
        if "suspended" in report:
            _suspend(turn, token, Ref(name, index), report)
        else:
            _settle(turn, step, token, index, canonical(report))
    advance_loop(turn, name, step, token)


def _args_stored(turn: Turn, name: str, token: TokenState, receipt: Receipt, value: Value) -> None:
    """Large arguments are in the blob store: the token that carries their references is ready."""
    if receipt.status == "ok":
        token["args"], token["status"] = canonical(value), "ready"
        turn.state["ready"].append(name)
        return
    refuse(turn, name, turn.playbook.steps[token["step"]], token, _report(receipt, value)["error"])


def refuse(turn: Turn, name: str, step: Step, token: TokenState, error: dict[str, Value]) -> None:
    """A step-run fails before it starts: its admission or its arguments could not be evaluated."""
    entry = turn.entry(step)
    entry["runs"] += 1
    entry["active"] += 1
    end(turn, name, step, token, error=error)


def _report(receipt: Receipt, value: Value) -> dict[str, Value]:
    """What a pipeline reported; a receipt that is no report is an error of the worker."""
    if receipt.status == "ok" and isinstance(value, dict) and "status" in value:
        # What holds nothing that nests is read as it is; nobody asks for the order of a report's own keys.
        return value if _FLAT.issuperset(map(type, value.values())) else canonical(value)
    return {"status": "error", "error": worker_failure(receipt.status, receipt.error or {})}


def _resume(turn: Turn, step: Step, token: TokenState, base: Ref, receipt: Receipt, value: Value) -> None:
    """What a pipeline waited for has come: it goes on as a new intent, with the first one's keys."""
    hold = token["holds"].pop(str(base))
    if not token["holds"]:
        del token["holds"]
    resume: dict[str, Value] = {"frame": hold["frame"]}
    if not hold["on"].get("retry"):
        resume["outcome"] = outcome = canonical(answer(hold["on"], receipt, value))
        if "result" in outcome:
            outcome["result"] = turn.light(outcome["result"])
    params = params_of(turn, step, token)
    if base.iteration is not None:
        params |= {"iteration": base.iteration, "total": token["loop"]["total"]}
    if "first" in hold:
        params["first"] = hold["first"]
    elif step.only_waits and turn.takes_waits:
        report = canonical(waiting.ended(turn, step, params, hold["frame"], resume["outcome"]))
        _pipeline_ended(turn, base.token, step, token, base, report)
        return
    params["resume"] = resume
    turn.open(Intent(kind=KIND, params=params, ref=str(base), pool=pool_of(step)))


def _pipeline_ended(
    turn: Turn, name: str, step: Step, token: TokenState, ref: Ref, report: dict[str, Value]
) -> None:
    if ref.iteration is None:
        if writes := report.get("ctx"):
            turn.patch(writes, step=step.name)
        if "again" in report and not turn.first:
            token["again"] = report["again"]
        end(
            turn,
            name,
            step,
            token,
            result=report.get("result"),
            error=report.get("error"),
            iteration=report.get("iter"),
            attempt=report.get("attempt", 1),
        )
        return
    _settle(turn, step, token, ref.iteration, report)
    advance_loop(turn, name, step, token)


def _settle(turn: Turn, step: Step, token: TokenState, index: int, report: dict[str, Value]) -> None:
    result, writes = report.get("result"), report.get("ctx") or []
    loops.settle(turn, step, token, index, result=result, error=report.get("error"), writes=writes)


def advance_loop(turn: Turn, name: str, step: Step, token: TokenState) -> None:
    """Opens what may run next, or ends the loop."""
    tracker = token["loop"]
    if loops.must_stop(step, token) and not tracker.get("stopped"):
        loops.stop(turn, name, step, token, "cancelled", "another iteration failed")
    loops.keep_chunks(turn, name, tracker)
    loops.fill(turn, name, step, token, params_of(turn, step, token))
    if loops.is_over(token) and not tracker["keeping"] and not loops.is_full(turn, tracker):
        _loop_ended(turn, name, step, token, tracker.get("wrong"))


def _loop_ended(
    turn: Turn, name: str, step: Step, token: TokenState, error: dict[str, Value] | None = None
) -> None:
    result = loops.result_of(turn, step, token)
    if error is None and loops.must_stop(step, token):
        error = token["loop"]["error"]
    end(turn, name, step, token, result=result, error=error, stats=result["stats"])


def _chunk_kept(
    turn: Turn, name: str, step: Step, token: TokenState, part: int, receipt: Receipt, value: Value
) -> None:
    tracker = token["loop"]
    if receipt.status != "ok" or not is_reference(value):
        loops.stop(turn, name, step, token, "cancelled", "its results could not be stored")
        tracker["keeping"] = 0
        wrong = failure(
            "storage_access", f"step {step.name!r}: results could not be stored", details=receipt.error or {}
        )
        tracker.setdefault("error", wrong)
        _loop_ended(turn, name, step, token, wrong)
        return
    loops.kept(turn, name, tracker, part, value)
    advance_loop(turn, name, step, token)


def expire(turn: Turn, name: str) -> None:
    """The lifecycle of a step-run is over before the step-run is."""
    token = turn.state["tokens"].get(name)
    if token is None:
        return
    step = turn.playbook.steps[token["step"]]
    token.pop("due", None)
    message = f"step {step.name!r}: its time is up"
    error = failure("timeout", message, code="TIMEOUT")
    if "loop" in token:
        # What its iterations have given is still put away.
        loops.stop(turn, name, step, token, "timeout", message)
        token["loop"]["wrong"] = error
        advance_loop(turn, name, step, token)
        return
    for ref in turn.open_refs(name):
        turn.cancel(ref)
    end(turn, name, step, token, error=error)


def _tell_end(
    turn: Turn,
    type: str,
    step: Step,
    error: dict[str, Value] | None,
    counts: dict[str, Value],
    result: Value,
) -> None:
    shown: dict[str, Value] = {"step": step.name}
    if error is not None:
        shown["error"] = error
    if is_stored(result):
        shown["data"] = {**counts, "result": result}
    elif counts:
        shown["data"] = counts
    turn.emit(type, **shown)


def end(
    turn: Turn,
    name: str,
    step: Step,
    token: TokenState,
    *,
    result: Value = None,
    error: dict[str, Value] | None = None,
    iteration: dict[str, Value] | None = None,
    stats: dict[str, Value] | None = None,
    attempt: int = 1,
) -> None:
    """A step-run has reached its terminal outcome: record it, route it, count it."""
    state = turn.state
    del state["tokens"][name]
    if token.get("due"):
        turn.cancel(str(Ref(name, mark="due")))
    entry = turn.entry(step)
    entry["active"] -= 1
    entry["status"] = "done" if error is None else "failed"
    entry["result"] = result
    entry.pop("error", None)
    if error is not None:
        entry["error"] = error
    if error is None:
        state["done"] += 1
    else:
        state["failed"] += 1
    if error is None and "special" not in token:
        state["succeeded"] = True
    state["last"] = step.name
    event_name = "step.failed" if error is not None else "loop.done" if step.loop is not None else "step.done"
    counts = (
        {"total": stats["total"], "success": stats["success"], "failed": stats["failed"]} if stats else {}
    )
    if error is None and not counts and not is_stored(result):
        turn.tell(step.told.done)
    else:
        _tell_end(turn, event_name, step, error, counts, result)
    event: dict[str, Value] = {
        "name": event_name,
        "step": step.name,
        "status": "ok" if error is None else "error",
        "result": result,
        "error": error,
        "attempt": attempt,
        **counts,
    }
    after(turn, step, token, event, Boundary(turn, step, token, event, iteration))
