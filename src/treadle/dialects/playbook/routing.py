"""Admission and routing: which tokens may run, and which tokens a finished step-run makes.

Seed 000 §3-§5. Both are decided here, by the machine, never by a worker.
"""

from __future__ import annotations

from typing import Any

from treadle.kernel.values import Value

from .handles import Scope
from .marking import Token, Turn, canonical
from .model import Arc, Step
from .pipeline import output_view


def admitted(turn: Turn, step: Step, token: Token) -> bool:
    """Evaluates a step's admission rules, first match wins; none matches: denied."""
    if step.admit is None:
        return True
    scope = turn.scope(token["args"], event=token.get("event") or {})
    allow, matched = False, None
    for index, rule in enumerate(step.admit):
        when = rule.when
        if when is None or when is True or (when is not False and when.truth(scope)):
            allow, matched = bool(rule.then["allow"]), index
            break
    if token.get("denied") != matched or "denied" not in token or allow:
        turn.emit("policy.admit.evaluated", step=step.name, data={"allow": allow, "rule": matched})
    if not allow:
        token["denied"] = matched
    return allow


class Boundary:
    """A finished step-run as arcs see it: its event, and the names of the run it ended."""

    def __init__(
        self,
        turn: Turn,
        step: Step,
        token: Token,
        event: dict[str, Any],
        iteration: dict[str, Any] | None,
    ) -> None:
        self.turn, self.step, self.token, self.event = turn, step, token, event
        outcome = {key: event[key] for key in ("status", "result", "error") if event.get(key) is not None}
        kind = step.tasks[-1].kind if step.tasks else ""
        self.scope: Scope = turn.scope(
            token["args"], iteration=iteration, event=event, output=output_view(kind, outcome)
        )


def route(boundary: Boundary) -> bool:
    """Evaluates the arcs and places tokens. True where a matched arc was guarded, so that a failure
    counts as handled. Raises ExpressionError from guards, before anything is placed."""
    turn, step = boundary.turn, boundary.step
    if not step.routed:
        turn.state["branches"] += 1
        return False
    matched: list[Arc] = []
    for arc in step.arcs:
        when = arc.when
        if when is None or when is True or (when is not False and when.truth(boundary.scope)):
            matched.append(arc)
            if not step.inclusive:
                break
    names = [arc.step for arc in matched]
    mode = "inclusive" if step.inclusive else "exclusive"
    turn.emit("next.evaluated", step=step.name, data={"mode": mode, "matched": names, "selected": names})
    if not matched:
        turn.state["branches"] += 1
    for arc in matched:
        if arc.set_ctx is not None:
            writes = [[path, canonical(value)] for path, value in arc.set_ctx.render(boundary.scope).items()]
            turn.patch(writes, step=step.name)
        turn.place(arc.step, canonical(arc.args.render(boundary.scope)), boundary.event, step.name)
    return any(arc.when is not None for arc in matched)


def apply_step_set(boundary: Boundary) -> None:
    """Spelling B's `set` of a step: after done and loop.done, before the arcs."""
    if boundary.step.set_ctx is not None and boundary.event["name"] != "step.failed":
        rendered = boundary.step.set_ctx.render(boundary.scope)
        boundary.turn.patch([[p, canonical(v)] for p, v in rendered.items()], step=boundary.step.name)


def boundary_event(
    name: str, step: Step, *, result: Value, error: dict[str, Any] | None, attempt: int, **more: Any
) -> dict[str, Any]:
    status = "error" if name == "step.failed" else "ok"
    event = {"name": name, "step": step.name, "status": status, "result": result, "attempt": attempt, **more}
    if error is not None:
        event["error"] = error
    return event
