"""Failure, quiescence and the end (seed 000 §6 and §7).

A run is over when no token can run, nothing is in flight and no fan-in waits. Its status follows
from the failures that nobody handled: a failure is handled by a matched arc with a `when`.
Unset failure mode: `failed`, other branches run to their end. `fail_fast`: everything stops.
`best_effort`: `partial`, if something else succeeded.
"""

from __future__ import annotations

from typing import Final

from treadle.kernel.brief import brief
from treadle.kernel.errors import ExpressionError
from treadle.kernel.model import Status
from treadle.kernel.values import Value

from . import loops
from .failures import failure, template_failure
from .handles import is_stored
from .joins import incomplete
from .lifetimes import stamped
from .marking import Turn
from .model import Step
from .routing import Boundary, apply_step_set, route
from .states import Failed, PlaybookState, StepEntry, TokenState

FAILURES_KEPT_MAX: Final = 1000
# So many failures are told in full; of those beyond only the beginning is kept.
FAILURES_SHOWN_MAX: Final = 20
FAILURE_BYTES_MAX: Final = 512
_CLASSES: Final = {
    "connection": "transport",
    "rate_limit": "transport",
    "server_error": "transport",
    "db_connection": "transport",
    "db_deadlock": "transport",
    "timeout": "timeout",
    "db_timeout": "timeout",
    "auth": "authorization",
    "template": "expression",
}


def after(turn: Turn, step: Step, token: TokenState, event: dict[str, Value], boundary: Boundary) -> None:
    """Routes an ended step-run and counts its failure if nobody handled it."""
    error: dict[str, Value] | None = event.get("error")
    special = token.get("special")
    if special is not None:
        # final_step, on_failure and on_cancel end the run; their next is not followed.
        _set_only(boundary)
        if error is not None:
            hard = step.failure_mode != "best_effort"
            _count(turn, step, token, error, hard=hard)
        return
    before = turn.state["n"]
    try:
        if step.set_ctx is not None:
            apply_step_set(boundary)
        handled = route(boundary)
    except ExpressionError as problem:
        wrong = template_failure(problem)
        if error is not None and turn.ctx.machine > 1:
            # What failed first is what the run failed of; its arcs could not be evaluated because of it.
            turn.emit("next.failed", step=step.name, error=wrong)
            wrong = error
        _count(turn, step, token, wrong, hard=True)
        return
    fired = turn.state["n"] > before
    if not fired and step.routed and turn.playbook.no_next_is_error and error is None:
        message = f"step {step.name!r}: no arc of next matches {event['name']}"
        error = failure("unknown", message, code="NO_MATCHING_ARC")
        turn.emit("next.unmatched", step=step.name, error=error)
        handled = False
    if error is None or handled:
        return
    mode = (
        turn.playbook.failure_mode
        if step.loop is not None
        else step.failure_mode or turn.playbook.failure_mode
    )
    _count(turn, step, token, error, hard=mode != "best_effort")
    if mode == "fail_fast":
        halt(turn, "fail_fast")


def _set_only(boundary: Boundary) -> None:
    try:
        apply_step_set(boundary)
    except ExpressionError as problem:
        _count(boundary.turn, boundary.step, boundary.token, template_failure(problem), hard=True)


def _count(turn: Turn, step: Step, token: TokenState, error: dict[str, Value], *, hard: bool) -> None:
    failures = turn.state["failures"]
    turn.state["hard"] = bool(turn.state.get("hard")) or hard
    if len(failures) < FAILURES_KEPT_MAX:
        if len(failures) >= FAILURES_SHOWN_MAX:
            error = brief(error, FAILURE_BYTES_MAX)
        kept: Failed = {"step": step.name, "error": error, "hard": hard, "args": token["args"]}
        if token.get("special"):
            kept["special"] = token["special"]
        if "again" in token:
            kept["again"] = token["again"]
        failures.append(kept)


def halt(turn: Turn, why: str) -> None:
    """Stops everything: running step-runs are taken back, parked and waiting tokens are skipped."""
    state = turn.state
    for name in list(state["tokens"]):
        token = state["tokens"][name]
        step = turn.playbook.steps[token["step"]]
        if token["status"] == "running":
            if "loop" in token:
                loops.stop(turn, name, step, token, "cancelled", why)
            for ref in turn.open_refs(name):
                turn.cancel(ref)
            entry = turn.entry(step)
            entry["active"] -= 1
            entry["status"] = "failed"
            entry["error"] = failure("cancelled", f"stopped by {why}", code="CANCELLED")
            turn.emit("step.failed", step=step.name, error=entry["error"])
            state["failed"] += 1
        else:
            turn.emit("token.discarded", step=step.name, data={"reason": why})
        state["halted"].append({"step": token["step"], "args": token["args"]})
        del state["tokens"][name]
    state["ready"], state["parked"], state["joins"] = [], [], {}


