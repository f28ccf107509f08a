"""The engine for synchronous code: one thin adapter, no second implementation.

    from treadle.sync import Engine

    with Engine("sqlite:///treadle.db") as engine:
        engine.deploy("flows/")
        run = engine.start("etl", {"day": "2026-11-15"})
        print(run.result(timeout=60))

The asynchronous engine runs on an event loop of its own, on a thread of its own, so this works where
a loop runs already (a notebook) as well as where there is none. Every method below is the
asynchronous one, its signature and documentation included, made to wait; a test holds the list complete.

Left out: calling it from its own loop (an asynchronous tool that calls back) would wait for itself
for ever, and is refused. Such a tool has the asynchronous engine at hand: `engine.asynchronous`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from treadle import engine as asynchronous
from treadle.host.asking import UNDECIDED
from treadle.kernel.errors import EngineStopped, Unsupported

NOT_RUNNING: Final = "the engine is not running: use it inside `with`"
P = ParamSpec("P")
T = TypeVar("T")


class _LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        # Held while something is handed to the loop: after its end nothing is.
        self._door = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="treadle-sync", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child forked from the process that made the loop: nobody turns it here."""
        return self._pid != os.getpid()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_forked:
            work.close()
            raise Unsupported(
                f"this engine was opened by process {self._pid}, and a forked child has none of its threads; "
                "open an engine of the child's own",
                code="ENGINE_FORKED",
            )
        if threading.current_thread() is self._thread:
            work.close()
            raise Unsupported(
                "a synchronous engine cannot wait on its own event loop; use `engine.asynchronous` there"
            )
        with self._door:
            if self._ended:
                work.close()
                raise EngineStopped(NOT_RUNNING)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise EngineStopped(UNDECIDED) from None
        except BaseException:
            future.cancel()  # the caller gave up (Ctrl-C): so does the work
            raise

    def close(self) -> None:
        with self._door:
            self._ended = True
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _finish(self) -> None:
        """Whoever still waits here, on other threads, is told that nothing comes any more."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


class _Adapter:
    """What an adapted object has: the asynchronous one, and the loop it lives on."""

    asynchronous: Any
    _loop: _LoopThread | None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop  # another thread may close the engine meanwhile
        if loop is None:
            work.close()
            raise EngineStopped(NOT_RUNNING)
        return loop.wait(work)


def _waits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(method)
    def call(self: _Adapter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method(self.asynchronous, *args, **kwargs))

    return call


def _gives_run(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, asynchronous.Run]],
) -> Callable[Concatenate[Any, P], Run]:
    @functools.wraps(method)
    def call(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> Run:
        return Run(self, self._wait(method(self.asynchronous, *args, **kwargs)))

    return call


def _finds_run(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, asynchronous.Run | None]],
) -> Callable[Concatenate[Any, P], Run | None]:
    @functools.wraps(method)
    def call(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> Run | None:
        found = self._wait(method(self.asynchronous, *args, **kwargs))
        return None if found is None else Run(self, found)

    return call


def _iterates(
    method: Callable[Concatenate[Any, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    @functools.wraps(method)
    def call(self: _Adapter, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        source = cast("AsyncGenerator[T, None]", method(self.asynchronous, *args, **kwargs))
        end = object()
        try:
            while (item := self._wait(_next(source, end))) is not end:
                yield cast("T", item)
        finally:
            self._wait(_close(source))

    return call


async def _next(source: AsyncIterator[T], end: object) -> T | object:
    return await anext(source, end)


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()


def _same(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    @functools.wraps(method)
    def call(self: _Adapter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.asynchronous, *args, **kwargs)

    return call


class Engine(_Adapter):
    """A durable workflow engine on one store, for synchronous code."""

    def __init__(self, store: str | None = None, **options: Any) -> None:
        """Takes what the asynchronous engine takes."""
        self.asynchronous = asynchronous.Engine(store, **options)
        self._loop = None

    def __enter__(self) -> Engine:
        self._loop = _LoopThread()
        try:
            self._wait(self.asynchronous.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self._loop is not None and self._loop.is_forked:
            self._loop = None  # everything that could be closed is the parent's
            return
        try:
            self._wait(self.asynchronous.__aexit__(*exc))
        finally:
            self._stop()

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def __getattr__(self, name: str) -> Any:
        """Settings and registries (`tools`, `models`, `dialects`, …) are the asynchronous engine's."""
        if name.startswith("_") or name == "asynchronous":
            raise AttributeError(name)
        return getattr(self.asynchronous, name)

    start = _gives_run(asynchronous.Engine.start)
    run = _gives_run(asynchronous.Engine.run)
    fork = _gives_run(asynchronous.Engine.fork)

    cell = _finds_run(asynchronous.Engine.cell)

    submit = _waits(asynchronous.Engine.submit)
    list = _waits(asynchronous.Engine.list)
    signal = _waits(asynchronous.Engine.signal)
    signal_reference = _waits(asynchronous.Engine.signal_reference)
    cancel = _waits(asynchronous.Engine.cancel)
    patch = _waits(asynchronous.Engine.patch)
    retry = _waits(asynchronous.Engine.retry)
    transcript = _waits(asynchronous.Engine.transcript)
    replay = _waits(asynchronous.Engine.replay)
    publish = _waits(asynchronous.Engine.publish)
    cells = _waits(asynchronous.Engine.cells)
    reset = _waits(asynchronous.Engine.reset)
    apply = _waits(asynchronous.Engine.apply)
    shadow = _waits(asynchronous.Engine.shadow)
    snapshot = _waits(asynchronous.Engine.snapshot)
    propose = _waits(asynchronous.Engine.propose)
    approve = _waits(asynchronous.Engine.approve)
    reject = _waits(asynchronous.Engine.reject)
    proposals = _waits(asynchronous.Engine.proposals)
    tasks = _waits(asynchronous.Engine.tasks)
    task = _waits(asynchronous.Engine.task)
    task_claim = _waits(asynchronous.Engine.task_claim)
    task_release = _waits(asynchronous.Engine.task_release)
    task_assign = _waits(asynchronous.Engine.task_assign)
    task_comment = _waits(asynchronous.Engine.task_comment)
    task_complete = _waits(asynchronous.Engine.task_complete)
    definitions = _waits(asynchronous.Engine.definitions)
    definition = _waits(asynchronous.Engine.definition)
    graph = _waits(asynchronous.Engine.graph)
    events_after = _waits(asynchronous.Engine.events_after)
    diagnostics = _waits(asynchronous.Engine.diagnostics)
    gc = _waits(asynchronous.Engine.gc)
    archive_restore = _waits(asynchronous.Engine.archive_restore)
    doctor = _waits(asynchronous.Engine.doctor)
    schedules = _waits(asynchronous.Engine.schedules)
    schedule = _waits(asynchronous.Engine.schedule)
    schedule_add = _waits(asynchronous.Engine.schedule_add)
    schedule_change = _waits(asynchronous.Engine.schedule_change)
    schedule_pause = _waits(asynchronous.Engine.schedule_pause)
    schedule_resume = _waits(asynchronous.Engine.schedule_resume)
    schedule_remove = _waits(asynchronous.Engine.schedule_remove)
    schedule_trigger = _waits(asynchronous.Engine.schedule_trigger)
    schedule_preview = _waits(asynchronous.Engine.schedule_preview)
    schedule_backfill = _waits(asynchronous.Engine.schedule_backfill)
    retentions = _waits(asynchronous.Engine.retentions)
    retention_set = _waits(asynchronous.Engine.retention_set)
    retention_remove = _waits(asynchronous.Engine.retention_remove)
    limits = _waits(asynchronous.Engine.limits)
    limit = _waits(asynchronous.Engine.limit)
    limit_set = _waits(asynchronous.Engine.limit_set)
    limit_remove = _waits(asynchronous.Engine.limit_remove)
    limit_pools = _waits(asynchronous.Engine.limit_pools)
    delete = _waits(asynchronous.Engine.delete)
    token_create = _waits(asynchronous.Engine.token_create)
    token_list = _waits(asynchronous.Engine.token_list)
    token_revoke = _waits(asynchronous.Engine.token_revoke)
    hook_set = _waits(asynchronous.Engine.hook_set)
    hook_list = _waits(asynchronous.Engine.hook_list)
    hook_remove = _waits(asynchronous.Engine.hook_remove)
    secret_set = _waits(asynchronous.Engine.secret_set)
    secret_list = _waits(asynchronous.Engine.secret_list)
    secret_remove = _waits(asynchronous.Engine.secret_remove)
    audit = _waits(asynchronous.Engine.audit)
    record = _waits(asynchronous.Engine.record)
    dead_letters = _waits(asynchronous.Engine.dead_letters)
    dead_letter = _waits(asynchronous.Engine.dead_letter)
    dead_letter_replay = _waits(asynchronous.Engine.dead_letter_replay)
    dead_letter_discard = _waits(asynchronous.Engine.dead_letter_discard)
    rows = _iterates(asynchronous.Engine.rows)
    read = _waits(asynchronous.Engine.read)

    load = _same(asynchronous.Engine.load)
    check = _same(asynchronous.Engine.check)
    deploy = _same(asynchronous.Engine.deploy)
    tool = _same(asynchronous.Engine.tool)
    transport = _same(asynchronous.Engine.transport)
    register = _same(asynchronous.Engine.register)
    observe = _same(asynchronous.Engine.observe)


class Run(_Adapter):
    """A handle on one run."""

    def __init__(self, engine: Engine, run: asynchronous.Run) -> None:
        self.engine = engine
        self.asynchronous = run
        self.id: str = run.id
        self.existing: bool = run.existing

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self.engine._wait(work)

    show = _waits(asynchronous.Run.show)
    state = _waits(asynchronous.Run.state)
    journal = _waits(asynchronous.Run.journal)
    events = _iterates(asynchronous.Run.events)
    result = _waits(asynchronous.Run.result)
    settled = _waits(asynchronous.Run.settled)
    at_rest = _waits(asynchronous.Run.at_rest)
    trace = _waits(asynchronous.Run.trace)

    def diff(self, other: Run) -> dict[str, Any]:
        """In what two runs differ: definition, input, way, results, sources."""
        return self._wait(self.asynchronous.diff(other.asynchronous))


__all__ = ["Engine", "Run"]
