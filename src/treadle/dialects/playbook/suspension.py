"""Tasks that the engine itself answers: `wait`, `await`, `ask`, `playbook`, `workflow`.

A worker that reaches one of them gives its lease back: its receipt says what the pipeline waits
for (`request`), the machine opens that as an intent of its own, and its receipt becomes the task's
outcome (`answer`) for the pipeline that goes on. KERNEL §9.7.
"""

from __future__ import annotations

from treadle.kernel.errors import DefinitionError
from treadle.kernel.model import Intent, Receipt
from treadle.kernel.values import Value
from treadle.lang.duration import parse_duration, parse_instant

from .failures import failure
from .reading import kind_of


def request(kind: str, config: dict[str, Value], iteration: dict[str, Value]) -> dict[str, Value]:
    """What the pipeline waits for, as a value. Raises DefinitionError for a field that is wrong."""
    if kind == "wait":
        return _timer(config)
    if kind == "await":
        return {"kind": "signal", "name": _text(config, "signal", "name"), **_timeout(config)}
    if kind == "ask":
        return _human_task(config)
    return _child(config, iteration)


def _timer(config: dict[str, Value]) -> dict[str, Value]:
    if (until := config.get("until")) is not None:
        return {"kind": "timer", "at_ns": parse_instant(until)}
    for key in ("seconds", "duration", "for", "delay"):
        if config.get(key) is not None:
            return {"kind": "timer", "after_ns": parse_duration(config[key])}
    raise DefinitionError("a wait task needs seconds, duration or until", code="BAD_CONFIG")


def _timeout(config: dict[str, Value]) -> dict[str, Value]:
    for key in ("timeout", "timeout_s"):
        if config.get(key) is not None:
            return {"timeout_ns": parse_duration(config[key])}
    return {}


def _human_task(config: dict[str, Value]) -> dict[str, Value]:
    roles = config.get("roles") or config.get("role") or []
    out = {
        "kind": "task",
        "name": _text(config, "title", "task", "name"),
        "roles": roles if isinstance(roles, list) else [roles],
        **_timeout(config),
    }
    payload = config.get("payload", config.get("args"))
    for key, value in (
        ("payload", payload),
        *((key, config.get(key)) for key in ("type", "schema", "reference")),
    ):
        if value is not None:
            out[key] = value
    return out


def _child(config: dict[str, Value], iteration: dict[str, Value]) -> dict[str, Value]:
    workflow = _text(config, "path", "workflow", "name")
    if config.get("version") is not None:
        workflow = f"{workflow}@{config['version']}"
    given: Value = next(
        (config[key] for key in ("args", "input", "payload") if config.get(key) is not None), {}
    )
    return {
        "kind": "child" if config.get("wait", True) is not False else "start",
        "workflow": workflow,
        "input": given,
        "iter": iteration or None,
        "return_step": config.get("return_step"),
    }


def _text(config: dict[str, Value], *keys: str) -> str:
    """The first of the fields that is there. One that came out as something else is not passed over: the task's own
    name would be looked for in its place."""
    for key in keys:
        if key in config:
            if isinstance(found := config[key], str):
                return found
            message = f"the field {key!r} must be a text, and is {kind_of(found)}"
            raise DefinitionError(message, code="BAD_CONFIG")
    raise DefinitionError(f"the field {keys[0]!r} is needed here", code="BAD_CONFIG")


def intent_for(on: dict[str, Value], ref: str, now_ns: int) -> Intent:
    """The engine-owned intent behind a request."""
    kind = on["kind"]
    due = now_ns + on["timeout_ns"] if "timeout_ns" in on else None
    if kind == "timer":
        due = on["at_ns"] if "at_ns" in on else now_ns + on["after_ns"]
        return Intent(kind="timer", params={"name": on.get("name") or "wait"}, ref=ref, due_ns=due)
    if kind == "signal":
        return Intent(kind="signal", params={"name": on["name"]}, ref=ref, due_ns=due)
    if kind == "task":
        params = {key: value for key, value in on.items() if key not in ("kind", "timeout_ns")}
        return Intent(kind="task", params=params, ref=ref, due_ns=due)
    options = {"iter": on["iter"], "return_step": on["return_step"]}
    params = {"workflow": on["workflow"], "name": on["workflow"], "input": on["input"], "options": options}
    return Intent(kind=kind, params=params, ref=ref, due_ns=due)


def answer(on: dict[str, Value], receipt: Receipt, value: Value) -> dict[str, Value]:
    """The outcome of the task, from the receipt of what it waited for."""
    kind = on["kind"]
    if receipt.status == "ok":
        if kind == "timer":
            return {"status": "ok", "result": {"status": "waited"}}
        if kind == "child":
            run = value.get("run") if isinstance(value, dict) else None
            result = value.get("result") if isinstance(value, dict) else value
            return {"status": "ok", "result": result, "meta": {"run": run}}
        out: dict[str, Value] = {"status": "ok", "result": value}
        return {**out, "meta": {"by": receipt.by}} if receipt.by else out
    error = receipt.error or {}
    message = str(error.get("message") or f"{kind} ended with {receipt.status}")
    if receipt.status == "timeout":
        return {"status": "error", "error": failure("timeout", message, code="TIMEOUT")}
    if kind in ("child", "start"):
        details = error.get("details") or {}
        wrong = failure("child_failed", message, code=error.get("code"), details=_in_short(details))
        return {"status": "error", "error": wrong, "result": details.get("result")}
    return {"status": "error", "error": failure("cancelled", message, code=error.get("code"))}


def _in_short(details: dict[str, Value]) -> dict[str, Value]:
    """The child's error without its own details, which the child's run has: a run shows an error in
    two places, so errors in errors would double with each generation."""
    inner = details.get("error")
    if not isinstance(inner, dict):
        return details
    return {**details, "error": {key: value for key, value in inner.items() if key != "details"}}
