"""What ends a run before its last step, and how it ends (seed 000 §6 and §7).

Its status follows from the failures that nobody handled: a failure is handled by a matched arc with a `when`.
Unset failure mode: `failed`, other branches run to their end. `fail_fast`: everything stops. `best_effort`:
`partial`, if something else succeeded. Some steps run after all others: they are told what has been.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treadle.kernel.brief import brief
from treadle.kernel.values import Value

from . import loops
from .failures import failure
from .handles import is_stored
from .marking import Turn, status_of
from .model import Step

if TYPE_CHECKING:
    from .states import Failed, StepEntry, TokenState

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


def count(turn: Turn, step: Step, token: TokenState, error: dict[str, Value], *, hard: bool) -> None:
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
        "status": status_of(state),
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
