"""Reactive applications of an engine: publish, look at cells, apply, shadow, snapshot, propose.

What must happen on the owner's thread travels there as an operation, so that all of this works the same
from a process that is only a guest on the store. The owner routes by the manifest that is active there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractContextManager
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from treadle.arguments import named, whole
from treadle.definitions.dialects import Dialects
from treadle.definitions.library import Library
from treadle.dialects.reactive.app import DIALECT_NAME, App
from treadle.dialects.reactive.governance import ApplyBlocked, ProposalRefused
from treadle.dialects.reactive.machine import ReactiveMachine, taken
from treadle.dialects.reactive.shapes import Misfit
from treadle.dialects.reactive.types import shape_of
from treadle.dialects.reactive.workflow import Workflow
from treadle.kernel.errors import AppendConflict, InputInvalid, RunExists, TreadleError, UnknownWorkflow
from treadle.kernel.model import TERMINAL, Event, Reset
from treadle.kernel.showing import kind_of, shown
from treadle.kernel.values import Value
from treadle.lang.definition import Definition
from treadle.runtime import deploys, document
from treadle.runtime.commands import Command, Deliver, Operate
from treadle.runtime.fetching import NotAtHand
from treadle.runtime.ports import Ack
from treadle.runtime.registry import Registry
from treadle.store.rows import DefinitionRow

from . import barrier, cells, snapshots

if TYPE_CHECKING:
    from treadle.runtime.desk import Handing
    from treadle.store.protocol import Reads


T = TypeVar("T")
DRAIN_POLL_S = 0.05


class AppHome(Protocol):
    """What applications need of the engine that they live in."""

    library: Library
    validation: str

    @property
    def dialects(self) -> Dialects: ...
    def homes(self) -> list[str]: ...
    def load(self, target: Any, *, strict: bool = False) -> list[Definition]: ...
    def deploy(self, target: Any, *, strict: bool = False) -> list[Definition]: ...
    def watch(self, run: str) -> AbstractContextManager[Wakes]: ...
    async def read(self, question: Callable[[Reads], T]) -> T: ...
    async def submit(self, run: str, event: Event, /) -> dict[str, Any]: ...
    async def operate(self, name: str, body: dict[str, Any], *, home: str = "") -> Any: ...


class Wakes(Protocol):
    async def changed(self, poll_s: float) -> None: ...


class Applications:
    def __init__(
        self,
        engine: AppHome,
        ask: Callable[[Callable[[Ack], Command]], Awaitable[Any]],
        decides: Callable[[str], bool],
        *,
        token: Callable[[int], str] = token_hex,
    ) -> None:
        """`ask` hands a command to whoever decides it, and gives its answer; `decides`: whether a run is decided here."""
        self._engine = engine
        self._ask_core, self._decides = ask, decides
        self._token = token
        # The active application by name, as last seen; forgotten when something is applied.
        self._active: dict[str, App] = {}
        # The manifest that was applied here last: who read before its commit has seen another one.
        self._applied: dict[str, str] = {}

    @property
    def machine(self) -> ReactiveMachine:
        dialects = self._engine.dialects
        machine = dialects.machines.get(DIALECT_NAME) or dialects[DIALECT_NAME].machine
        assert isinstance(machine, ReactiveMachine)
        return machine

    def _remembered(self, name: str) -> App | None:
        known = self._active.get(name)
        return None if known is None or self._applied.get(name, known.digest) != known.digest else known

    def _app_on(self, reads: Reads, name: str) -> App:
        if (known := self._remembered(name)) is not None:
            return known
        registry = self._engine.library.registry(reads)
        found = cells.active_app(reads, registry, self.machine, name)
        if not cells.is_closed(reads, registry, name):  # then it may be another one at any moment
            self._active[name] = found
        return found

    async def active(self, name: str) -> App:
        """The application that runs under a name. One that is new in this store becomes active now."""
        if self._decides(name):
            if (known := self._remembered(name)) is not None:
                return known
        else:
            # Where it is decided, another one may have been applied since.
            self._applied.pop(name, None)
        self._active.pop(name, None)
        library = self._engine.library
        manifest = await self._engine.read(
            lambda reads: cells.active_manifest(reads, library.registry(reads), name)
        )
        if manifest is None:
            await self.begin(name)
        return await self._engine.read(lambda reads: self._app_on(reads, name))

    async def begin(self, name: str) -> None:
        """Begins an application's run; somebody else may have, under another manifest."""
        try:
            await self._govern(name, None)
        except TreadleError as error:
            if error.code != RunExists.code:
                raise

    # --- events -----------------------------------------------------------------------------------

    async def publish(self, event: Any, value: Any, *, key: Value, submission_id: str | None) -> list[str]:
        schema, raw = (event, value) if isinstance(event, str) else _typed(event, value)
        if submission_id is not None:
            named("submission_id", submission_id)
        reached: list[str] = []
        for name in self._taking(schema):
            app = await self.active(name)
            canonical = app.event(schema, raw)[1]
            found = None
            if submission_id is not None and not self._decides(name):
                # Whoever decides it would pass over what it has answered; the answer is in the store.
                found = await self._answered(name, submission_id)
            if found is None:
                made = cells.items(app, schema, canonical, submission=submission_id, key=key)
                try:
                    found = await self._deliver(
                        app, made, cells.publishing(app, schema, canonical, submission_id)
                    )
                except AppendConflict:
                    # Another member was faster with the same submission: what it was answered is the answer.
                    if (found := await self._answered(name, submission_id)) is None:
                        raise
            reached += found
        return reached

    async def _answered(self, app: str, submission: str | None) -> list[str] | None:
        """The runs that a submission reached, as its durable answer says; None if it has none."""
        if submission is None:
            return None
        known = await self._engine.read(partial(cells.answered, app=app, submission=submission))
        return None if known is None else [run for run in cells.runs_of(known) if run != app]

    async def _deliver(self, app: App, made: list[Deliver], publishing: dict[str, Value]) -> list[str]:
        """One cell: straight to its mailbox. Several: accepted as one where the application is decided.
        The answer is the runs, or the refusal, once all have decided; it says who took the event all the same."""
        if len(made) == 1:
            (item,) = made
            return _reached(app, item, await self._ask_core(partial(_with_ack, item)))
        runs: list[str] = await self._engine.operate(cells.PUBLISH, publishing, home=app.name)
        return [run for run in runs if run != app.name]

    def _taking(self, schema: str) -> list[str]:
        """The applications that know a schema."""
        found = {app.name: None for app in self.machine.apps() if app.knows(schema)}
        if not found:
            raise InputInvalid(
                f"no application that is loaded here knows {schema:.200}; give it with --app FILE:ATTR (engine.deploy(app))",
                details={"schema": schema[:200]},
            )
        return list(found)

    # --- cells ------------------------------------------------------------------------------------

    async def _app_with(self, workflow: str) -> App | None:
        for name in cells.names(self.machine):
            app = await self.active(name)
            if workflow in app.workflows:
                return app
        return None

    async def cells(self, workflow: Workflow | str, *, limit: int | None) -> list[dict[str, Any]]:
        name, limit = _named(workflow), whole("limit", limit, 1)
        library = self._engine.library
        return await self._engine.read(
            lambda reads: cells.listed(reads, library.registry(reads), name, limit=limit)
        )

    async def cell(self, workflow: Workflow | str, key: Any) -> str | None:
        """The id of a cell, if there is one."""
        name = _named(workflow)
        try:
            id = cells.cell_id(await self._app_with(name), name, key)
        except Misfit as misfit:
            what = "it is keyed; name one" if key is None else misfit.message
            raise InputInvalid(f"{shown(key)} is not a key of {name:.200}: {what}") from None
        library = self._engine.library
        found = await self._engine.read(lambda reads: cells.exists(reads, library.registry(reads), id))
        return id if found else None

    async def reset(self, run: str) -> dict[str, Any]:
        return await self._engine.submit(run, Reset())

    # --- versions ---------------------------------------------------------------------------------

    async def apply(self, what: App | str | int, *, app: str | None, wait: bool) -> dict[str, Any]:
        proposal: int | None = None
        asked_deploys: list[dict[str, Any]] = []
        if not isinstance(what, int) or isinstance(what, bool):
            # Only compiled here: what is refused changes nothing, so it is deployed by the apply itself.
            found = await asyncio.to_thread(self._engine.load, what)
            new = _application(found)
            library, validation = self._engine.library, self._engine.validation
            asked_deploys = [library.deploy_of(one, validation=validation).to_value() for one in found]
        else:
            proposal = what
            name = self._chosen(app)
            known = await self._ask(lambda reads, registry: cells.proposed(reads, registry, name, what))
            if known["status"] != "approved":
                raise ProposalRefused(f"proposal {what} is {known['status']}; approve it first")
            new = self._code(known["manifest"])
        asked = {"app": new.name, "manifest": new.digest, "proposal": proposal, "deploys": asked_deploys}
        while True:
            try:
                await barrier.apply(self._engine, asked, token=self._token(8))
            except TreadleError as error:
                if (
                    error.code != ApplyBlocked.code
                    or not wait
                    or not await self._moves(error.details["blockers"])
                ):
                    raise
                with self._engine.watch("") as watch:
                    await watch.changed(poll_s=DRAIN_POLL_S)
                continue
            self._active[new.name] = new
            return {"app": new.name, "manifest": new.digest, "proposal": proposal}

    async def _moves(self, blockers: list[dict[str, Any]]) -> bool:
        """Whether waiting can help: something that blocks goes on by itself, or has come to its end since."""

        def ask(reads: Reads) -> bool:
            rows = [row for blocker in blockers if (row := reads.run(blocker["run"])) is not None]
            return any(row.status in TERMINAL or document.moves(reads, row, timers=True) for row in rows)

        return any(b["reason"] == "has queued events" for b in blockers) or await self._engine.read(ask)

    async def shadow(self, what: App | int, *, app: str | None, run: str | None) -> dict[str, Any]:
        if run is not None:
            named("run", run)
        if isinstance(what, App):
            self._engine.load(what)
            return await self._ask(lambda reads, registry: cells.report(reads, registry, what, run=run))
        name, number = self._chosen(app), _number(what)
        found = await self._ask(lambda reads, registry: cells.proposed(reads, registry, name, number))
        candidate = self._code(found["manifest"])
        seen = await self._ask(lambda reads, registry: cells.report(reads, registry, candidate, run=run))
        await self._govern(name, {"op": "shadow", "proposal": number})
        return seen

    def loaded(self, name: str, manifest: str) -> App:
        """The code of an application that is loaded here, by the digest of its manifest."""
        found = self._code(manifest)
        if found.name != name:
            raise InputInvalid(f"the manifest {manifest} is of {found.name}, not of {name}", where="manifest")
        return found

    async def snapshot(self) -> dict[str, Any]:
        """The last snapshot of every application that is loaded here, after taking one."""
        for name in cells.names(self.machine):
            await self.active(name)
            asked = {"app": name, "fresh": True}
            while True:
                try:
                    answer = await self._engine.operate("snapshot", asked, home=name)
                except TreadleError as error:
                    if error.code != "NOT_QUIET":
                        raise
                    await asyncio.sleep(DRAIN_POLL_S)
                    continue
                if answer["done"]:
                    break
                asked = {"app": name}
        return await self._engine.read(lambda reads: dict(reads.documents(snapshots.SNAPSHOTS)))

    async def compare(self, before: str, after: str) -> list[dict[str, Any]]:
        """The cells in which two roots of one workflow differ."""
        return await self._engine.read(lambda reads: snapshots.differences(reads, before, after))

    async def propose(self, app: App) -> int:
        if not isinstance(app, App):
            raise InputInvalid(f"an application is proposed, and this is {kind_of(app)}")
        await asyncio.to_thread(self._engine.deploy, app)
        answer = await self._govern(app.name, {"op": "propose", "manifest": app.digest})
        return await self._engine.read(lambda reads: cells.submitted(reads, app.name, int(answer["seq"])))

    async def decide(self, number: int, op: str, *, app: str | None) -> None:
        await self._govern(self._chosen(app), {"op": op, "proposal": _number(number)})

    async def proposals(self, app: str | None) -> list[dict[str, Any]]:
        name = self._chosen(app)
        return await self._ask(lambda reads, registry: cells.proposals(reads, registry, name))

    async def _govern(self, name: str, data: dict[str, Any] | None) -> dict[str, Any]:
        return dict(await self._engine.operate("govern", {"app": name, "data": data}, home=name))

    async def _ask(self, question: Callable[[Reads, Registry], T]) -> T:
        return await self._engine.read(lambda reads: question(reads, self._engine.library.registry(reads)))

    def _chosen(self, app: str | None) -> str:
        """The application that is named, or the only one that there is."""
        if app is not None:
            return named("app", app)
        found = cells.names(self.machine)
        if len(found) != 1:
            raise InputInvalid(f"name the application: {', '.join(found) or 'none'} is loaded here")
        return found[0]

    def _code(self, manifest: str) -> App:
        app = self.machine.app(manifest)
        if app is None:
            raise UnknownWorkflow(
                f"the code of the manifest {manifest} is not loaded here; start it with --app FILE:ATTR",
                code="CODE_MISSING",
            )
        return app

    # --- on the core thread -----------------------------------------------------------------------

    def check_owner(self, reads: Reads, row: DefinitionRow) -> None:
        """A workflow's cells belong to one application of the store."""
        for version in reads.versions(row.name):
            known = reads.definition(version.digest)
            if known is not None and known.dialect == DIALECT_NAME and known.body["app"] != row.body["app"]:
                raise taken(row.name, known.body["app"], row.body["app"])

    def learn(self, row: DefinitionRow, fetched: Collection[str]) -> None:
        """Has the code of a definition that another process deploys loaded from the file it came from, beside the core:
        it is somebody's module, which may do anything as it is imported. Where that was tried, it is as it is."""
        if row.file is None or self.machine.app(row.body["manifest"]) is not None:
            return
        if (what := f"{row.name} of {row.file}") not in fetched:
            raise NotAtHand(what, partial(self._engine.load, row.file))

    def _current(self, reads: Reads, name: str) -> App | None:
        try:
            return self._app_on(reads, name)
        except UnknownWorkflow:
            return None

    def perform(self, desk: Handing, asked: Operate) -> Any:
        body = asked.body
        match asked.name:
            case "apply":
                for deploy in body.get("deploys", ()):
                    row = deploys.Deploy.from_value(deploy).row
                    self.check_owner(desk.store, row)
                    self.learn(row, asked.fetched)
                new = self._code(body["manifest"])
                # What is remembered may be from before somebody else applied something.
                self._active.pop(new.name, None)
                current = self._current(desk.store, new.name)
                self._active.pop(new.name, None)
                if current is None or current.digest != new.digest:
                    barrier.check(desk, new.name, body.get("token"))
                answer = cells.apply(desk, current, new, asked)
                self._applied[new.name] = new.digest
                return answer
            case barrier.BARRIER:
                for deploy in body.get("deploys", ()):
                    self.learn(deploys.Deploy.from_value(deploy).row, asked.fetched)
                self._active.pop(body["app"], None)
                return barrier.perform(desk, asked, self._code, partial(self._current, desk.store))
            case "govern":
                here = [app for app in self.machine.apps() if app.name == body["app"]]
                if not here:
                    raise UnknownWorkflow(
                        f"the process that owns the store ({os.getpid()}) does not have the application "
                        f"{body['app']!r}; start that one with --app FILE:ATTR, or give it to this one by file",
                        code="CODE_MISSING",
                    )
                return cells.govern(desk, here[0], body["data"], asked)
            case cells.PUBLISH:
                return cells.publish(desk, self._app_on(desk.store, body["app"]), asked)
            case "snapshot":
                app = self._app_on(desk.store, body["app"])
                return snapshots.page(desk, app, fresh=bool(body.get("fresh")))
            case name:
                raise InputInvalid(f"no operation {name!r} is known")


