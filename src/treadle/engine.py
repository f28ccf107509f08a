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

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload

from treadle.kernel.errors import NotWaiting, RunNotFound, TreadleError, Unsupported, VersionMismatch
from treadle.kernel.model import Cancel, Patch, Retry, Signal
from treadle.kernel.values import Value
from treadle.lang.alerts import Alerts
from treadle.lang.definition import Definition, Dialect, Surroundings
from treadle.lang.handed import from_caller
from treadle.lang.problems import Problem
from treadle.runtime import deploys
from treadle.runtime.commands import FORK, Deliver
from treadle.runtime.ports import Clock, NewRun, SystemClock, Work
from treadle.work.performers import PerformerTable
from treadle.work.worker import Worker

from . import apps, arguments
from .apps.methods import AppMethods
from .definitions.dialects import Dialects
from .definitions.library import ByDigest, Library
from .host.bridge import Bridge
from .host.house_methods import HouseMethods
from .host.limit_methods import LimitMethods
from .host.member_methods import MemberMethods
from .host.news import is_going_on
from .host.offers import DialectOffers
from .host.operations import EngineOperations
from .host.schedule_methods import ScheduleMethods
from .host.store_methods import Once, StoreMethods
from .host.task_methods import TaskMethods
from .host.trace_switch import TraceSwitch
from .host.watch_methods import WatchMethods
from .host.work_methods import WorkMethods
from .performers import performers_of
from .runs import Run, TypedRun
from .secrets.providers import Secrets, kept_for
from .store.open import Place, migrate_store, store_path
from .store.rows import DefinitionRow

if TYPE_CHECKING:
    from .apps.operations import Applications
    from .dialects.process.builder import Process
    from .dialects.reactive.app import App
    from .lang.definition import TypedWorkflow
    from .lang.graph import Graph
    from .performers.agent.agents import Agents
    from .performers.agent.api import Provider
    from .store.protocol import Reads

    # What can be started besides functions, whose types are known.
    Untyped: TypeAlias = str | Definition | Process | App

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
# `list` is a method of the engine, so its signatures need the type under another name.
Rows = list[dict[str, Any]]


