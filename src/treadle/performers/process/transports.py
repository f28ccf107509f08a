"""Performs the `call` intents of processes: one attempt, through the transport the step names.

`http` and `graphql` go through the http tool, so they share its connections, its credentials and
its protection; `nats` is request and reply through the nats tool; `python` calls a function, or runs code in the pool of
the python tool. Any other name is a function registered with `@engine.transport`, or a tool.

A transport answers with a value or an error; retries are the machine's business (each is an intent
of its own, under the key of the first), and so is the time limit, which cancels the coroutine. A
transport that is not registered here leaves the call open for an engine that has it.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from treadle.kernel.errors import LimitExceeded, TreadleError
from treadle.kernel.limits import INT_MAX, INT_MIN, PAYLOAD_INLINE_BYTES_MAX, REFERENCE_LEVELS_MAX
from treadle.kernel.model import OpenIntent, addressed, disarmed, is_reference, may_look_like_ours
from treadle.kernel.values import Value, copied, encode, to_value
from treadle.lang.names import KnownNames
from treadle.tools.base import too_large
from treadle.tools.functions import aside, off_the_loop
from treadle.tools.imported import imported
from treadle.tools.portable import portable
from treadle.tools.protocol import Outcome, ToolCall, is_sync
from treadle.tools.registry import FunctionTool, ToolRegistry, UnknownTool
from treadle.tools.results import ResultTooLarge, kept
from treadle.work.job import Done, Job, StaysOpen, is_revoked
from treadle.work.raised import named, trace, words

RESPONSE_EVENT: Final = "call.response"
NATS_URL: Final = "nats://127.0.0.1:4222"
NATS_TIMEOUT_S: Final = 60.0
BODY_SHOWN_BYTES_MAX: Final = 8 * 1024
# What one call may send, written out.
SENT_BYTES_MAX: Final = 256 * 1024 * 1024
# Frames that tell an author nothing.
_OURS: Final = (__file__, aside.__code__.co_filename)
# What a call's parameters hold besides the fields of the transport itself.
_NOT_FIELDS: Final = frozenset({"name", "path", "transport", "payload", "pure"})
# What a function mostly returns; `isawaitable` walks through abstract classes to say so.
_NEVER_AWAITED: Final = frozenset({dict, list, str, int, float, bool, type(None)})
_OUTSIDE: Final = frozenset({"http", "graphql", "nats"})

F = TypeVar("F", bound=Callable[..., Any])
Send = Callable[[dict[str, Any], Job], Awaitable[Done]]


class TransportFailed(TreadleError):
    """A call did not get its answer."""

    cls = "transport"
    code = "TRANSPORT_FAILED"


class Transports:
    """All that processes can call. One per engine; `await transports(job)` performs one attempt."""

    def __init__(self, tools: ToolRegistry) -> None:
        self._tools = tools
        self._functions: dict[str, _Callable] = {}
        self._built_in: dict[str, Send] = {
            "http": self._http,
            "graphql": self._graphql,
            "nats": self._request,
            "python": self._python,
        }

    def transport(self, name: str, *, pure: bool = False) -> Callable[[F], F]:
        """`@transports.transport("billing")` over `def f(payload)` or `def f(payload, call)`; it may
        be async. `call` is a `ToolCall`: key, run, progress, secrets. One that is `pure` touches nothing outside:
        it may be called before the decision to call it is durable."""

        def decorate(function: F) -> F:
            self._functions[name] = _Callable(function, pure=pure)
            return function

        return decorate

    def function(self, name: str) -> Callable[..., Any] | None:
        """A registered function by its name, whoever calls it."""
        found = self._functions.get(name)
        return found.function if found is not None else _registered(self._tools, name)

    def names(self) -> KnownNames:
        """Every transport that can be called here."""
        return KnownNames(self._built_in, self._functions, self._tools)

    def never_waits(self, intent: OpenIntent, loaded: Any) -> bool:
        """Plain functions need no event loop, so a worker thread may call them."""
        params = intent.params
        name = str(params["transport"])
        if name == "python" and "callable" in params:
            name = str(params["callable"])
            called = self.function(name)
            return called is not None and not inspect.iscoroutinefunction(called)
        if function := self._functions.get(name):
            return function.never_waits
        if name in self._built_in:
            return False
        try:
            return is_sync(self._tools.get(name))
        except UnknownTool:
            return False

    def is_pure(self, intent: OpenIntent, loaded: Any) -> bool:
        """What the call says itself, else what the function says that it calls."""
        params = intent.params
        if isinstance(own := params.get("pure"), bool):
            return own
        name = str(params["transport"])
        if function := self._functions.get(name):
            return function.pure
        return name not in _OUTSIDE and self._tools.is_pure(name, params)

    async def __call__(self, job: Job) -> Done:
        done = await self._send(job)
        if done.is_canonical:
            return done
        # Whatever came back from outside is data, whatever it looks like.
        if done.body is None:
            given = done.value
            done.value, body = await off_the_loop(given, lambda: _as_data(given), "process")
        else:
            body = done.body
        if done.error is not None:
            done.error = disarmed(done.error)
        if done.status == "ok" and len(body) > PAYLOAD_INLINE_BYTES_MAX:
            # Marked as ours: people who look at the run see the value, not where it is kept.
            done.value, done.body = await job.store_blob(done.value, schema_hint="process"), None
        else:
            done.body = body
        return done

    async def _send(self, job: Job) -> Done:
        """What is handed on is a copy: theirs to change, with its keys as the journal brings them back."""
        own = job.intent.params
        name = str(own["transport"])
        function = self._functions.get(name)
        if function is not None:
            # The payload is all that it is given.
            payload, body = copied(own.get("payload"))
            if not may_look_like_ours(body):
                return await _called(function, payload, job, self._tools.result_bytes_max)
        params = to_value(own)
        if _refers(params):
            params = await _Unfolding(job).of(params)
        if function is not None:
            return await _called(function, params.get("payload"), job, self._tools.result_bytes_max)
        if send := self._built_in.get(name):
            return await send(params, job)
        return await self._tool(name, params, job)

    # --- http ---

    async def _http(self, params: dict[str, Any], job: Job) -> Done:
        config = {key: value for key, value in params.items() if key not in _NOT_FIELDS}
        payload, method = params.get("payload"), str(params.get("method") or "").upper()
        if method in ("GET", "HEAD") and isinstance(payload, dict):
            # A body that servers may drop unread: what people mean is the query.
            config["params"] = {**payload, **(config.get("params") or {})}
        elif payload is not None:
            config["json"] = payload
        outcome = await self._run("http", config, job)
        data = outcome.result.get("data") if isinstance(outcome.result, dict) else None
        if outcome.error is not None:
            return _http_failed(outcome, data)
        return Done(value=data, events=_response(outcome))

    async def _graphql(self, params: dict[str, Any], job: Job) -> Done:
        body: dict[str, Any] = {"query": params["query"]}
        variables = params["variables"] if "variables" in params else params.get("payload")
        if variables is not None:
            body["variables"] = variables
        if params.get("operation") is not None:
            body["operationName"] = params["operation"]
        fields = ("url", "headers", "auth", "timeout")
        config = {key: params[key] for key in fields if key in params}
        outcome = await self._run("http", {**config, "method": "POST", "json": body}, job)
        data = outcome.result.get("data") if isinstance(outcome.result, dict) else None
        errors = data.get("errors") if isinstance(data, dict) else None
        if errors:
            message = errors[0].get("message") if isinstance(errors[0], dict) else str(errors[0])
            failed = TransportFailed(
                f"the server says: {message}", code="GRAPHQL", details={"errors": errors}
            )
            return Done(status="error", error=failed.to_value())
        if outcome.error is not None:
            return _http_failed(outcome, data)
        if not isinstance(data, dict) or "data" not in data:
            failed = TransportFailed("the answer is no GraphQL answer: it has no data", code="GRAPHQL")
            return Done(status="error", error=failed.to_value())
        return Done(value=data["data"], events=_response(outcome))

    # --- nats ---

    async def _request(self, params: dict[str, Any], job: Job) -> Done:
        url = str(params.get("url") or os.environ.get("TREADLE_NATS") or NATS_URL)
        headers = {str(key): str(value) for key, value in (params.get("headers") or {}).items()}
        headers.setdefault("Idempotency-Key", job.idempotency_key)
        payload = params.get("payload")
        config = {
            "operation": "request",
            "url": url,
            "subject": str(params["subject"]),
            "payload": payload if isinstance(payload, bytes) else json.dumps(portable(payload)).encode(),
            "headers": headers,
            # The engine's own time limit cancels this; without one, an answer is not awaited for ever.
            "timeout": NATS_TIMEOUT_S if job.intent.due_ns is None else 86400.0,
            "format": "bytes",
        }
        try:
            outcome = await self._run("nats", config, job)
        except UnknownTool as error:
            raise StaysOpen(error.message) from error
        except ValueError as error:
            raise TransportFailed(f"NATS at {url}: {error}", code="NO_CONNECTION") from error
        if outcome.error is not None:
            return _nats_failed(outcome.error, config)
        reply: Any = outcome.result
        answered = reply["headers"]
        if problem := answered.get("Nats-Service-Error"):
            raise TransportFailed(problem, code=answered.get("Nats-Service-Error-Code") or "SERVICE_ERROR")
        return Done(value=_parsed(reply["data"]))

    # --- python and tools ---

    async def _python(self, params: dict[str, Any], job: Job) -> Done:
        name = params.get("callable")
        if name is None:
            return await self._tool("python", params, job)
        function = self.function(str(name)) or _imported(str(name), job.options.get("base"))
        bytes_max = self._tools.result_bytes_max
        return await _called(_Callable(function), params.get("payload"), job, bytes_max)

    async def _tool(self, name: str, params: dict[str, Any], job: Job) -> Done:
        config = {key: value for key, value in params.items() if key not in _NOT_FIELDS}
        payload = params.get("payload")
        try:
            tool = self._tools.get(name, config)
        except UnknownTool as error:
            raise StaysOpen(error.message) from error
        if isinstance(tool, FunctionTool):
            config.update(arguments_for(tool.function, payload))
        elif payload is not None:
            config["args" if isinstance(payload, dict) else "payload"] = payload
        outcome = await tool.run(config, _tool_call(job))
        if isinstance(tool, FunctionTool):  # its results are plain and measured
            return _failed(outcome) if outcome.error is not None else Done(value=outcome.result)
        return await _answered(outcome, self._tools.result_bytes_max)

    async def _run(self, kind: str, config: dict[str, Any], job: Job) -> Outcome:
        return await self._tools.get(kind, config).run(config, _tool_call(job))


# --- values ---------------------------------------------------------------------------------------


def _as_data(value: Value) -> tuple[Value, bytes]:
    """A value of our own in which nothing will be taken for a reference, and its bytes."""
    data, body = copied(value)
    if may_look_like_ours(body):
        data = disarmed(data)
        body = encode(data)
    return data, body


def _refers(value: Value) -> bool:
    """Whether a reference stands anywhere in a value. Asked for every call, so one flat walk."""
    parts: list[Value] = [value]
    for part in parts:  # it grows as we go
        if type(part) is dict:
            if "checksum" in part and is_reference(part):
                return True
            part = part.values()
        for inner in part:
            if type(inner) is dict or type(inner) is list:
                parts.append(inner)
    return False


class _Unfolding:
    """A value with every reference in it loaded: outside, nobody knows our blobs. What refers to others many
    times is small in the store and may be huge written out, so it is counted."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._room = SENT_BYTES_MAX
        self._payloads: dict[str, Value] = {}

    async def of(self, value: Value, levels: int = REFERENCE_LEVELS_MAX) -> Value:
        if is_reference(value):
            value = await self._payload(value)
        if not isinstance(value, dict | list):
            return value
        if not levels:
            raise _too_large(f"nested deeper than {REFERENCE_LEVELS_MAX} levels")
        if isinstance(value, dict):
            return {key: await self.of(part, levels - 1) for key, part in value.items()}
        return [await self.of(part, levels - 1) for part in value]

    async def _payload(self, reference: dict[str, Any]) -> Value:
        checksum = str(reference["checksum"])
        if checksum not in self._payloads:
            self._payloads[checksum] = await self._job.load_blob(reference)
        found = addressed(reference, self._payloads[checksum])
        self._room -= len(encode(found))
        if self._room < 0:
            raise _too_large(f"larger than {SENT_BYTES_MAX // 1024 // 1024} MiB written out")
        return found