def conclude(turn: Turn) -> None:
    """Called when nothing can run by itself any more: wait, run a closing step, or end."""
    state, playbook = turn.state, turn.playbook
    waiting = state["parked"] or (state["joins"] and incomplete(state))
    if waiting and state["phase"] == "flow":
        if playbook.pending_tokens == "wait":
            return
        if playbook.pending_tokens == "discard":
            for name in state["parked"]:
                token = state["tokens"].pop(name)
                turn.emit("token.discarded", step=token["step"], data={"reason": "pending_tokens: discard"})
            state["parked"], state["joins"] = [], {}
    if state["phase"] == "cancel":
        _end(turn, "cancelled")
        return
    if state["phase"] == "flow":
        state["phase"] = "failure"
        if state.get("hard") and playbook.on_failure is not None:
            special(turn, playbook.on_failure, "on_failure", {"name": "workflow.failed"})
            return
    if state["phase"] == "failure":
        state["phase"] = "final"
        final = playbook.final
        if final is not None and not ((ran := state["steps"].get(final)) and ran["runs"]):
            state["closing"] = final
            special(turn, final, "final_step", {"name": "workflow.finished"})
            return
    _end(turn, _status(state))


def special(turn: Turn, step: str, what: str, event: dict[str, Value]) -> None:
    """Places the token of a step that closes the run, with the summary as its arguments."""
    name = turn.place(step, summary(turn), event, None)
    turn.state["tokens"][name]["special"] = what


def summary(turn: Turn) -> dict[str, Value]:
    """What final_step is told: counts, references and failures, never payloads."""
    state = turn.state
    done, failed = state["done"], state["failed"]
    results = {
        name: _reference(turn, name, state["steps"][name])
        for name in turn.playbook.steps
        if name in state["steps"] and state["steps"][name].get("result") is not None
    }
    return {
        "execution_id": turn.ctx.run,
        "status": _status(state),
        "steps": {"total": done + failed, "done": done, "failed": failed},
        "branches": state["branches"],
        "results": results,
        "failures": [{"step": item["step"], "error": item["error"]} for item in state["failures"]],
    }


def _reference(turn: Turn, name: str, entry: StepEntry) -> Value:
    result = entry["result"]
    if is_stored(result):
        return result
    return {"kind": "step_ref", "ref": f"treadle://execution/{turn.ctx.run}/step/{name}", "step": name}


def _status(state: PlaybookState) -> Status:
    if state.get("hard"):
        return "failed"
    if state["failures"]:
        return "partial" if state.get("succeeded") else "failed"
    return "completed"


def _end(turn: Turn, status: Status) -> None:
    state = turn.state
    state["phase"] = "over"
    turn.status = status
    if turn.playbook.has_lifetimes:
        for entry in state["steps"].values():
            if "result" in entry:
                entry["result"] = stamped(entry["result"], turn.ctx.now_ns)
        state["ctx"] = stamped(state["ctx"], turn.ctx.now_ns)
    turn.result = run_result(turn)
    if status in ("failed", "partial"):
        worst = next((item for item in state["failures"] if item["hard"]), state["failures"][0])
        turn.error = run_error(worst["step"], worst["error"], state["failures"])
    if status == "cancelled":
        turn.error = state.get("cancelled")
    turn.emit("workflow.finished", data={"status": status})
    turn.emit("playbook.finished", data={"status": status})


def run_result(turn: Turn) -> Value:
    """The result of final_step if it ran, of the step a caller asked for, else of the last to end."""
    state = turn.state
    name = turn.ctx.options.get("return_step") or state.get("closing") or state["last"]
    entry = state["steps"].get(name) if name else None
    return entry.get("result") if entry is not None else None


def run_error(step: str, error: dict[str, Value], failures: list[Failed]) -> dict[str, Value]:
    kind = str(error.get("kind") or "unknown")
    others = [{"step": item["step"], "error": item["error"]} for item in failures[:FAILURES_SHOWN_MAX]]
    return {
        "class": _CLASSES.get(kind, "user"),
        "code": str(error.get("code") or kind.upper()),
        "message": f"step {step!r} failed: {error.get('message') or kind}",
        "where": step,
        "details": {"error": error, "failures": others},
    }
