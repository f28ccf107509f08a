"""What a durable function is given: `ctx`. Every method is either recorded or a function of what is recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal, NoReturn, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

from treadle.kernel.errors import ValueRefused
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.values import Value, encode
from treadle.lang.duration import parse_duration

from .awaits import Settled
from .errors import ChildFailed, ContinueAs, StepFailed, StepTimeout
from .guard import FlowRandom, unwatched
from .life import Life
from .shapes import EMPTY, plain, schema_of, typed
from .steps import Step, failure_of
from .workflow import Workflow

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
Duration = str | int | float
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AskOptions(TypedDict, total=False):
    """Of a task for people, whatever its answer's type."""

    roles: Sequence[str]
    payload: Any


class ChildOptions(TypedDict, total=False):
    reference: str | None
    timeout: Duration | None


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """A logger that says nothing while a past is repeated."""

    def __init__(self, life: Life) -> None:
        super().__init__(logging.getLogger(f"treadle.flow.{life.code.name}"), {"run": life.run})
        self._life = life

    def isEnabledFor(self, level: int) -> bool:
        return not self._life.repeating and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._life.run}: {msg}", kwargs


class Context:
    """The run, from within. See docs/functions.md."""

    def __init__(self, life: Life) -> None:
        self._life = life

    # --- about the run ---

    @property
    def id(self) -> str:
        """The id of the run; of a fork, that of the run it came from: a fork repeats its past."""
        return self._life.root

    @property
    def generation(self) -> int:
        """How often the run has continued as itself."""
        return self._life.generation

    @property
    def reference(self) -> str | None:
        return self._life.reference

    @property
    def state(self) -> dict[str, Any]:
        """Values for people to see; what is changed in it, also deep inside, is kept."""
        return self._life.data

    @cached_property
    def random(self) -> FlowRandom:
        return FlowRandom(f"{self._life.seed.hex()}/{self._life.generation}")

    @cached_property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        return _Quiet(self._life)

    def now(self) -> datetime:
        """The time of the record that is being decided, in UTC."""
        seconds, rest = divmod(self._life.now_ns, 10**9)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)

    def uuid(self) -> UUID:
        return UUID(int=self.random.getrandbits(128), version=4)

    def event(self, type: str, **data: Any) -> None:
        """Tells an event of the run: shown to people and observers."""
        self._life.check_here()
        told = {**plain(data), "type": str(type)}
        size = len(encode(told))
        if size > PAYLOAD_INLINE_BYTES_MAX:
            raise ValueRefused(
                f"an event of {size} bytes; tell at most {PAYLOAD_INLINE_BYTES_MAX}, or use ctx.state"
            )
        self._life.tell(told, bytes=size)

    def patched(self, name: str) -> bool:
        """Whether a change of the code counts: False where the past was made without it, else True."""
        return self._life.patched(name)

    def continue_as(self, input: Any = None) -> NoReturn:
        """Begins anew in the same run, with the newest code; `ctx.state` and unread signals stay."""
        raise ContinueAs(plain(input))

    def compensate(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Calls a step, in reverse order, if the function fails or is cancelled."""
        self._life.check_here()
        if not isinstance(step, Step):
            raise TypeError("ctx.compensate takes a step: @flow.step")
        step.signature.bind(*args, **kwargs)
        self._life.undo.append((step, tuple(plain(list(args))), plain(kwargs)))

    # --- time ---

    async def sleep(self, duration: Duration | None = None, *, until: datetime | None = None) -> None:
        """Waits for a time, or until one."""
        if (duration is None) == (until is None):
            raise TypeError("ctx.sleep takes a duration or until=")
        due = self._due(duration) if until is None else _ns(until)
        assert due is not None
        if due > self._life.now_ns:
            await unwatched(self._life.awaited, "timer", "sleep", {}, due)
        else:
            await asyncio.sleep(0)

    def timeout(self, duration: Duration) -> asyncio.Timeout:
        """`async with ctx.timeout("5m"):` raises TimeoutError if what is inside takes longer."""
        return asyncio.timeout(parse_duration(duration) / 10**9)

    # --- signals and people ---

    @overload
    async def signal(self, name: str, *, timeout: Duration | None = None, default: Any = None) -> Any: ...

    @overload
    async def signal(self, name: str, *, type: type[T], timeout: None = None) -> T: ...

    @overload
    async def signal(
        self, name: str, *, type: type[T], timeout: Duration | None = None, default: T | None = None
    ) -> T | None: ...

    async def signal(
        self, name: str, *, type: Any = EMPTY, timeout: Duration | None = None, default: Any = None
    ) -> Any:
        """Waits for a signal and gives its data; `default` at the timeout. One that came early was kept."""
        due = None if timeout is None else self._due(timeout)
        result = await unwatched(self._life.awaited, "signal", name, {}, due)
        return default if result.status == "timeout" else typed(self._life.loaded(result.value), type)

    async def signals(
        self, name: str, *, type: Any = EMPTY, timeout: Duration | None = None
    ) -> AsyncIterator[Any]:
        """`async for data in ctx.signals("item")`, until none comes within the timeout."""
        while True:
            result = await unwatched(self._life.awaited, "signal", name, {}, self._due(timeout))
            if result.status == "timeout":
                return
            yield typed(self._life.loaded(result.value), type)

    async def send(self, run: str, name: str, data: Any = None) -> None:
        """Signals another run."""
        await self._performed("send", name, {"run": run, "signal": name, "data": plain(data)})

    async def publish(self, event: Any, value: Any = None) -> None:
        """Publishes a domain event to reactive workflows: a typed object, or a schema's name and a value."""
        schema = event if isinstance(event, str) else vars(type(event)).get("__treadle_schema_name__")
        if schema is None:
            raise TypeError(
                "ctx.publish takes an object of a class with @rx.schema, or a schema's name and a value"
            )
        body = plain(value if isinstance(event, str) else event)
        await self._performed("publish", schema, {"schema": schema, "value": body})

    @overload
    async def ask(
        self,
        name: str,
        *,
        schema: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        default: Any = None,
        **about: Unpack[AskOptions],
    ) -> Any: ...

    @overload
    async def ask(
        self, name: str, *, type: type[T], timeout: None = None, **about: Unpack[AskOptions]
    ) -> T: ...

    @overload
    async def ask(
        self,
        name: str,
        *,
        type: type[T],
        timeout: Duration | None = None,
        default: T | None = None,
        **about: Unpack[AskOptions],
    ) -> T | None: ...

    async def ask(
        self,
        name: str,
        *,
        roles: Sequence[str] = (),
        payload: Any = None,
        schema: Mapping[str, Any] | None = None,
        type: Any = EMPTY,
        timeout: Duration | None = None,
        default: Any = None,
    ) -> Any:
        """Opens a task for people and gives their answer; `default` at the timeout."""
        if isinstance(roles, str):
            raise TypeError(f"ctx.ask takes a list of roles: roles=[{roles!r}]")
        params: dict[str, Any] = {"roles": list(roles), "payload": plain(payload)}
        if schema is None and type is not EMPTY:
            schema = schema_of(type)
        if schema is not None:
            params["schema"] = plain(dict(schema))
        result = await unwatched(self._life.awaited, "task", name, params, self._due(timeout))
        if result.status == "timeout":
            return default
        if result.status != "ok":
            raise failure_of(name, result, 1)
        return typed(self._life.loaded(result.value), type)

    # --- other runs ---

    @overload
    async def run(
        self, workflow: Workflow[None, T], input: None = None, **how: Unpack[ChildOptions]
    ) -> T: ...

    @overload
    async def run(self, workflow: Workflow[I, T], input: I, **how: Unpack[ChildOptions]) -> T: ...

    @overload
    async def run(self, workflow: str, input: Any = None, **how: Unpack[ChildOptions]) -> Any: ...

    async def run(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        *,
        reference: str | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Runs a child and gives its result."""
        name, params = _child(workflow, input, reference)
        result = await unwatched(self._life.awaited, "child", name, params, self._due(timeout))
        if result.status != "ok":
            raise _child_failed(name, result)
        given = self._life.loaded(result.value)
        return typed(
            self._life.loaded(given["result"]), workflow.gives if isinstance(workflow, Workflow) else EMPTY
        )

    @overload
    async def start(
        self, workflow: Workflow[None, Any], input: None = None, *, reference: str | None = None
    ) -> str: ...

    @overload
    async def start(self, workflow: Workflow[I, Any], input: I, *, reference: str | None = None) -> str: ...

    @overload
    async def start(self, workflow: str, input: Any = None, *, reference: str | None = None) -> str: ...

    async def start(
        self, workflow: Workflow[Any, Any] | str, input: Any = None, *, reference: str | None = None
    ) -> str:
        """Starts another run, which goes on by itself; its id."""
        name, params = _child(workflow, input, reference)
        result = await unwatched(self._life.awaited, "start", name, params)
        if result.status != "ok":
            raise _child_failed(name, result)
        return str(result.value["run"])

    # --- within ---

    def _due(self, duration: Duration | None) -> int | None:
        return None if duration is None else self._life.now_ns + parse_duration(duration)

    async def _performed(self, kind: Literal["send", "publish"], name: str, params: dict[str, Value]) -> None:
        life = self._life
        key = f"{life.run}/{life.generation}.{life.count}"
        result = await unwatched(life.awaited, kind, name, params, key=key)
        if result.status != "ok":
            raise failure_of(f"{kind} {name}", result, 1)


def _ns(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueRefused("ctx.sleep(until=) takes a time with its zone: ctx.now() + timedelta(…)")
    past = moment - _EPOCH
    return (past.days * 86400 + past.seconds) * 10**9 + past.microseconds * 1000


def _child(
    workflow: Workflow[Any, Any] | str, input: Any, reference: str | None
) -> tuple[str, dict[str, Any]]:
    if isinstance(workflow, Workflow):
        named, given = f"{workflow.name}@{workflow.version}", workflow.input(input)
    elif isinstance(workflow, str) and workflow:
        named, given = workflow, plain(input)
    else:
        raise TypeError(f"a child is a durable function or the name of a workflow, not {workflow!r}")
    params: dict[str, Any] = {"workflow": named, "input": given}
    if reference is not None:
        params["reference"] = reference
    return named, params


def _child_failed(name: str, result: Settled) -> StepFailed:
    error = result.error or {}
    details = dict(error.get("details") or {})
    about: dict[str, Any] = {
        "step": name,
        "cls": str(error.get("class") or "user"),
        "code": str(error.get("code") or "CHILD_FAILED"),
        "details": details,
        "record": result.record,
    }
    message = str(error.get("message") or f"{name} did not succeed")
    if result.status == "timeout":
        return StepTimeout(message, **{**about, "cls": "timeout"})
    return ChildFailed(message, run=details.get("run"), **about)