def _application(found: list[Definition]) -> App:
    apps = [one.code for one in found if isinstance(one.code, App)]
    if not apps or any(app is not apps[0] for app in apps):
        names = ", ".join(dict.fromkeys(app.name for app in apps)) or "none"
        raise InputInvalid(
            f"one application is applied at a time, and here are {names}; name it FILE.py:ATTR"
        )
    return apps[0]


def _named(workflow: Workflow | str) -> str:
    return workflow.name if isinstance(workflow, Workflow) else named("workflow", workflow)


def _number(given: object) -> int:
    """The number of a proposal."""
    number = whole("the number of a proposal", given, 1)
    if number is None:
        raise InputInvalid("name a proposal by its number")
    return number


def _typed(event: Any, value: Any) -> tuple[str, Any]:
    shape = shape_of(type(event))
    if shape is None or shape.schema is None or value is not None:
        raise InputInvalid(
            "publish takes an object of a class with rx.schema, or a schema's name and a value"
        )
    return shape.schema, event


def _reached(app: App, item: Deliver, answer: dict[str, Any]) -> list[str]:
    """The cells that an event reached, as the run that took it answers."""
    runs = answer.get("runs") or [answer.get("run", item.run)]
    return [run for run in runs if run != app.name]


def _with_ack(item: Deliver, ack: Ack) -> Deliver:
    item.ack = ack
    return item
