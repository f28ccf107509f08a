"""Steps that only wait: one task that the engine answers itself, whose fields hold no template.

A worker would read what stands there and hand it back, for two records and two ways through the house. So since version 3
the machine does it: what the step waits for is opened by the record that begins it, and the answer ends it. The rules are
those of the pipeline, which is pure; it is the same one that a worker drives (`suspension`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value, encode

from .handles import is_stored
from .marking import Ref, Turn, canonical
from .model import Step
from .pipeline import Ended, Perform, Pipeline, new_frame
from .suspension import intent_for, request

if TYPE_CHECKING:
    from .states import Hold, TokenState


def begin(turn: Turn, ref: Ref, step: Step, token: TokenState, params: dict[str, Value]) -> bool:
    """Begins a step-run, or an iteration of one; False if its fields are wrong, which is for a worker to tell."""
    pipe = _pipeline(turn, step, params, new_frame(dict(params.get("iter") or {})))
    action = pipe.next()
    assert isinstance(action, Perform)
    try:
        fields = {"name": action.task.name, **pipe.config(action.task, load=False)}
        on = request(action.task.kind, fields, pipe.frame["iter"])
    except DefinitionError:
        return False
    if ref.iteration is None:
        turn.tell(step.told.started)
    _tell(turn, pipe)
    hold(turn, token, ref, {"frame": canonical(pipe.frame), "on": canonical(on)})
    return True


def hold(turn: Turn, token: TokenState, ref: Ref, waits: Hold) -> None:
    """A pipeline waits: what for is opened beside it."""
    waits["on"] = _handed(turn, waits["on"])
    token.setdefault("holds", {})[str(ref)] = waits
    turn.open(intent_for(waits["on"], str(ref.marked("on")), turn.ctx.now_ns))


def _handed(turn: Turn, on: dict[str, Value]) -> dict[str, Value]:
    """What a pipeline waits for, with what is large in it by reference. People and children get to see
    the values that these stand for."""
    if turn.first:
        return on
    out = dict(on)
    for key in ("payload", "input"):
        if len(encode(out.get(key))) > turn.playbook.inline_bytes_max and not is_stored(out[key]):
            out[key] = turn.store(out[key], "payload")
    if out.get("iter"):
        out["iter"] = turn.light_args(out["iter"])
    return out


def ended(
    turn: Turn, step: Step, params: dict[str, Value], frame: dict[str, Value], outcome: dict[str, Value]
) -> dict[str, Value]:
    """What is reported of a step-run or an iteration whose wait is over."""
    pipe = _pipeline(turn, step, params, frame)
    pipe.next()
    pipe.settle(outcome)
    end = pipe.next()
    assert isinstance(end, Ended), "there is nothing after its only task"
    _tell(turn, pipe)
    report: dict[str, Value] = {"status": end.status}
    if end.result is not None:
        report["result"] = end.result
    if end.error is not None:
        report["error"] = end.error
    if step.reads_iter and step.loop is None:
        report["iter"] = pipe.frame["iter"]
    return report


def _pipeline(turn: Turn, step: Step, params: dict[str, Value], frame: dict[str, Value]) -> Pipeline:
    return Pipeline(step, params, frame, run=turn.ctx.run)


def _tell(turn: Turn, pipe: Pipeline) -> None:
    for event in pipe.events:
        turn.tell(event)