def _too_large(how: str) -> LimitExceeded:
    return LimitExceeded(f"what this call is to send is {how}; send only the parts that are needed")


def _parsed(data: bytes) -> Value:
    if not data:
        return None
    try:
        return portable(json.loads(data))
    except (ValueError, RecursionError):
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data


def _response(outcome: Outcome) -> list[dict[str, Any]]:
    http = outcome.http or {}
    return [{"type": RESPONSE_EVENT, "status": http.get("status"), "headers": http.get("headers") or {}}]


def _tool_call(job: Job) -> ToolCall:
    whose: dict[str, Value] = {
        key: job.intent.params[key] for key in ("name", "path") if key in job.intent.params
    }

    async def progress(type: str, value: Value = None, /, **data: Value) -> None:
        told: dict[str, Value] = {**data, **whose} if value is None else {}
        await job.progress(type, value, **told)

    return ToolCall(
        run=job.run,
        idempotency_key=job.idempotency_key,
        base=job.options.get("base"),
        progress=progress,
        secret=job.secret,
        options=job.options,
    )


# --- functions ------------------------------------------------------------------------------------


class _Callable:
    """A function that can be called, with what has to be known of it for every call."""

    def __init__(self, function: Callable[..., Any], *, pure: bool = False) -> None:
        self.function = function
        self.pure = pure
        self.never_waits = not inspect.iscoroutinefunction(function)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        self._takes = sum(parameter.kind in positional for parameter in parameters)

    def __call__(self, payload: Value, job: Job) -> Any:
        """With the payload, and with the call if it wants one."""
        match self._takes:
            case 0:
                return self.function()
            case 1:
                return self.function(payload)
            case _:
                return self.function(payload, _tool_call(job))


