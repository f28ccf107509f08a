"""The composition root: chooses the store, the dialects and the performers, and is what people use.

    async with Engine("sqlite:///treadle.db") as engine:
        engine.deploy("flows/")
        run = await engine.start("etl", {"day": "2026-11-15"})
        print(await run.result())

The engine is asynchronous; the core it drives is synchronous and lives on a thread of its own.
`treadle.sync.Engine` is the same for synchronous code. Register tools before `async with`, where
recovery starts.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from treadle.files import compile_text, definitions_of, files_in, load_python, read_text, split_target
from treadle.kernel.errors import (
    EngineStopped,
    NotWaiting,
    RunFailed,
    RunNotFound,
    StoreUnavailable,
    TreadleError,
    Unsupported,
)
from treadle.kernel.limits import HOT_RUNS_MAX
from treadle.kernel.model import TERMINAL, Cancel, Event, Patch, Retry, Signal, Started
from treadle.kernel.values import Value, to_value
from treadle.lang.definition import Definition
from treadle.lang.graph import Graph
from treadle.lang.problems import Problem
from treadle.runtime import deploys, document, keeping, tasks
from treadle.runtime.commands import Command, Write
from treadle.runtime.core import Core
from treadle.runtime.ports import Ack, Clock, Item, NewRun, News, SystemClock, Work
from treadle.runtime.registry import Loaded, Registry
from treadle.runtime.thread import CoreThread
from treadle.store.owner import OwnerLock
from treadle.store.protocol import DefinitionRow, Reads, Store
from treadle.store.sql import open_sqlite
from treadle.work.registry import ToolRegistry
from treadle.work.secrets import Secrets, SecretStore, secret_store_path
from treadle.work.worker import Worker

from . import compose
from .watching import Watch, Watching

log = logging.getLogger("treadle")
T = TypeVar("T")
# `list` is a method of the engine, so its signatures need the type under another name.
Rows = list[dict[str, Any]]

SWITCH_INTERVAL_S = 0.0005
# How long a waiter trusts that it will be told; for guests of another process it is never told.
END_POLL_S = 0.5


class _LoopAck:
    """Answers a coroutine; many of them travel to the event loop in one hop."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def __call__(self, value: Any, error: TreadleError | None) -> None:
        if not self.future.done():
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(value)