class Engine(
    TaskMethods,
    AppMethods,
    MemberMethods,
    WorkMethods,
    WatchMethods,
    StoreMethods,
    ScheduleMethods,
    LimitMethods,
    HouseMethods,
):
    """A durable workflow engine on one store."""

    def __init__(
        self,
        store: str | None = None,
        *,
        secrets: Any = None,
        validation: str | None = None,
        hot_runs: int | None = None,
        work: bool = True,
        concurrency: int = 1_000,
        threads: int = 8,
        clock: Clock | None = None,
        readonly: bool = False,
        help_others: bool = True,
        pools: Sequence[str] = (),
        alerts: Mapping[str, Any] | None = None,
        telemetry: str | bool | None = None,
    ) -> None:
        if not __debug__:
            raise Unsupported("Treadle checks itself with assertions; run Python without -O")
        url = store or os.environ.get("TREADLE_STORE") or "sqlite:///treadle.db"
        self.validation = arguments.checked_validation(validation)
        place = Place.of(url)
        dialects = Dialects(Surroundings(self._callables, self._declared, _finds_skill))
        library = Library(dialects, Alerts.read(alerts or {}))
        clock = clock or SystemClock()
        self.models: dict[str, Any] = {}
        # Skill settings given with a run: kept in memory only, because they may be secrets.
        self.configs: dict[str, Mapping[str, Any]] = {}
        if not isinstance(secrets, Secrets):
            secrets = Secrets(secrets, store=kept_for(url))
        self._deploying: list[deploys.Deploy] = []
        offers = DialectOffers([apps.offer(self)])
        self._bridge = bridge = Bridge(
            place,
            clock=clock,
            hot_runs=arguments.positive(*arguments.cache_size(hot_runs)),
            registry_of=library.registry,
            core_registry_of=library.core_registry,
            operations=EngineOperations(
                dialects,
                offers,
                lambda dialect: self.worker.try_again(dialect),
                lambda runs: self._bridge.help(runs),
            ),
            readonly=readonly,
        )
        super().__init__(
            bridge,
            store_url=url,
            library=library,
            dialects=dialects,
            secrets=secrets,
            clock=clock,
            offers=offers,
        )
        self._traces = TraceSwitch(
            telemetry,
            seat=bridge.seat,
            reading=bridge.reading,
            asks=bridge.asks,
            vouching=bridge.vouching,
            dialects=dialects,
        )
        self.worker = Worker(
            bridge.bus,
            bridge.door,
            secrets,
            ByDigest(library, bridge.reading.read_blocking),
            PerformerTable(lambda dialect: performers_of(dialect, self)),
            concurrency=arguments.positive("concurrency", concurrency),
            threads=arguments.positive("threads", threads),
            pools=frozenset(pools) or None,
            only=None if work else self._is_at_home,
            tracer=self._traces.tracer,
        )
        self._works = work
        if not help_others:
            self.worker.others.leave_alone()

    async def __aenter__(self) -> Engine:
        self.library.stored.clear()
        await self._bridge.start(self.worker)
        try:
            await self._traces.begin()
            for deploy in self._deploying:
                await self._bridge.asks.operate("deploy", deploy.to_value())
        except BaseException:
            await self.__aexit__()
            raise
        self._deploying.clear()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stops at once, settles nothing; `await engine.worker.finish(30)` before it ends what is in hand."""
        if self._bridge.home.is_forked:
            return  # everything that could be closed is the parent's
        await self._traces.end()
        await self._bridge.stop()
        if "agents" in self.__dict__:
            await self.agents.close()
        await self.worker.performers.close()
        if "tools" in self.__dict__:
            await self.tools.close()

    @cached_property
    def applications(self) -> Applications:
        """Reactive applications, imported when the first of them is used."""
        from .apps.operations import Applications

        return Applications(self, self._host.asks.ask, self._host.seat.decides)

    @cached_property
    def agents(self) -> Agents:
        """Skills, providers of models and MCP sessions, imported when the first agent run needs them."""
        from .performers.agent.agents import Agents

        return Agents(self.models, self.secrets, self.configs, self)

    # --- definitions ---

    def load(self, target: Any, *, strict: bool = False) -> list[Definition]:
        """Compiles a file, a folder, FILE.py:NAME or a Python object; changes nothing."""
        return self.library.load(target, strict=strict)

    def check(self, target: str, *, strict: bool = False) -> list[Problem]:
        """Every problem of a file or folder, errors and warnings."""
        return self.library.check(target, strict=strict)

    def deploy(
        self, target: Any, *, strict: bool = False, by: str | None = None, validation: str | None = None
    ) -> list[Definition]:
        """Compiles and claims name@version. Allowed before `async with`; synchronous. With `validation="warn"` (here,
        or of the engine) a file that does not compile is kept as unavailable: `diagnostics` says why, and by whom."""
        mode = self.validation if validation is None else arguments.checked_validation(validation)
        kept: list[Definition] = []
        if mode == "warn":
            found, kept = self.library.load_or_keep(target, strict=strict)
        else:
            found = self.load(target, strict=strict)
        asked = (self.library.deploy_of(definition, validation=mode) for definition in found)
        for deploy in (*asked, *map(deploys.unavailable, kept)):
            deploy = deploy.asked_by(by)
            if self._bridge.seat.thread is not None:
                self._bridge.asks.operate_blocking("deploy", deploy.to_value())
            else:
                self._deploying.append(deploy)
        return [*found, *kept]

    async def definition(self, workflow: Any) -> DefinitionRow:
        """The stored, canonical form of a workflow, for `export`."""
        core = self._bridge.seat.core
        tenure = None if core is None else core.held.sole
        return await self.library.resolve(workflow, self.read, tenure=tenure)

    async def definitions(self) -> Rows:
        """The deployed definitions: name, version, dialect, digest, and whether they can run here."""
        return await self.read(deploys.listed)

    async def graph(self, target: Any, *, at: int | None = None) -> Graph:
        """A picture of a definition, or of a run given by its id, now or as it was after a record."""
        if isinstance(target, str):
            from treadle.runtime import document

            with suppress(RunNotFound):
                state, loaded = await self.read(
                    lambda reads: document.state_at(reads, self.library.registry(reads), target, at=at)
                )
                view = document.view_of(loaded, state)
                about = {**view, "status": state.status} if view["state"] is not None else None
                return self.dialects[loaded.row.dialect].graph(loaded.definition, about)
        row = await self.definition(target)
        return self.dialects[row.dialect].graph(self.library.loaded(row))

    # --- runs ---

    @overload
    async def start(
        self, workflow: TypedWorkflow[None, R], input: None = None, **more: Unpack[arguments.StartOptions]
    ) -> TypedRun[R]: ...
    @overload
    async def start(
        self, workflow: TypedWorkflow[I, R], input: I, **more: Unpack[arguments.StartOptions]
    ) -> TypedRun[R]: ...
    @overload
    async def start(
        self, workflow: Untyped, input: Value = None, **more: Unpack[arguments.StartOptions]
    ) -> Run: ...
    async def start(
        self,
        workflow: Any,
        input: Value = None,
        *,
        id: str | None = None,
        key: Value = None,
        reference: str | None = None,
        priority: int | None = None,
        model: str | Provider | None = None,
        config: Mapping[str, Any] | None = None,
        secrets: str | None = None,
        offline: bool = False,
        dry_run: bool = False,
        templates: Mapping[str, Any] | None = None,
        skills: Sequence[str] = (),
        traceparent: str | None = None,
    ) -> Run:
        """Starts a run, durable when this returns. The same id with the same definition and input is the
        same run. `priority` (-100 to 100) orders those who wait where the workflow is limited. `model` is PROVIDER[:ARG], or a model object that lives in this process. `templates` are
        further Sources of an agent workflow, by name; `skills` files of Python, FILE.py or FILE.py:NAME. `traceparent`
        is the trace that it belongs to (W3C Trace Context), else one is made of its id."""
        run = id or arguments.new_id()
        if model is not None and not isinstance(model, str):
            model = self.agents.providers.take(run, model)
        arguments.check_start(id, model, config, secrets, templates, skills)
        options_for = partial(
            arguments.run_options,
            model=model,
            secrets=secrets,
            offline=offline,
            dry_run=dry_run,
            templates=templates,
            skills=skills,
            traceparent=traceparent,
        )
        row: DefinitionRow | None = None
        while True:
            try:
                row = row or await self.definition(workflow)
                options, loaded = options_for(row), self.library.loaded(row)
                dialect = self.dialects.loaded.get(row.dialect) or self.dialects[row.dialect]
                given = arguments.checked_input(dialect, loaded, input, options)
                self._check_model(dialect, loaded, options)
                if config:
                    self.configs[run] = dict(config)
                event, blobs = arguments.started(row, dialect.machine, given, options, reference, priority)
                own_key = None if key is None else from_caller(key)
                create = NewRun(row.dialect, row.name, row.version, row.digest, own_key)
                if not self._bridge.seat.decides(run):
                    await self.teach(run, row)
                answer = await self._bridge.asks.ask(partial(Deliver, run, event, create=create, blobs=blobs))
            except TreadleError as refusal:
                row = await self.library.named_before(workflow, id, self.read, row, refusal)
                continue
            typed = partial(dialect.result, loaded) if dialect.is_typed else None
            return TypedRun(self, run, existing="existing" in answer, typed=typed)

    def _check_model(self, dialect: Dialect, loaded: Any, options: Mapping[str, Any]) -> None:
        """Refuses a run that can ask nobody, before it is there: its provider cannot be made, or none is
        chosen and this engine does the work itself. Where others work, one of them may have a model."""
        spec = options.get("model")
        # A script may be wrong for the agents that another dialect calls, too.
        scripted = spec is not None and spec.partition(":")[0] == "scripted"
        own = dialect.asks_models and self.owns
        if scripted or (own and (spec or (self._works and dialect.needs_model(loaded)))):
            self.agents.providers.check(options)

    async def run(self, id: str) -> Run:
        """A handle on a run that is there."""
        if not is_going_on(self._bridge.seat.core, id):
            from treadle.runtime import document

            await self.read(lambda reads: document.row_of(reads, id))
        return Run(self, id)

    async def cell(self, workflow: Any, key: Any = None) -> Run | None:
        """The run behind (workflow, key); None if there is no such cell."""
        found = await self.applications.cell(workflow, key)
        return None if found is None else Run(self, found)

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
        event = Signal(name=name, data=from_caller(data), key=key, by=by)
        submission = arguments.signal_once(id, key)
        return await self.submit(id, event, submission=submission, expected_version=expected_version)

    async def signal_reference(
        self, reference: str, name: str, data: Value = None, *, by: str | None = None
    ) -> Sequence[str]:
        """Signals every run with this business reference that waits for it; their ids."""
        from treadle.runtime import keeping

        reached: list[str] = []
        waiting = partial(keeping.awaiting, reference=reference, name=name, but=reached)
        while found := await self.read(waiting):
            for id, version in found.items():
                with suppress(VersionMismatch, RunNotFound):  # then it is looked at again
                    told = await self.signal(id, name, data, expected_version=version, by=by)
                    reached += [] if told.get("stale") else [id]
        if not reached:
            raise NotWaiting(f"no run with reference {reference!r} waits for the signal {name!r}")
        return sorted(reached)

    async def cancel(self, id: str, reason: str = "", *, by: str | None = None) -> dict[str, Any]:
        """Cancels a run and its children; one that has ended stays as it is."""
        return await self.submit(id, Cancel(reason=reason, by=by))

    async def patch(self, id: str, data: dict[str, Any], *, by: str | None = None) -> dict[str, Any]:
        """Changes a run's data from outside; what waits for it is looked at again."""
        return await self.submit(id, Patch(data=from_caller(data), by=by))

    async def retry(
        self, /, id: str, *, by: str | None = None, definition: Any = None, once: Once = None, **how: Any
    ) -> dict[str, Any]:
        """Moves a stalled or failed run on; `how` is the dialect's: `from_` (for `from`, which is a word of
        Python), `input`, `skip`, `fail`, `budget`. With a `definition` (the mended one) it goes on under that from
        where it stopped, if it fits; refused, nothing changes."""
        asked = arguments.retried(how)
        digest: str | None = None
        if definition is not None:
            digest = (await self.definition(definition)).digest
            if digest in self.library.known:
                await self.operate("learn", deploys.family_value(self.library.family(digest)))
        event = Retry(how=asked, by=by, definition=digest)
        return await self.submit(id, event, submission=once)

    async def fork(
        self,
        id: str,
        *,
        at: int | None = None,
        definition: Any = None,
        new_id: str | None = None,
        by: str | None = None,
    ) -> Run:
        """A new run that goes on from a run's state at a record, perhaps under another definition."""
        from treadle.runtime import keeping

        at = arguments.whole("at", at)
        row = await self.definition(definition) if definition is not None else None
        name = new_id or f"{id}-fork-{os.urandom(4).hex()}"
        if row is not None:
            await self.teach(name, row)
        asked = keeping.fork_asked(id, at=at, definition=row, new_id=name, by=by)
        await self.operate(FORK, asked, home=name)
        return Run(self, name)

    async def replay(self, id: str, *, against: Any = None) -> dict[str, Any]:
        """Decides a run's whole journal again, perhaps by another definition: `{"id", "equal": true}`,
        or the first difference."""
        from treadle.runtime import document

        other = await self.definition(against) if against is not None else None

        def ask(reads: Reads) -> dict[str, Any]:
            instead = other.digest if other is not None else None
            return document.replayed(reads, self.library.registry(reads, instead=instead), id)

        return await self.read(ask, long=True)

    async def transcript(self, id: str, *, node: str | None = None) -> Rows:
        """What an agent run asked its models, tools, functions and people, and what they answered, in order."""
        from .performers.agent.transcript import transcript

        return await self.read(lambda reads: transcript(reads, self.library.registry(reads), id, node=node))

    async def record(self, id: str) -> dict[str, Any]:
        """A run as a test: `script` is a scripted model for an agent, else what the outside answered; `remarks` say
        what it cannot repeat."""
        from .performers.agent.recording import script_of

        shown = await (await self.run(id)).show()
        asks_models = self.dialects[shown["dialect"]].asks_models
        return await self.read(lambda reads: script_of(reads, shown, asks_models=asks_models))

    # --- house-keeping, plug-ins ---

    def traced(self, work: Work) -> str | None:
        """What a worker elsewhere continues, where this engine traces its runs."""
        return self._traces.traceparent(work)

    async def want(self, *runs: str) -> None:
        """Has the work of these runs and their families done, by an engine that does not help others."""
        self.worker.others.want(runs)
        if self.owns and not self.worker.others.helps:
            await self.operate("help", {"runs": [*runs]})

    def tool(
        self, kind: str, *, idempotent: bool = False, pure: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers a function as a tool: `@engine.tool("slack")`; a `pure` one touches nothing outside."""
        return self.tools.tool(kind, idempotent=idempotent, pure=pure)

    def register(self, plugin: Any) -> None:
        """Registers a tool or a skill."""
        from .performers.agent.skill import Skill

        if isinstance(plugin, Skill):
            self.agents.skills.register(plugin)
        else:
            self.tools.admit(plugin)


def _finds_skill(id: str, file: str | None) -> bool | str:
    from .performers.agent.skill_finding import is_there

    return is_there(id, None if file is None else str(Path(file).resolve().parent))


new_id = arguments.new_id

__all__ = ["Engine", "Run", "migrate_store", "new_id", "store_path"]