async def _called(function: _Callable, payload: Value, job: Job, bytes_max: int) -> Done:
    try:
        value = function(payload, job)
        if type(value) not in _NEVER_AWAITED and inspect.isawaitable(value):
            value = await value
        return await _answered(value, bytes_max)
    except TreadleError:
        raise
    except TimeoutError as error:
        return Done(status="timeout", error=_timed_out(words(error) or "the function timed out"))
    except BaseException as error:  # `sys.exit()` too: it ends the call, not the worker
        if is_revoked(error):
            raise
        details = {"exception": type(error).__name__, "traceback": trace(error, hidden=_OURS)}
        raise TransportFailed(named(error), code="PYTHON_ERROR", details=details) from error


async def _answered(value: Any, bytes_max: int) -> Done:
    """What a function gave, as data: made and measured off the loop."""
    if value is None or type(value) is bool or (type(value) is int and INT_MIN <= value <= INT_MAX):
        return Done(value=value, is_canonical=True)
    if isinstance(value, Outcome):
        if value.error is not None:
            return _failed(value)
        value = value.result
    try:
        data, body = await off_the_loop(value, lambda: _as_data(kept(value, bytes_max)), "process")
        return Done(value=data, body=body)
    except ResultTooLarge as error:
        return _failed(too_large(error.size, bytes_max))