class Engine:
    """A durable workflow engine on one store."""

    def __init__(
        self,
        store: str | None = None,
        *,
        secrets: Any = None,
        validation: str | None = None,
        hot_runs: int = HOT_RUNS_MAX,
        work: bool = True,
        concurrency: int = 256,
        threads: int = 8,
        clock: Clock | None = None,
    ) -> None:
        if not __debug__:
            raise Unsupported("Treadle checks itself with assertions; run Python without -O")
        self.store_url = store or os.environ.get("TREADLE_STORE") or "sqlite:///treadle.db"
        self.validation = validation or os.environ.get("TREADLE_VALIDATION") or "strict"
        if self.validation not in ("strict", "warn"):
            raise Unsupported(f"validation is 'strict' or 'warn', not {self.validation!r}")
        self.path = store_path(self.store_url)
        self.dialects = compose.Dialects()
        self.tools = ToolRegistry()
        self.models: dict[str, Any] = {}
        # Skill settings given with a run: kept in memory only, because they may be secrets.
        self.configs: dict[str, Mapping[str, Any]] = {}
        self.secrets = (
            secrets if isinstance(secrets, Secrets) else Secrets(secrets, store=_secret_store(self.path))
        )
        # What timers and deadlines go by; `treadle.testing.VirtualClock` in tests.
        self.clock: Clock = clock or SystemClock()
        self._works = work
        self._hot_runs = hot_runs
        self._watching = Watching(self._events_after)
        self._deploying: list[deploys.Deploy] = []
        self._known: dict[str, DefinitionRow] = {}
        self._named: dict[str, DefinitionRow] = {}
        self._thread: CoreThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="treadle-reader")
        self._reads: Reads | None = None
        self._failure: BaseException | None = None
        self._loaded: dict[str, Any] = {}
        self.worker = Worker(
            self._submit, self.secrets, self._fetch_blob, concurrency=concurrency, threads=threads
        )
        compose.register_performers(self)

    # --- life ---

    async def __aenter__(self) -> Engine:
        self._loop = asyncio.get_running_loop()
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch_interval, SWITCH_INTERVAL_S))
        lock = OwnerLock(self.path) if self.path is not None else None
        if self.path is not None and not self.path.parent.is_dir():
            raise StoreUnavailable(
                f"the folder {self.path.parent} does not exist; create it, or choose another --store"
            )
        if self._works:
            self.worker.start(self._loop)
        self._thread = CoreThread(
            lambda: open_sqlite(self.path), self._make_core, self, lock, on_stop=self._stopped
        )
        self._thread.start()
        failure = await asyncio.to_thread(self._thread.opened.get)
        if failure is not None:
            await self.__aexit__(None, None, None)
            raise failure
        for deploy in self._deploying:
            await self._operate("deploy", deploy.to_value())
        self._deploying.clear()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.worker.stop()
        if self._thread is not None:
            self._thread.stop()
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        await self.tools.close()
        self._watching.close(None)
        self._readers.shutdown()
        self._reads = None
        sys.setswitchinterval(self._switch_interval)

    def _make_core(self, store: Store) -> Core:
        registry = self._registry(store)
        registry.pending.update(self._known)
        core = Core(store, registry, self, clock=self.clock, entropy=os.urandom, hot_max=self._hot_runs)
        core.operations = self._perform_operation
        return core

    def _registry(self, reads: Reads) -> Registry:
        registry = Registry(self._machine_of, reads)
        registry.find_file = self._find_file
        registry.check_input = self._check_input
        return registry

    def _machine_of(self, dialect: str) -> Any:
        if dialect not in self.dialects:
            raise Unsupported(f"no dialect {dialect!r} is installed")
        return self.dialects[dialect].machine

    def _stopped(self, failure: BaseException | None) -> None:
        self._failure = failure
        if failure is not None:
            log.error("the engine stopped: %s", failure)
        if self._loop is not None and failure is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._watching.close, failure)

    @property
    def owns(self) -> bool:
        """Whether this engine owns the store, or is the guest of another process."""
        return self._thread is not None and self._thread.owns

    # --- the core's port: called on the core thread, after a commit ---

    def answer(self, answers: list[tuple[Ack, Any, TreadleError | None]]) -> None:
        awaited: list[tuple[Ack, Any, TreadleError | None]] = []
        for ack, value, error in answers:
            if type(ack) is _LoopAck:
                awaited.append((ack, value, error))
            else:
                ack(value, error)
        if awaited and self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_answer_all, awaited)

    def dispatch(self, works: list[Work]) -> None:
        if self._works:
            self.worker.dispatch(works)

    def revoke(self, intents: list[str]) -> None:
        self.worker.revoke(intents)

    def wants_news(self, run: str, ended: bool) -> bool:
        return self._watching.wants(run, ended)

    def publish_news(self, news: list[News]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._watching.tell, news)

    # --- how calls reach the core ---

    def _submit(self, command: Command) -> None:
        if self._thread is None:
            raise EngineStopped()
        self._thread.submit(command)

    async def submit(self, run: str, event: Event, **more: Any) -> dict[str, Any]:
        """Hands one event to a run; returns when the decision on it is durable."""
        answer: dict[str, Any] = await self._ask(lambda ack: Item(run, event, ack=ack, **more))
        return answer

    async def _ask(self, make: Callable[[Ack], Command]) -> Any:
        if self._failure is not None:
            raise self._failure
        if self._thread is None:
            raise EngineStopped()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._submit(make(_LoopAck(future)))
        return await future

    async def write(self, change: Callable[[Core], T]) -> T:
        """Runs a change on the core thread, in a commit of its own."""
        found: T = await self._ask(lambda ack: Write(change, ack))
        return found

    async def _operate(self, name: str, body: dict[str, Any]) -> Any:
        notes = {"op": {"name": name, "body": body}}
        return await self._ask(lambda ack: Item("", None, ack=ack, notes=notes))

    def _perform_operation(self, core: Core, operation: dict[str, Any], ack: Any) -> Any:
        body = operation["body"]
        match operation["name"]:
            case "deploy":
                return deploys.perform(core, deploys.Deploy.from_value(body))
            case "task":
                return tasks.perform(core, tasks.Operation.from_value(body), ack)
            case name:
                raise Unsupported(f"no operation {name!r} is known")

    async def read(self, question: Callable[[Reads], T]) -> T:
        """Asks the store on a connection of its own, off the core thread where there is one."""
        if self._thread is None:
            raise EngineStopped()
        if self.path is None:
            return await self.write(lambda core: question(core.store))
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_now, question)

    def _read_now(self, question: Callable[[Reads], T]) -> T:
        if self._reads is None:
            self._reads = open_sqlite(self.path).reader()
        assert self._reads is not None
        return question(self._reads)

    def _fetch_blob(self, digest: str) -> bytes:
        """For workers, from any thread."""
        if self.path is not None:
            found: bytes = self._readers.submit(self._read_now, lambda reads: reads.blob(digest)).result()
            return found
        done: concurrent.futures.Future[bytes] = concurrent.futures.Future()

        def ack(value: Any, error: TreadleError | None) -> None:
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(value)

        self._submit(Write(lambda core: core.store.blob(digest), ack))
        return done.result()

    # --- definitions ---

    def load(self, target: Any, *, strict: bool = False) -> list[Definition]:
        """Compiles a file, a folder, FILE.py:NAME or a Python object; changes nothing."""
        if isinstance(target, Definition):
            found = [target]
        elif not isinstance(target, str | Path):
            found = definitions_of(target, file=None)
        else:
            found = self._load_path(str(target), strict=strict)
        for definition in found:
            self._learn(definition)
        return found

    def _load_path(self, target: str, *, strict: bool) -> list[Definition]:
        path, name = split_target(target)
        if path.suffix == ".py":
            values = load_python(path, name)
            file = str(path.resolve())
            return [
                d for value in values for d in definitions_of(value, file=f"{file}:{name}" if name else file)
            ]
        found = []
        for file_path in files_in(target):
            file = str(file_path)
            definition, problems = compile_text(read_text(file_path), self.dialects, file=file, strict=strict)
            problems.raise_errors()
            assert definition is not None
            found.append(definition)
        return found

    def check(self, target: str, *, strict: bool = False) -> list[Problem]:
        """Every problem of a file or folder, errors and warnings."""
        path, _ = split_target(target)
        if path.suffix == ".py":
            return [w for definition in self.load(target) for w in definition.warnings]
        found: list[Problem] = []
        for file_path in files_in(target):
            try:
                _, problems = compile_text(
                    read_text(file_path), self.dialects, file=str(file_path), strict=strict
                )
                found += problems
            except TreadleError as error:
                listed = error.details.get("problems")
                found += (
                    [Problem(**p) for p in listed] if listed else [compose.as_problem(error, str(file_path))]
                )
        return found

    def deploy(self, target: Any, *, strict: bool = False) -> list[Definition]:
        """Compiles and claims name@version. Allowed before `async with`; synchronous."""
        found = self.load(target, strict=strict)
        for definition in found:
            deploy = deploys.of(definition, self.dialects[definition.dialect], self.validation)
            if self._thread is None:
                self._deploying.append(deploy)
                continue
            self._named.clear()
            done: concurrent.futures.Future[Any] = concurrent.futures.Future()
            self._submit(
                Item(
                    "",
                    None,
                    ack=_future_ack(done),
                    notes={"op": {"name": "deploy", "body": deploy.to_value()}},
                )
            )
            done.result(timeout=60)
        return found

    def _learn(self, definition: Definition) -> None:
        """Makes a definition startable here; it is written with the first run that needs it."""
        row = deploys.row_of(definition)
        self._known[row.digest] = row
        core = self._thread.core if self._thread is not None else None
        if core is not None:
            core.registry.pending.setdefault(row.digest, row)
        if definition.code is not None:
            compose.attach(self.dialects[definition.dialect], definition)

    def _find_file(self, workflow: str, base: str | None) -> DefinitionRow | None:
        """A child named by file, relative to its caller's file."""
        if base is None or workflow.startswith("sha256:"):
            return None
        for suffix in ("", ".yaml", ".yml", ".json"):
            path = Path(base) / (workflow + suffix)
            if path.is_file():
                definition = self._load_path(str(path), strict=False)[0]
                row = deploys.row_of(definition)
                self._known[row.digest] = row
                core = self._thread.core if self._thread is not None else None
                if core is not None:
                    core.registry.pending.setdefault(row.digest, row)
                return row
        return None

    def _check_input(self, loaded: Loaded, input: Value, options: dict[str, Any]) -> Value:
        return self.dialects[loaded.row.dialect].check_input(loaded.definition, input, options)

    async def _resolve(self, workflow: Any) -> DefinitionRow:
        if not isinstance(workflow, str):
            (definition,) = self.load(workflow)
            return self._known[definition.digest]
        if workflow in self._known:
            return self._known[workflow]
        if workflow not in self._named:
            self._named[workflow] = await self.read(lambda reads: self._registry(reads).resolve(workflow))
        return self._named[workflow]

    async def definitions(self) -> list[dict[str, Any]]:
        return await self.read(deploys.listed)

    async def definition(self, workflow: str) -> DefinitionRow:
        """The stored, canonical form of a deployed workflow, for `export`."""
        return await self._resolve(workflow)

    async def graph(self, target: Any) -> Graph:
        """A picture of a definition, or of a run given by its id."""
        if isinstance(target, str):
            with suppress(RunNotFound):
                state, loaded = await self.read(lambda r: document.state_at(r, self._registry(r), target))
                view = loaded.machine.view(loaded.definition, state.state)
                return self.dialects[loaded.row.dialect].graph(
                    loaded.definition, {**view, "status": state.status}
                )
        row = await self._resolve(target)
        machine = self._machine_of(row.dialect)
        return self.dialects[row.dialect].graph(machine.load(row.body))

    # --- runs ---

    async def start(
        self,
        workflow: Any,
        input: Value = None,
        *,
        id: str | None = None,
        key: Value = None,
        reference: str | None = None,
        model: str | None = None,
        config: Mapping[str, Any] | None = None,
        secrets: str | None = None,
        offline: bool = False,
        dry_run: bool = False,
    ) -> Run:
        """Starts a run, durable when this returns. The same id with the same definition and input
        is the same run."""
        row = await self._resolve(workflow)
        options = compose.run_options(row, model=model, secrets=secrets, offline=offline, dry_run=dry_run)
        machine = self._machine_of(row.dialect)
        if row.digest not in self._loaded:
            self._loaded[row.digest] = machine.load(row.body)
        given = self.dialects[row.dialect].check_input(self._loaded[row.digest], to_value(input), options)
        run = id or new_id()
        if config:
            self.configs[run] = dict(config)
        event = Started(
            definition=row.digest,
            input=given,
            seed=os.urandom(16),
            machine=machine.version,
            reference=reference,
            options=options,
        )
        create = NewRun(row.dialect, row.name, row.version, row.digest, key)
        answer = await self.submit(run, event, create=create)
        return Run(self, run, existing=bool(answer.get("existing")))

    async def run(self, id: str) -> Run:
        await self.read(lambda reads: document.row_of(reads, id))
        return Run(self, id)

    async def list(self, **filters: Any) -> Rows:
        """Runs, newest first: filters status, workflow, reference, since_ns, search, limit."""
        return [document.list_row(row) for row in await self.read(lambda reads: reads.runs(**filters))]

    async def signal(
        self,
        id: str,
        name: str,
        data: Value = None,
        *,
        key: str | None = None,
        expected_version: int | None = None,
        by: str | None = None,
    ) -> dict[str, Any]:
        """Wakes whoever awaits `name` in a run; kept until somebody does. The same `key` twice is
        one signal."""
        event = Signal(name=name, data=to_value(data), key=key, by=by)
        submission = (f"run:{id}", f"signal:{key}") if key is not None else None
        return await self.submit(id, event, submission=submission, expected_version=expected_version)

    async def signal_reference(self, reference: str, name: str, data: Value = None) -> Sequence[str]:
        """Signals every run with this business reference that waits for it; their ids."""
        found = await self.read(lambda reads: keeping.awaiting(reads, reference, name))
        if not found:
            raise NotWaiting(f"no run with reference {reference!r} waits for the signal {name!r}")
        for id in found:
            await self.signal(id, name, data)
        return found

    async def cancel(self, id: str, reason: str = "") -> dict[str, Any]:
        return await self.submit(id, Cancel(reason=reason))

    async def patch(self, id: str, data: dict[str, Any], *, by: str | None = None) -> dict[str, Any]:
        return await self.submit(id, Patch(data=to_value(data), by=by))

    async def retry(self, id: str, *, by: str | None = None, **how: Any) -> dict[str, Any]:
        return await self.submit(id, Retry(how=to_value(how), by=by))

    async def fork(
        self, id: str, *, at: int | None = None, definition: Any = None, new_id: str | None = None
    ) -> Run:
        """A new run that goes on from a run's state at a record, perhaps under another definition."""
        row = await self._resolve(definition) if definition is not None else None
        name = new_id or f"{id}-fork-{os.urandom(4).hex()}"
        await self.write(lambda core: keeping.fork(core, id, at=at, definition=row, new_id=name))
        return Run(self, name)

    async def replay(self, id: str) -> dict[str, Any]:
        return await self.read(lambda reads: document.replayed(reads, self._registry(reads), id))

    # --- tasks ---

    async def tasks(self, **filters: Any) -> Rows:
        """The inbox: filters role, assignee, status, reference, run, limit; open and claimed by default."""
        filters.setdefault("status", tasks.OPEN)
        filters["status"] = filters["status"] or ()
        return [tasks.task_value(row) for row in await self.read(lambda reads: reads.tasks(**filters))]

    async def task(self, id: str) -> dict[str, Any]:
        row = await self.read(lambda reads: reads.task(id))
        if row is None:
            raise NotWaiting(f"there is no task {id!r}; `treadle tasks` lists them", code="TASK_NOT_FOUND")
        return tasks.task_value(row)

    async def task_claim(self, id: str, *, user: str | None, roles: Any = ()) -> dict[str, Any]:
        return await self._task("claim", id, user, roles)

    async def task_release(self, id: str, *, user: str | None, roles: Any = ()) -> dict[str, Any]:
        return await self._task("release", id, user, roles)

    async def task_assign(self, id: str, *, to: str, user: str | None, roles: Any = ()) -> dict[str, Any]:
        return await self._task("assign", id, user, roles, to=to)

    async def task_comment(self, id: str, *, text: str, user: str | None, roles: Any = ()) -> dict[str, Any]:
        return await self._task("comment", id, user, roles, text=text)

    async def task_complete(
        self,
        id: str,
        data: Value = None,
        *,
        user: str | None,
        roles: Any = (),
        expected_version: int | None = None,
    ) -> dict[str, Any]:
        return await self._task(
            "complete", id, user, roles, data=to_value(data), expected_version=expected_version
        )

    async def _task(self, name: str, id: str, user: str | None, roles: Any, **more: Any) -> dict[str, Any]:
        operation = tasks.Operation(name=name, task=id, actor=tasks.Actor(user, tuple(roles)), **more)
        found: dict[str, Any] = await self._operate("task", operation.to_value())
        return found

    # --- watching, house-keeping, plug-ins ---

    def observe(self, observer: Callable[[dict[str, Any]], Any], *, after: int = 0) -> None:
        """Calls `observer(event)` for every event of every run, after its commit, in order. What it
        raises is logged and swallowed."""
        self._watching.observe(observer, after=after)

    def watch(self, run: str, *, end: bool = False) -> Watch:
        return self._watching.watch(run, end=end)

    async def _events_after(self, run: str, after: int) -> Rows:
        def ask(reads: Reads) -> Rows:
            row = reads.run(run)
            return [] if row is None else list(document.events(reads, row, after=after))

        return await self.read(ask)

    async def gc(self, *, now_ns: int | None = None, dry_run: bool = False) -> dict[str, int]:
        """Removes ended runs past their retention date, and payloads nobody refers to any more."""
        return await keeping.collect(self.write, now_ns=now_ns, dry_run=dry_run)

    async def doctor(self) -> dict[str, Any]:
        """Health of the store and of the engine on it."""
        return await self.write(lambda core: keeping.diagnosis(core, url=self.store_url))

    async def diagnostics(self, run: str | None = None) -> Rows:
        return await self.read(lambda reads: reads.diagnostics(run))

    def tool(
        self, kind: str, *, idempotent: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers a function as a tool: `@engine.tool("slack")`."""
        return self.tools.tool(kind, idempotent=idempotent)

    def register(self, plugin: Any) -> None:
        """Registers a tool or a skill."""
        compose.register(self, plugin)


def _secret_store(path: Path | None) -> SecretStore | None:
    return None if path is None else SecretStore(secret_store_path(f"sqlite:///{path}"))


def _answer_all(answers: list[tuple[Ack, Any, TreadleError | None]]) -> None:
    for ack, value, error in answers:
        ack(value, error)


def _future_ack(future: concurrent.futures.Future[Any]) -> Ack:
    def ack(value: Any, error: TreadleError | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    return ack


def new_id() -> str:
    """A run id that sorts by time (48 bits of milliseconds, 80 of chance), in Crockford's base 32."""
    value = int.from_bytes((SystemClock().now_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10), "big")
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[value >> shift & 31] for shift in range(125, -1, -5))


