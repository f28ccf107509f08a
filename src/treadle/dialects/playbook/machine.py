"""The playbook machine: tokens in, step-runs out, until nothing can run any more.

`start` marks the entry step, `step` answers receipts, patches and retries; `_drive` admits and
starts tokens as far as one decision has room. A run is over when no token can run, nothing is in flight
and no fan-in waits (`_conclude`). The parts are in their own modules: `routing` (admission, arcs), `loops`,
`joins`, `stepruns` (life of a step-run), `finish` (failures, what they stop, steps that close a run).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from treadle.kernel.errors import ExpressionError, InputInvalid, TreadleError, Unsupported
from treadle.kernel.machine import Traits
from treadle.kernel.model import (
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
    Status,
    is_reference,
)
from treadle.kernel.roles import KeepingMachine
from treadle.kernel.values import Value, encode, to_value

from . import finish, joins, stepruns
from .edition import CURRENT, edition
from .errands import KIND
from .failures import failure, template_failure
from .handles import TemplateScope, is_stored, loader
from .layers import merge
from .lifetimes import lifetime_ns, stamped
from .marking import KEYCHAIN, Ref, Turn, canonical, new_state, run_result, status_of
from .model import Playbook, load
from .needs import pick
from .reference_form import by_reference
from .routing import admitted
from .slices import SLICES, Slices

if TYPE_CHECKING:
    from .states import Failed, Halted, PlaybookState, StepEntry, TokenState

# What failed where the keychain could not be resolved.
KEYCHAIN_STEP: Final = str(KEYCHAIN)
_KINDS: Final = frozenset({KIND})
# What workers report on; a large report comes by reference.
_REPORTS: Final = ("", "args", "lease")
_TOKEN_STATUS = {"ready": "running", "storing": "running", "running": "running", "pending": "pending"}


class PlaybookMachine(KeepingMachine):
    dialect = "playbook"
    version = CURRENT
    # One value is small or a reference; how many of them one step names is the author's choice. What
    # can be sliced is (`slices.Slices`); the arguments of one step cannot.
    traits: ClassVar[Traits] = Traits(
        large_input=True, large_data=True, record_bytes_max=16 * 1024 * 1024, payload_hint="playbook"
    )

    def __init__(self, slices: Slices = SLICES) -> None:
        self._slices = slices

    def load(self, body: Value) -> Playbook:
        # Keys in canonical order, as the store gives them back: whoever runs it decides the same.
        return load(to_value(body))

    def kinds(self, definition: Playbook) -> frozenset[str]:
        return _KINDS

    def compatible(self, definition: Playbook, state: PlaybookState) -> str | None:
        """Whether every step at which the run stands, or has stopped, is there."""
        stands = [*state["failures"], *state["halted"], *state["tokens"].values()]
        missing = {item["step"] for item in stands} - definition.steps.keys() - {KEYCHAIN_STEP}
        return f"the run is at {', '.join(sorted(missing))}, which is not there" if missing else None

    def has_lifetimes(self, definition: Playbook) -> bool:
        return definition.has_lifetimes

    def lifetime_ns(self, reference: Mapping[str, Value]) -> int | None:
        return lifetime_ns(reference)

    def start(self, definition: Playbook, event: Started, ctx: Context) -> Decision:
        return _within(ctx, self._start, definition, event, ctx)

    def _start(self, definition: Playbook, event: Started, ctx: Context) -> Decision:
        turn = Turn(definition, new_state(_workload(definition, event.input, ctx)), ctx, self._slices)
        turn.emit("playbook.started", data={"entry": definition.entry})
        if definition.keychain:
            return self._prove(turn)
        return self._enter(turn)

    def step(self, definition: Playbook, state: PlaybookState, event: Event, ctx: Context) -> Decision:
        take: Callable[[Turn, Any], Decision]
        match event:
            case Receipt():
                take = self._receipt
            case Patch():
                take = self._patch
            case Retry():
                take = self._retry
            case Continue():
                take = self._continue
            case _:
                raise Unsupported(f"a playbook takes no {event.kind} event")
        return _within(ctx, take, Turn(definition, state, ctx, self._slices), event)

    def cancel(self, definition: Playbook, state: PlaybookState, event: Cancel, ctx: Context) -> Decision:
        return _within(ctx, self._cancel, Turn(definition, state, ctx, self._slices), event)

    def _cancel(self, turn: Turn, event: Cancel) -> Decision:
        definition, state = turn.playbook, turn.state
        reason = event.reason or "cancelled"
        error: dict[str, Value] = {
            "class": "user",
            "code": "CANCELLED",
            "message": reason,
            "where": None,
            "details": {},
        }
        at_once = definition.on_cancel is None or state["phase"] in ("cancel", "keychain", "over")
        if at_once:
            # No further record follows, so what does not fit into this one is not told any more.
            state["backlog"] = []
        turn.emit("execution.cancelled", data={"reason": reason, "by": event.by})
        if at_once:
            state["phase"] = "over"
            turn.status, turn.error = "cancelled", error
            turn.result = run_result(turn)
            return turn.decision()
        finish.halt(turn, "cancel")
        state["phase"], state["cancelled"], state["halted"] = "cancel", error, []
        assert definition.on_cancel is not None
        finish.special(turn, definition.on_cancel, "on_cancel", {"name": "execution.cancelled"})
        return self._drive(turn)

    def view(self, definition: Playbook, state: PlaybookState) -> dict[str, Value]:
        steps = {name: _step_view(entry) for name, entry in state["steps"].items()}
        for token in state["tokens"].values():
            if token["status"] == "pending" and token["step"] not in steps:
                steps[token["step"]] = {"status": "pending", "runs": 0, "result": None}
        tokens = [
            {"step": token["step"], "status": _TOKEN_STATUS[token["status"]], "args": token["args"]}
            for token in state["tokens"].values()
        ]
        gates = [state["tokens"][name]["step"] for name in state["parked"]] + joins.incomplete(state)
        waiting = [{"kind": "gate", "id": f"gate:{step}", "name": step} for step in dict.fromkeys(gates)]
        view: dict[str, Value] = {"state": {"ctx": state["ctx"], "steps": steps, "tokens": tokens}}
        if waiting and state["phase"] == "flow":
            view["waiting_for"] = waiting
        return {**view, "stats": {"steps": state["done"] + state["failed"]}}

    # --- events --------------------------------------------------------------------------------

    def _prove(self, turn: Turn) -> Decision:
        """Before the first token every keychain entry must resolve; no value comes back."""
        playbook = turn.playbook
        turn.state["phase"] = "keychain"
        params: dict[str, Value] = {
            "name": "keychain",
            "step": playbook.entry,
            "prove": list(playbook.keychain),
        }
        if named := pick(turn.state["workload"], playbook.keychain_workload):
            params["workload"] = named
        turn.open(Intent(kind=KIND, params=params, ref=str(KEYCHAIN)))
        return turn.decision()

    def _enter(self, turn: Turn) -> Decision:
        turn.state["phase"] = "flow"
        turn.emit("workflow.started")
        turn.place(turn.playbook.entry, {}, {"name": "playbook.started", "status": "ok"}, None)
        return self._drive(turn)

    def _receipt(self, turn: Turn, receipt: Receipt) -> Decision:
        assert turn.ctx.intent is not None
        ref = Ref.parse(turn.ctx.intent.ref)
        value = receipt.value
        if type(value) is dict and "checksum" in value and is_reference(value) and ref.mark in _REPORTS:
            # It refers to what the worker reported, and is no result itself.
            value = turn.ctx.blob(value)
        if ref == KEYCHAIN:
            return self._enter(turn) if receipt.status == "ok" else _locked(turn, receipt)
        if ref.mark == "due":
            stepruns.expire(turn, ref.token)
        else:
            stepruns.receive(turn, ref, receipt, value)
        return self._drive(turn)

    def _patch(self, turn: Turn, patch: Patch) -> Decision:
        data: object = patch.data
        if not isinstance(data, dict):
            raise _bad_patch(f"{type(data).__name__} is no mapping of ctx keys to values")
        for key in data:
            if not isinstance(key, str) or not all(key.split(".")):
                raise _bad_patch(f"{key!r} is no key of ctx, nor a path of keys with dots between them")
        about = {"by": patch.by} if patch.by else {}
        turn.patch([[key, canonical(value)] for key, value in patch.data.items()], **about)
        return self._drive(turn)

    def _retry(self, turn: Turn, retry: Retry) -> Decision:
        """Failed step-runs get their tokens again; `from` names one step to go on from instead."""
        state, step = turn.state, retry.how.get("from")
        if unknown := [key for key in retry.how if key != "from"]:
            raise Unsupported(f"a playbook retries from a step; it has no way to retry with {unknown[0]!r}")
        if step is not None and (not isinstance(step, str) or step not in turn.playbook.steps):
            names = ", ".join(turn.playbook.steps)
            raise TreadleError(f"there is no step {step!r}; steps: {names}", cls="user", code="STEP_UNKNOWN")
        if any(item["step"] == KEYCHAIN_STEP for item in state["failures"]):
            state["failures"] = []
            return self._prove(turn)
        interrupted = [token for token in state["tokens"].values() if token["status"] != "pending"]
        again: list[Failed | Halted | TokenState] = [
            *(item for item in state["failures"] if not item.get("special")),
            *state["halted"],
            *interrupted,
        ]
        if step is not None:
            args: Value = next(
                (item["args"] for item in reversed(state["failures"]) if item["step"] == step), {}
            )
            named: Halted = {"step": step, "args": args}
            again = [named]
        elif not again and not state["failures"] and turn.playbook.final is None:
            raise TreadleError(
                "nothing failed in this run; name a step with --from", cls="user", code="NOTHING_TO_RETRY"
            )
        for name in [name for name, token in state["tokens"].items() if token["status"] != "pending"]:
            del state["tokens"][name]
        for entry in state["steps"].values():
            entry["active"] = 0
            entry.pop("latched", None)
        if turn.playbook.final is not None:
            state["steps"].pop(turn.playbook.final, None)
        state["failures"], state["halted"], state["ready"] = [], [], []
        state["hard"], state["phase"] = False, "flow"
        turn.emit("run.retried", data={"from": step, "steps": [item["step"] for item in again]})
        for item in again:
            name = turn.place(item["step"], item["args"], {"name": "run.retried", "status": "ok"}, None)
            # What a join made one token of is one token already.
            state["tokens"][name]["joined"] = True
            if step is None and "again" in item:
                state["tokens"][name]["again"] = item["again"]
        return self._drive(turn)

    # --- the loop ------------------------------------------------------------------------------

    def _drive(self, turn: Turn) -> Decision:
        """Admits and starts tokens until nothing is ready or the decision is full."""
        state = turn.state
        if state["phase"] == "keychain":
            return turn.decision()
        while turn.status is None:
            if turn.ctx_changed:
                turn.ctx_changed = False
                state["ready"] = state["parked"] + state["ready"]
                state["parked"] = []
            if not state["ready"]:
                break
            if not turn.room:
                turn.again = True
                return turn.decision()
            self._take(turn, state["ready"].pop(0))
        if len(state["tokens"]) == len(state["parked"]) and turn.status is None:
            if state["backlog"] or not turn.room:
                turn.again = True
            else:
                _conclude(turn)
                if state["ready"]:
                    return self._drive(turn)
        return turn.decision()

    def _continue(self, turn: Turn, event: Continue) -> Decision:
        """Loops that had no room in an earlier slice go on."""
        for name, token in list(turn.state["tokens"].items()):
            if "loop" in token and turn.room:
                stepruns.advance_loop(turn, name, turn.playbook.steps[token["step"]], token)
        return self._drive(turn)

    def _take(self, turn: Turn, name: str) -> None:
        state = turn.state
        token = state["tokens"][name]
        step = turn.playbook.steps[token["step"]]
        begun = state["steps"].get(step.name)
        if step.once and begun is not None and begun.get("latched"):
            turn.emit("token.discarded", step=step.name, data={"reason": "admit.once"})
            del state["tokens"][name]
            return
        try:
            if step.join is not None and joins.absorb(turn, name, step, token):
                return
            allow = admitted(turn, step, token)
        except ExpressionError as problem:
            stepruns.refuse(turn, name, step, token, template_failure(problem))
            return
        if allow:
            stepruns.begin(turn, name, step, token)
        elif step.on_deny == "discard":
            turn.emit("token.discarded", step=step.name, data={"reason": "admit.on_deny: discard"})
            del state["tokens"][name]
        else:
            token["status"] = "pending"
            state["parked"].append(name)


def _conclude(turn: Turn) -> None:
    """Called when nothing can run by itself any more: wait, run a closing step, or end."""
    state, playbook = turn.state, turn.playbook
    waiting = state["parked"] or (state["joins"] and joins.incomplete(state))
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
            finish.special(turn, playbook.on_failure, "on_failure", {"name": "workflow.failed"})
            return
    if state["phase"] == "failure":
        state["phase"] = "final"
        final = playbook.final
        if final is not None and not ((ran := state["steps"].get(final)) and ran["runs"]):
            state["closing"] = final
            finish.special(turn, final, "final_step", {"name": "workflow.finished"})
            return
    _end(turn, status_of(state))


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
        turn.error = finish.run_error(worst["step"], worst["error"], state["failures"])
    if status == "cancelled":
        turn.error = state.get("cancelled")
    turn.emit("workflow.finished", data={"status": status})
    turn.emit("playbook.finished", data={"status": status})


def _bad_patch(what: str) -> InputInvalid:
    return InputInvalid(f"a patch of ctx: {what}")


def _within(ctx: Context, take: Callable[..., Decision], *given: object) -> Decision:
    """One turn, for whose length it is known what templates may look up, and which rules the run was started under."""
    loading = loader.set(ctx.blob)
    rules = None if ctx.machine == CURRENT else edition.set(ctx.machine)
    try:
        return take(*given)
    finally:
        loader.reset(loading)
        if rules is not None:
            edition.reset(rules)


def _workload(definition: Playbook, input: Value, ctx: Context) -> dict[str, Value]:
    """Defaults under the request, deeply merged; defaults may be templates over the merged whole."""
    given = (ctx.blob(input) if is_reference(input) else input) or {}
    defaults = definition.workload.value_if_constant
    merged = merge(defaults, given) if given else defaults
    workload: dict[str, Value] = canonical(merged)
    if not definition.workload.constant:
        names = {
            "workload": merged,
            "execution_id": ctx.run,
            "job": {"uuid": ctx.run, "execution_id": ctx.run},
        }
        rendered = definition.workload.render(TemplateScope(names, (merged,)))
        workload.update(canonical(merge(rendered, given)))
    if is_reference(input):
        # A large key stays in the stored input and is looked up there: the marking and the params of
        # steps that name it hold its address only.
        for name, value in given.items():
            alone = not isinstance(defaults.get(name), dict)
            if alone and len(encode(value)) > definition.inline_bytes_max:
                address = f"treadle://execution/{ctx.run}/input/{name}"
                workload[name] = {"kind": "result_ref", "ref": address, **input, "path": [name]}
    if ctx.machine > 1:
        for name, value in workload.items():
            if not is_stored(value) and len(encode(value)) > definition.inline_bytes_max:
                workload[name] = canonical(by_reference(ctx.run, value, ctx.store(value)))
    return workload


def _locked(turn: Turn, receipt: Receipt) -> Decision:
    """A keychain entry cannot be resolved: the run fails before its first token."""
    error = receipt.error or {}
    turn.state["phase"] = "over"
    wrong = failure(
        "auth", str(error.get("message") or "the keychain cannot be resolved"), code=error.get("code")
    )
    turn.state["failures"] = [{"step": KEYCHAIN_STEP, "error": wrong, "hard": True, "args": {}}]
    turn.status = "failed"
    turn.error = {
        "class": "authorization",
        "code": str(error.get("code") or "SECRET_MISSING"),
        "message": wrong["message"],
        "where": "keychain",
        "details": error.get("details") or {},
    }
    turn.emit("playbook.finished", data={"status": "failed"})
    return turn.decision()


def _step_view(entry: StepEntry) -> dict[str, Value]:
    status = "running" if entry["active"] else entry["status"]
    view = {"status": status, "runs": entry["runs"], "result": entry.get("result")}
    return {**view, "error": entry["error"]} if "error" in entry else view
