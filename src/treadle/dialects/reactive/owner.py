"""The owner of a world's cells: mailboxes, turns, commits, snapshots, applies.

The same loop as the engine's core, in one thread and without waiting: an item is loaded, advanced by the
kernel, and what came of it is appended to the log as one entry. Cells take turns, one item each. Events
from one cell to another leave as inbox rows in the emitter's entry and are taken in the receiver's, so a
world that is cut between the two still delivers exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from treadle.kernel.errors import KernelBug, TreadleError, UnknownWorkflow
from treadle.kernel.history import replay, restore, snapshot_of
from treadle.kernel.model import Apply, Domain, Event, Frame, Patch, Receipt, Reset, Started
from treadle.kernel.run import RunState, Step, advance, error_of, fault
from treadle.kernel.values import Value, decode_trusted, digest_bytes, encode

from .app import App
from .cells import Cells
from .decide import Bound
from .disk import Disk, Row, RunMeta, Tables
from .governance import governed
from .index import EMPTY, CellIndex
from .machine import ReactiveMachine
from .routing import Delivery
from .shadow import History


@dataclass(slots=True)
class Item:
    """One event on its way to a run. `inbox` names the durable row that it was taken from."""

    run: str
    workflow: str | None
    key: Value
    event: Event
    inbox: str | None = None


class Owner:
    def __init__(self, disk: Disk, tables: Tables, *, cell_cache: int) -> None:
        self.disk, self.tables = disk, tables
        self.apps: dict[str, App] = {}
        self.machine = ReactiveMachine()
        self._cache = cell_cache
        self._cells: dict[str, Cells] = {}
        self._heads = Cells(disk, cache=cell_cache)
        self._mail: dict[str, deque[Item]] = {}
        self._ready: deque[str] = deque()
        self._rows: list[Row] = []
        self.app: App

    @staticmethod
    def create(app: App, *, seed: int, cell_cache: int, now_ns: int) -> Owner:
        """A new world: its journal begins with the manifest and an empty snapshot."""
        owner = Owner(Disk(), Tables(), cell_cache=cell_cache)
        owner.attach(app)
        owner.app = app
        owner._stage(["world", seed, now_ns])
        owner.decide([Item(app.name, None, None, Started(definition=app.definition(None).digest))], None)
        owner.snapshot()
        return owner

    @staticmethod
    def open(
        disk: Disk,
        apps: Mapping[str, App],
        *,
        cell_cache: int,
        snapshot: int | None = None,
        genesis: bool = False,
    ) -> Owner:
        """A world from its bytes: a snapshot, and the records after it decided again. A decision that
        comes out differently refuses to open."""
        owner = Owner(disk, Tables.read(disk.log), cell_cache=cell_cache)
        for app in apps.values():
            owner.attach(app)
        covered = 0
        if not genesis and owner.tables.snapshots:
            base = owner.tables.snapshots[-1 if snapshot is None else snapshot]
            owner._heads.root, covered = base["heads"], base["position"]
            for name, root in base["cells"].items():
                owner._cells_of(name).root = root
        for meta in owner.tables.runs.values():
            if meta.positions[-1] >= covered:
                run = owner._load(meta)
                tail = [stored for stored in meta.records if stored.seq > run.seq]
                replay(run, owner.machine, owner.definition, tail)
                owner._keep(run)
        (name,) = [id for id in owner.tables.runs if "/" not in id]
        owner.app = owner.app_of(owner.run_state(name).state["manifest"])
        for id, row in owner.tables.inbox.items():
            owner._enqueue(owner._accepted(id, row))
        return owner

    # --- code ----------------------------------------------------------------------------------------

    def attach(self, app: App) -> None:
        self.apps[app.digest] = app
        self.machine.attach(app)

    def app_of(self, manifest: str) -> App:
        if manifest not in self.apps:
            raise UnknownWorkflow(f"the application at {manifest} is not here", code="CODE_MISSING")
        return self.apps[manifest]

    def definition(self, digest: str) -> Any:
        return self.machine.load(self.tables.definitions[digest])

    def bound(self, digest: str) -> Bound:
        """A run's workflow, to look at: of its own version, or of the active one if that is gone."""
        found = self.definition(digest)
        return found if isinstance(found, Bound) else Bound(self.app, self.app.workflow(found.workflow))

    def manifest_at(self, meta: RunMeta, seq: int) -> str:
        """The manifest under which a record was made."""
        definition = meta.first
        for stored in meta.records[: seq - 1]:
            record = stored.record()
            if record["kind"] == "apply":
                definition = record["event"]["definition"]
        return str(self.tables.definitions[definition]["manifest"])

    # --- runs ----------------------------------------------------------------------------------------

    def _cells_of(self, workflow: str) -> Cells:
        if workflow not in self._cells:
            self._cells[workflow] = Cells(self.disk, cache=self._cache)
        return self._cells[workflow]

    def _cell_key(self, meta: RunMeta) -> bytes:
        return b"" if meta.id == meta.workflow else encode(meta.key)

    def _load(self, meta: RunMeta) -> RunState:
        head = self._heads.read(encode(meta.id))
        if head is None:
            return RunState(
                id=meta.id,
                dialect=self.machine.dialect,
                workflow=meta.workflow,
                version=None,
                definition=meta.first,
                key=meta.key,
            )
        run = restore(head)
        body = self._cells_of(meta.workflow).read(self._cell_key(meta))
        run.state = None if body is None else decode_trusted(body)
        return run

    def run_state(self, id: str) -> RunState:
        return self._load(self.tables.runs[id])

    def _keep(self, run: RunState) -> None:
        """The state goes to the cell, everything else to the head: an index of states alone is a function
        of states alone."""
        meta = self.tables.runs[run.id]
        cells, key = self._cells_of(meta.workflow), self._cell_key(meta)
        state = run.state
        if state is not None or cells.read(key) is not None:
            cells.write(key, None if state is None else encode(state), at_ns=run.last_ns)
        run.state = None
        self._heads.write(encode(run.id), snapshot_of(run), at_ns=run.last_ns)
        run.state = state

    def state_bytes(self, id: str) -> bytes | None:
        meta = self.tables.runs.get(id)
        return None if meta is None else self._cells_of(meta.workflow).read(self._cell_key(meta))

    def exists(self, id: str) -> bool:
        """Whether there is a cell: it has a state, or something of it is open, or it has failed."""
        meta = self.tables.runs.get(id)
        if meta is None:
            return False
        return self.state_bytes(id) is not None or meta.status in ("waiting", "failed")

    def app_state(self) -> Value:
        return self.run_state(self.app.name).state

    # --- the log -------------------------------------------------------------------------------------

    def _stage(self, row: Row) -> None:
        self.tables.apply(row)
        self._rows.append(row)

    def _flush(self) -> None:
        if self._rows:
            self.disk.append(self._rows)
            self._rows = []
            self.tables.entries += 1

    def diagnose(self, code: str, **details: Value) -> None:
        self._stage(["diagnostic", {"code": code, **details}])
        self._flush()

    def set_now(self, now_ns: int) -> None:
        if now_ns != self.tables.now_ns:
            self._stage(["now", now_ns])
            self._flush()

    # --- in ------------------------------------------------------------------------------------------

    def item(self, delivery: Delivery, submission: str | None) -> Item:
        event = Domain(schema=delivery.schema, value=delivery.value, submission=submission)
        return Item(delivery.run, delivery.workflow, delivery.key, event)

    def decide(self, items: list[Item], submission: str | None) -> list[TreadleError]:
        """Decides items from outside, in one commit. Each is its own step: a refusal undoes no other."""
        self.run()
        errors = [error for item in items if (error := self._step(item)) is not None]
        if submission is not None:
            self._stage_submission(submission, items, errors)
        self._flush()
        return errors

    def accept(self, items: list[Item], submission: str | None) -> None:
        """Makes items durable and leaves them to their turns."""
        if submission is not None:
            self._stage_submission(submission, items, [])
        for item in items:
            self._accept(f"in:{self.tables.entries}:{item.run}", item)
        self._flush()

    def _stage_submission(self, id: str, items: list[Item], errors: list[TreadleError]) -> None:
        deliveries = [
            {
                "workflow": i.workflow,
                "key": i.key,
                "run": i.run,
                "schema": i.event.schema,
                "value": i.event.value,
            }
            for i in items
            if isinstance(i.event, Domain) and i.workflow is not None
        ]
        error = errors[0].to_value() if errors else None
        self._stage(["submission", id, {"deliveries": deliveries, "error": error}])

    def _accept(self, id: str, item: Item) -> None:
        event = item.event
        assert isinstance(event, Domain)
        row = {
            "run": item.run,
            "workflow": item.workflow,
            "key": item.key,
            "schema": event.schema,
            "value": event.value,
            "submission": event.submission,
            "source": event.source,
        }
        self._stage(["accepted", id, row])
        self._enqueue(self._accepted(id, row))

    def _accepted(self, id: str, row: Mapping[str, Any]) -> Item:
        event = Domain(**{name: row[name] for name in ("schema", "value", "submission", "source")})
        return Item(row["run"], row["workflow"], row["key"], event, id)

    def _enqueue(self, item: Item) -> None:
        mail = self._mail.setdefault(item.run, deque())
        if not mail:
            self._ready.append(item.run)
        mail.append(item)

    def run(self, turns: int | None = None) -> int:
        """Ready runs take turns, one item each."""
        taken = 0
        while self._ready and (turns is None or taken < turns):
            id = self._ready.popleft()
            mail = self._mail[id]
            item = mail.popleft()
            if mail:
                self._ready.append(id)
            else:
                del self._mail[id]
            error = self._step(item)
            if item.inbox is not None:
                self._stage(["taken", item.inbox])
            if error is not None:
                details = {
                    "run": item.run,
                    "error": error.to_value(),
                    "source": getattr(item.event, "source", None),
                }
                self._stage(["diagnostic", {"code": "event.refused", **details}])
            self._flush()
            taken += 1
        return taken

    def settle(self, receipt: Receipt) -> str:
        """Admits a receipt to the run that asked, whatever the subscriptions say now."""
        self.run()
        run = self.tables.known[receipt.intent]
        if receipt.intent not in self.tables.open:
            self.diagnose("receipt.stale", intent=receipt.intent, run=run)
            return "stale"
        meta = self.tables.runs[run]
        self._step(Item(run, meta.workflow, meta.key, receipt))
        self._flush()
        self.run()
        return "admitted"

    def frame(self, frame: Frame) -> None:
        run = self.tables.known[frame.intent]
        meta = self.tables.runs[run]
        self._stage(["frame", frame.intent, frame.seq])
        if self.bound(meta.definition).workflow.frames:
            self._step(Item(run, meta.workflow, meta.key, frame))
        self._flush()
        self.run()

    # --- one step --------------------------------------------------------------------------------------

    def _step(self, item: Item) -> TreadleError | None:
        """Advances one run by one event; a refusal is returned and leaves no trace."""
        self._pin(item)
        meta = self.tables.runs.get(item.run)
        run = self._fresh(item) if meta is None else self._load(meta)
        event = item.event
        if run.seq == 0 and isinstance(event, Domain):
            event = self._birth(run, event)
        definition = self._definition_of(run)
        try:
            step = advance(run, self.machine, definition, event, at_ns=self.tables.now_ns)
        except Exception as error:
            refusal = error if isinstance(error, TreadleError) else TreadleError.from_value(error_of(error))
            if self._refusable(item, meta):
                return refusal
            run = self._fresh(item) if meta is None else self._load(meta)
            step = fault(run, event, error_of(error), at_ns=self.tables.now_ns)
        self._commit(run, step)
        return None

    def _refusable(self, item: Item, meta: RunMeta | None) -> bool:
        """What has happened outside cannot be refused; except an event for a run that has failed."""
        if isinstance(item.event, Domain):
            return item.event.source is None or (meta is not None and meta.status == "failed")
        return isinstance(item.event, Patch | Reset | Started)

    def _pin(self, item: Item) -> None:
        """After an apply, a cell moves to the new manifest with the first event that it gets."""
        meta = self.tables.runs.get(item.run)
        if meta is None or item.workflow not in self.app.workflows:
            return
        if self.machine.bars(meta.id, meta.status, item.event) is not None:
            return  # it will be refused, and what is refused changes nothing
        wanted = self.app.definition(item.workflow)
        if meta.definition != wanted.digest:
            self._define(wanted.digest, wanted.body)
            run = self._load(meta)
            event = Apply(definition=wanted.digest, was=meta.definition)
            self._commit(
                run, advance(run, self.machine, self.bound(wanted.digest), event, at_ns=self.tables.now_ns)
            )

    def _definition_of(self, run: RunState) -> Any:
        if run.seq == 0:
            self._define(
                run.definition, self.app.definition(None if run.id == self.app.name else run.workflow).body
            )
        return self.definition(run.definition)

    def _define(self, digest: str, body: Value) -> None:
        if digest not in self.tables.definitions:
            self._stage(["definition", digest, body])

    def _fresh(self, item: Item) -> RunState:
        definition = self.app.definition(item.workflow)
        return RunState(
            id=item.run,
            dialect=self.machine.dialect,
            workflow=item.workflow or self.app.name,
            version=None,
            definition=definition.digest,
            key=item.key,
        )

    def _birth(self, run: RunState, event: Domain) -> Started:
        """A cell begins with its first event, in one record. The seed depends on nothing but the world's
        seed and the cell, so that equal worlds give equal ids in any order."""
        seed = sha256(encode([self.tables.seed, run.id])).digest()
        given = {
            "schema": event.schema,
            "value": event.value,
            "submission": event.submission,
            "source": event.source,
        }
        return Started(
            definition=run.definition,
            input={n: v for n, v in given.items() if v is not None},
            seed=seed,
            machine=self.machine.version,
        )

    def _commit(self, run: RunState, step: Step) -> None:
        if run.id not in self.tables.runs:
            self._stage(["run", run.id, run.workflow, run.key, run.definition])
        self._stage(["record", run.id, step.seq, step.body, step.digest])
        self._keep(run)
        for intent in step.opened:
            if intent.kind == "deliver":
                params = intent.params
                schema, value = params["event"]["schema"], step.carried(intent)
                event = Domain(schema=schema, value=value, source=f"{run.id}#{step.seq}")
                self._accept(intent.id, Item(params["run"], params["workflow"], params["key"], event))
        if (owed := run.pending()) is not None:
            raise KernelBug(f"{run.id} owes itself {owed}, which no reactive run does")

    # --- snapshots -------------------------------------------------------------------------------------

    def snapshot(self) -> int:
        self.run()
        cells = {name: cells.materialise() for name, cells in sorted(self._cells.items())}
        taken = {
            "position": self.tables.entries,
            "manifest": self.app.digest,
            "heads": self._heads.materialise(),
            "cells": cells,
            "roots": {name: cells.get(name, EMPTY) for name in self.app.workflows},
            "now_ns": self.tables.now_ns,
        }
        self._stage(["snapshot", taken])
        self._flush()
        return len(self.tables.snapshots) - 1

    def fingerprint(self) -> dict[str, Any]:
        """Everything that must be equal however this world was opened."""
        found: dict[str, Any] = {
            f"root {name}": cells.preview() for name, cells in sorted(self._cells.items())
        }
        for id in sorted(self.tables.runs):
            found[id] = digest_bytes(snapshot_of(self.run_state(id)))
        found["open"] = list(self.tables.open)
        opened = {id for run in self.tables.runs for id in self.run_state(run).open}
        if opened != {*self.tables.open}:
            raise KernelBug("the fold of open work differs from what the runs hold open")
        return found

    def gc(self, keep: int) -> int:
        index, marked = CellIndex(self.disk), {EMPTY}
        for taken in self.tables.snapshots[-keep:]:
            for root in (taken["heads"], *taken["cells"].values()):
                marked.update(index.reachable(root))
        for cells in (self._heads, *self._cells.values()):
            marked.update(entry.state for entry in cells.entries())
        dead = [digest for digest in self.disk.blobs if digest not in marked]
        for digest in dead:
            del self.disk.blobs[digest]
        return len(dead)

    # --- applying --------------------------------------------------------------------------------------

    def blockers(self, app: App) -> list[dict[str, Any]]:
        """What keeps another version from being applied: nothing is abandoned, cleared or hidden."""
        found: list[dict[str, Any]] = []
        for meta in self.tables.runs.values():
            if meta.id == self.app.name:
                continue
            about = {"run": meta.id, "workflow": meta.workflow, "key": meta.key, "status": meta.status}
            intents = [i for i in self.tables.open if self.tables.known[i] == meta.id]
            if intents:
                found.append({**about, "reason": "has open effects", "intents": intents})
            elif meta.status in ("running", "waiting") and self.bound(meta.definition).workflow.terminal:
                found.append({**about, "reason": "is not terminal"})
            elif meta.workflow in app.workflows:
                bound = Bound(app, app.workflows[meta.workflow])
                why = self.machine.compatible(bound, self.run_state(meta.id).state)
                if why is not None:
                    found.append({**about, "reason": f"does not fit the new state: {why}"})
        found += [
            {"run": run, "reason": "has queued events", "count": len(mail)}
            for run, mail in self._mail.items()
        ]
        return found

    def apply(self, app: App, data: dict[str, Any]) -> None:
        """Moves to a new manifest. Every cell is snapshotted first, so none needs the old code to load."""
        self.attach(app)
        errors = self.decide([Item(self.app.name, None, None, governed(data))], None)
        if errors:
            raise errors[0]
        self.snapshot()
        self.app = app

    def histories(self) -> list[History]:
        return [
            History(
                meta.id, meta.workflow, meta.key, [s.record() for s in meta.records], self.run_state(meta.id)
            )
            for meta in self.tables.runs.values()
            if meta.id != self.app.name
        ]