def store_path(url: str) -> Path | None:
    """The file behind `sqlite:///relative.db` or `sqlite:////absolute.db`; None for `memory:`."""
    if url in ("memory:", "memory://", ":memory:"):
        return None
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    raise StoreUnavailable(
        f"cannot open the store {url!r}: write sqlite:///relative.db, sqlite:////absolute.db or memory:"
    )


class Run:
    """A handle on one run."""

    def __init__(self, engine: Engine, id: str, *, existing: bool = False) -> None:
        self.engine = engine
        self.id = id
        self.existing = existing

    def __repr__(self) -> str:
        return f"<Run {self.id}>"

    async def show(self, *, engine: bool = False, at: int | None = None) -> dict[str, Any]:
        """The run document, as `treadle show --json` prints it."""
        return await self.engine.read(
            lambda reads: document.show(reads, self.engine._registry(reads), self.id, engine=engine, at=at)
        )

    async def state(self, at: int | None = None) -> Value:
        """The dialect's view of the state, now or at a record."""
        return (await self.show(at=at))["state"]

    async def journal(self) -> Rows:
        return await self.engine.read(
            lambda reads: list(document.journal(reads, document.row_of(reads, self.id)))
        )

    async def events(self, *, after: int = 0, follow: bool = True) -> AsyncIterator[dict[str, Any]]:
        """The run's events in order; with `follow`, until it ends."""
        with self.engine.watch(self.id) as watch:
            while True:
                ended = await self._ended() if follow else True
                for event in await self.engine._events_after(self.id, after):
                    after = event["seq"]
                    yield event
                if ended:
                    return
                await watch.changed()

    async def _ended(self) -> bool:
        row = await self.engine.read(lambda reads: document.row_of(reads, self.id))
        return row.status in TERMINAL

    async def result(self, timeout: float | None = None) -> Value:
        """Waits for the end and returns the result; raises RunFailed if it did not complete."""
        async with asyncio.timeout(timeout):
            with self.engine.watch(self.id, end=True) as watch:
                while not await self._ended():
                    await watch.changed(poll_s=END_POLL_S)
        shown = await self.show()
        if shown["status"] in ("completed", "partial"):
            return shown["result"]
        error = shown["error"] or {}
        raise RunFailed(
            f"{self.id} {shown['status']}: {error.get('message', '')}",
            error=shown["error"],
            result=shown["result"],
            where=error.get("where"),
            cls=error.get("class"),
        )

    async def settled(self, *, until_wait: bool = False, timeout: float | None = None) -> dict[str, Any]:
        """Waits until the run (with its parents and children) has ended or only people and outside
        signals can move it on; with `until_wait`, also when only timers are left."""
        async with asyncio.timeout(timeout):
            with self.engine.watch("") as watch:
                while await self.engine.read(lambda reads: self._moves(reads, timers=not until_wait)):
                    await watch.changed(poll_s=0.05)
        return await self.show()

    def _moves(self, reads: Reads, *, timers: bool) -> bool:
        row = document.row_of(reads, self.id)
        unavailable = frozenset(self.engine.worker.unknown)
        root = document.root_of(reads, row)
        return any(
            document.moves(reads, candidate, timers=timers, unavailable=unavailable)
            for candidate in ((row,) if root.no == row.no else (row, root))
        )


__all__ = ["Engine", "Run", "new_id", "store_path"]