def arguments_for(function: Callable[..., Any], payload: Value) -> dict[str, Any]:
    """How a payload reaches a function that is registered as a tool: whole, if it has a parameter
    `payload` or only one that no key of the payload names; else key by key."""
    if payload is None:
        return {}
    parameters = inspect.signature(function).parameters
    names = [name for name, p in parameters.items() if name != "call" and p.kind is not p.VAR_KEYWORD]
    if "payload" in names:
        return {"payload": payload}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if isinstance(payload, dict) and (takes_any or all(key in names for key in payload)):
        return {"args": payload}
    return {"args": {names[0]: payload}} if len(names) == 1 else {"args": payload}


def _registered(tools: ToolRegistry, name: str) -> Callable[..., Any] | None:
    tool = tools.callables.get(name)
    return tool.function if tool is not None else None


def _imported(name: str, base: str | None) -> Callable[..., Any]:
    """`module:function`, looked for beside the definition's file too."""
    if ":" not in name:
        raise StaysOpen(f"no function {name!r} is registered; write module:function or register it")
    result = imported(name, base, lambda said: TransportFailed(said, code="PYTHON_IMPORT"))
    if inspect.iscoroutinefunction(result):
        return result

    async def in_a_thread(payload: Value) -> Any:
        return await aside(lambda: result(payload), None, name)

    return in_a_thread


# --- errors ---------------------------------------------------------------------------------------


def _nats_failed(error: Mapping[str, Any], config: Mapping[str, Any]) -> Done:
    if error["kind"] == "timeout":
        return Done(status="timeout", error=_timed_out(f"no answer on {config['subject']}"))
    if error["code"] == "NATS_NoRespondersError":
        raise TransportFailed(f"nobody answers on {config['subject']}", code="NO_RESPONDERS")
    raise TransportFailed(f"NATS at {config['url']}: {error['message']}", code="NO_CONNECTION")


def _timed_out(message: str) -> dict[str, Any]:
    return TreadleError(message, cls="timeout", code="TIMEOUT").to_value()


def _http_failed(outcome: Outcome, body: Value) -> Done:
    """No connection and no 2xx are `transport` errors; no answer in time is a time-out."""
    error = outcome.error or {}
    status = (outcome.http or {}).get("status")
    if status is None and error.get("kind") == "timeout":
        return Done(status="timeout", error=_timed_out(str(error.get("message"))))
    details: dict[str, Any] = {"kind": error.get("kind")}
    if status is not None:
        details["status"] = status
        if len(json.dumps(portable(body), default=str)) <= BODY_SHOWN_BYTES_MAX:
            details["body"] = body
    failed = TransportFailed(str(error.get("message")), code=error.get("code") or "HTTP", details=details)
    return Done(status="error", error=failed.to_value(), events=_response(outcome) if status else [])


_CLASSES: Final[Mapping[str, Any]] = {"auth": "authorization", "template": "expression"}


def _failed(outcome: Outcome) -> Done:
    error = outcome.error or {}
    kind = str(error.get("kind"))
    message = str(error.get("message"))
    if kind in ("timeout", "db_timeout"):
        return Done(status="timeout", error=_timed_out(message))
    code = error.get("code") or kind.upper()
    details = {"kind": kind, **(error.get("details") or {})}
    failed = TreadleError(message, cls=_CLASSES.get(kind, "transport"), code=str(code), details=details)
    return Done(status="error", error=failed.to_value())
