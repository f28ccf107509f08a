"""Admission and routing: which tokens may run, which a finished step-run makes, and whether its failure is handled.

Seed 000 §3-§5. Both are decided here, by the machine, never by a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import ExpressionError
from treadle.kernel.model import Intent
from treadle.kernel.values import Value, encode

from . import finish
from .errands import KIND
from .failures import failure, template_failure
from .handles import StepResults, TemplateScope
from .marking import Ref, Turn, canonical
from .model import Arc, Step, holds, routed
from .needs import gather
from .outcomes import output_view

if TYPE_CHECKING:
    from .states import TokenState

# What arcs see that ask for nothing.
_NOTHING: Final = TemplateScope({})


def admitted(turn: Turn, step: Step, token: TokenState) -> bool:
    """Evaluates a step's admission rules, first match wins; none matches: denied. Recorded for every
    token; for a parked one again only when the answer changes."""
    if step.admit is None:
        turn.tell(step.told.admitted)
        return True
    scope = turn.scope(token["args"], event=token.get("event") or {})
    allow, matched = False, None
    for index, rule in enumerate(step.admit):
        if holds(rule.when, scope):
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
        token: TokenState,
        event: dict[str, Value],
        iteration: dict[str, Value] | None,
    ) -> None:
        self.turn, self.step, self.token, self.event = turn, step, token, event
        if not step.templated:
            self.scope = _NOTHING
            return
        self.scope = turn.scope(token["args"], iteration=iteration, event=event)
        if step.reads_output:
            outcome = {key: event[key] for key in ("status", "result", "error") if event.get(key) is not None}
            kind = step.tasks[-1].kind if step.tasks else ""
            self.scope.names["output"] = output_view(kind, outcome)


def after(turn: Turn, step: Step, token: TokenState, event: dict[str, Value], boundary: Boundary) -> None:
    """Routes an ended step-run and counts its failure if nobody handled it."""
    error: dict[str, Value] | None = event.get("error")
    special = token.get("special")
    if special is not None:
        # final_step, on_failure and on_cancel end the run; their next is not followed.
        _set_only(boundary)
        if error is not None:
            hard = step.failure_mode != "best_effort"
            finish.count(turn, step, token, error, hard=hard)
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
        finish.count(turn, step, token, wrong, hard=True)
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
    finish.count(turn, step, token, error, hard=mode != "best_effort")
    if mode == "fail_fast":
        finish.halt(turn, "fail_fast")


def _set_only(boundary: Boundary) -> None:
    try:
        apply_step_set(boundary)
    except ExpressionError as problem:
        finish.count(boundary.turn, boundary.step, boundary.token, template_failure(problem), hard=True)


def route(boundary: Boundary) -> bool:
    """Evaluates the arcs and places tokens. True where a matched arc was guarded, so that a failure
    counts as handled. Raises ExpressionError from guards, before anything is placed."""
    turn, step = boundary.turn, boundary.step
    matched: list[Arc] = []
    guarded = False
    for arc in step.arcs:
        if arc.when is None or holds(arc.when, boundary.scope):
            matched.append(arc)
            guarded = guarded or arc.when is not None
            if not step.inclusive:
                break
    if len(matched) == 1:
        turn.tell(matched[0].told)
    else:
        turn.tell(routed(step.name, step.inclusive, [arc.step for arc in matched]))
    if not matched:
        turn.state["branches"] += 1
    for arc in matched:
        if arc.set_ctx is not None:
            writes = [[path, canonical(value)] for path, value in arc.set_ctx.render(boundary.scope).items()]
            turn.patch(writes, step=step.name)
        _send(boundary, arc)
    return guarded


def _send(boundary: Boundary, arc: Arc) -> None:
    """One token along one arc. Arguments above the limit go by reference: neither the marking nor the
    journal takes them in. (In 0.1.0 a machine could store nothing: a worker rendered them again.)"""
    turn, step = boundary.turn, boundary.step
    if not turn.first:
        turn.place(arc.step, turn.arc_args(arc.args, boundary.scope), boundary.event, step.name, light=True)
        return
    args = arc.args.arguments(boundary.scope)
    if not args or arc.args.constant or len(encode(args)) <= turn.playbook.inline_bytes_max:
        turn.place(arc.step, canonical(args), boundary.event, step.name)
        return
    name = turn.place(arc.step, {}, boundary.event, step.name, ready=False)
    params = {
        "name": f"args of {arc.step}",
        "step": step.name,
        "render": step.arcs.index(arc),
        "event": boundary.event,
        "args": boundary.token["args"],
        "iter": boundary.scope.names["iter"],
        **gather(arc.needs, turn.state),
    }
    turn.open(Intent(kind=KIND, params=params, ref=str(Ref(name, mark="args"))))


def argument_scope(step: Step, arc: Arc, params: Mapping[str, Value], run: str) -> TemplateScope:
    """The names that an arc's arguments see, rebuilt at the worker."""
    args, iteration, event = params["args"], params["iter"], params["event"]
    ctx, workload = params.get("ctx") or {}, params.get("workload") or {}
    names = {
        "workload": workload,
        "ctx": ctx,
        "args": args,
        "input": args,
        "iter": iteration,
        "execution_id": run,
        "job": {"uuid": run, "execution_id": run},
        "event": event,
        "output": output_view(step.tasks[-1].kind if step.tasks else "", event),
    }
    layers = (args, ctx, iteration, workload, StepResults(params.get("steps") or {}))
    return TemplateScope(names, layers, arc.needs.steps)


def apply_step_set(boundary: Boundary) -> None:
    """Spelling B's `set` of a step: after done and loop.done, before the arcs."""
    own = boundary.step.set_ctx
    if own is not None and boundary.event["name"] != "step.failed":
        rendered = own.render(boundary.scope)
        boundary.turn.patch([[p, canonical(v)] for p, v in rendered.items()], step=boundary.step.name)
