"""Durable functions for their authors: `from treadle import flow`.

    @flow.step(retry={"attempts": 3})
    async def charge(order: str, cents: int) -> str: ...

    @flow.workflow
    async def order(ctx: flow.Context, request: Order) -> Receipt:
        payment = await charge(request.id, request.cents)
        ...

See docs/functions.md.
"""

from __future__ import annotations

from asyncio import CancelledError as Cancelled
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from treadle.dialects.function.combine import gather, race
from treadle.dialects.function.context import Context
from treadle.dialects.function.errors import ChildFailed, Fatal, StepFailed, StepTimeout
from treadle.dialects.function.steps import Step, make_step
from treadle.dialects.function.workflow import Workflow
from treadle.performers.function.current import Current, current

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741


class _Workflows(Protocol):
    @overload
    def __call__(self, function: Callable[[Context], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...

    @overload
    def __call__(self, function: Callable[[Context, I], Coroutine[Any, Any, R]], /) -> Workflow[I, R]: ...


class _Steps(Protocol):
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def workflow(function: Callable[[Context], Coroutine[Any, Any, R]], /) -> Workflow[None, R]: ...


@overload
def workflow(function: Callable[[Context, I], Coroutine[Any, Any, R]], /) -> Workflow[I, R]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    version: str = "1",
    timeout: str | float | None = None,
    guard: bool = True,
    limits: Mapping[str, Any] | None = None,
) -> _Workflows: ...


def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    timeout: str | float | None = None,
    guard: bool = True,
    limits: Mapping[str, Any] | None = None,
) -> Any:
    """Makes a durable workflow of `async def (ctx)` or `async def (ctx, input)`; `limits` says how many of its runs
    go on at once, and how fast they begin."""

    def made(function: Callable[..., Any]) -> Workflow[Any, Any]:
        return Workflow(function, name=name, version=version, timeout=timeout, guard=guard, limits=limits)

    return made if function is None else made(function)


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(
    *,
    name: str | None = None,
    retry: Mapping[str, Any] | None = None,
    timeout: str | float | None = None,
    idempotent: bool = True,
    process: bool = False,
    secrets: Sequence[str] = (),
    pool: str | None = None,
) -> _Steps: ...


def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Mapping[str, Any] | None = None,
    timeout: str | float | None = None,
    idempotent: bool = True,
    process: bool = False,
    secrets: Sequence[str] = (),
    pool: str | None = None,
) -> Any:
    """Makes a step of a function: at least once, settled once. Plain functions run in a thread."""

    def made(function: Callable[..., Any]) -> Step[..., Any]:
        return make_step(
            function,
            name=name,
            retry=retry,
            timeout=timeout,
            idempotent=idempotent,
            process=process,
            secrets=secrets,
            pool=pool,
        )

    return made if function is None else made(function)


__all__ = [
    "Cancelled",
    "ChildFailed",
    "Context",
    "Current",
    "Fatal",
    "Step",
    "StepFailed",
    "StepTimeout",
    "Workflow",
    "current",
    "gather",
    "race",
    "step",
    "workflow",
]
