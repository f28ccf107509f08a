"""Runs the executors of reactive effects.

An executor gets typed params with secrets filled in, and never sees the workflow's state. What it
returns becomes the receipt, in canonical form; a value that does not fit the receipt's type goes as it
is, and is found to be a fault where it is admitted. What it raises is an error receipt: TimeoutError a
`timeout`, a TreadleError one of its own class, anything else class `transport`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import is_dataclass, replace
from typing import Any

from treadle.dialects.reactive.decide import Bound
from treadle.dialects.reactive.effects import Call, Effect, blob_get, blob_put, http_request
from treadle.dialects.reactive.machine import ReactiveMachine
from treadle.dialects.reactive.routing import key_of
from treadle.dialects.reactive.secret import Secret, secret_names
from treadle.dialects.reactive.shapes import (
    Mapped,
    Misfit,
    Option,
    RecordShape,
    Sequence,
    Shape,
    Variant,
)
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import disarmed
from treadle.kernel.values import Value, encode
from treadle.lang.handed import from_caller
from treadle.tools.protocol import Tool, ToolCall
from treadle.tools.registry import ToolRegistry, UnknownTool
from treadle.work.job import Done, Job, StaysOpen, is_revoked
from treadle.work.raised import named, trace, words

from . import requests


class EffectPerformer:
    def __init__(self, tools: ToolRegistry, machine: ReactiveMachine) -> None:
        self._tools, self._machine = tools, machine

    async def __call__(self, job: Job) -> Done:
        bound = self._machine.live(await job.load_definition())
        if not isinstance(bound, Bound):
            raise StaysOpen(f"the code of {job.workflow} is not loaded here")
        effect = bound.app.effects.get(job.intent.kind)
        if effect is not None and effect.tool is not None:
            return await self._use_tool(effect.tool, job)
        if effect is http_request:
            return await requests.request(*self._tool("http", job), job)
        if effect is blob_put:
            return await _put(job)
        if effect is blob_get:
            return await _get(job)
        if effect is None or effect.run is None:
            raise StaysOpen(f"no executor is given for {job.intent.kind}; decorate one with @effect.executor")
        return await _execute(effect.run, effect, await _call(job, bound, effect))

    async def _use_tool(self, kind: str, job: Job) -> Done:
        tool, call = self._tool(kind, job)
        outcome = await tool.run(dict(job.intent.params["params"]), call)
        if outcome.status == "ok":
            return Done(value=disarmed(outcome.result), by=f"tool:{kind}")
        return await requests.failed(outcome, job, by=f"tool:{kind}")

    def _tool(self, kind: str, job: Job) -> tuple[Tool, ToolCall]:
        try:
            tool = self._tools.get(kind)
        except UnknownTool as error:
            raise StaysOpen(str(error)) from error
        call = ToolCall(
            run=job.run,
            idempotency_key=job.idempotency_key,
            progress=job.progress,
            secret=job.secret,
            options=job.options,
        )
        return tool, call


async def _execute(run: Callable[[Call[Any]], Awaitable[Any]], effect: Effect, call: Call[Any]) -> Done:
    try:
        answer = await run(call)
    except TimeoutError as error:
        known = TreadleError(words(error) or "timed out", cls="timeout", code="TIMEOUT")
        return Done(status="timeout", error=known.to_value(), by=effect.entrypoint)
    except TreadleError as error:
        return Done(status="error", error=error.to_value(), by=effect.entrypoint)
    except BaseException as error:  # `sys.exit()` too: it ends the call, not the worker
        if is_revoked(error):
            raise
        details = {"traceback": trace(error, hidden=(__file__,))}
        known = TreadleError(named(error), cls="transport", code="EXECUTOR_FAILED", details=details)
        return Done(status="error", error=known.to_value(), by=effect.entrypoint)
    return Done(value=_receipt(effect, answer), by=effect.entrypoint)


async def _put(job: Job) -> Done:
    """The blob is kept as long as the run that asked for it."""
    reference = await job.store_blob(job.intent.params["params"])
    return Done(value={"blob_ref": reference["checksum"], "size": len(job.intent.params["params"])}, by="sys")


async def _get(job: Job) -> Done:
    wanted = job.intent.params["params"]
    try:
        found = await job.load_blob({"checksum": wanted["blob_ref"]})
    except TreadleError as error:
        return Done(status="error", error=error.to_value(), by="sys")
    return Done(value=disarmed(found), by="sys")


async def _call(job: Job, bound: Bound, effect: Effect) -> Call[Any]:
    value = job.intent.params["params"]
    params = effect.params.load(value)
    if effect.params.secrets:
        secrets = {name: await job.secret(name) for name in dict.fromkeys(secret_names(value))}
        params = revealed(effect.params, params, secrets.__getitem__)

    return Call(
        params=params,
        intent_id=job.intent.id,
        effect=effect.name,
        workflow=bound.workflow.name,
        key=key_of(bound.workflow, job.run),
        ref=job.intent.ref or None,
        idempotency_key=job.idempotency_key,
        _progress=job.progress,
    )


def _receipt(effect: Effect, answer: object) -> Value:
    try:
        return effect.receipt.canon(answer)
    except Misfit:
        try:
            value = from_caller(answer)
            encode(value)
        except TreadleError:
            return {"not a value": type(answer).__name__}
        return value


def revealed(shape: Shape, value: Any, secret: Callable[[str], Any]) -> Any:
    """The same object with every secret's value in place of its name."""
    if not shape.secrets or value is None:
        return value
    if isinstance(value, Secret):
        return secret(value.alias)
    if isinstance(shape, Option):
        return revealed(shape.inner, value, secret)
    if isinstance(shape, Sequence):
        return shape.make([revealed(shape.inner, item, secret) for item in value])
    if isinstance(shape, Mapped):
        return {key: revealed(shape.inner, item, secret) for key, item in value.items()}
    if isinstance(shape, Variant):
        tag = shape.tag_of(value)
        assert tag is not None, "params were made by their own shape"
        return revealed(shape.arms[tag], value, secret)
    assert isinstance(shape, RecordShape), f"{type(shape).__name__} says that it holds secrets"
    fields = {name: revealed(part, getattr(value, name), secret) for name, part in shape.fields.items()}
    return _rebuilt(value, fields)


def _rebuilt(value: Any, fields: dict[str, Any]) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **fields)
    if hasattr(value, "model_copy"):
        return value.model_copy(update=fields)
    return type(value)(**fields)
