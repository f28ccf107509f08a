"""A whole reactive application in memory: `rx.testing.World`.

Synchronous and deterministic: equal calls give equal ids, the clock moves only by `advance`, nothing runs
unless it is told to. It is the kernel's own `advance` and `replay` over a log of bytes (`disk.py`) and the
same cell layers as the engine (`cells.py`), so what holds here is what the kernel does, not a model of it.
`reopen` makes another world from the bytes alone.

Executors do not run here; a test answers for them with `ok`, `error`, `timeout`, `receipt`, `frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from treadle.kernel.errors import InputInvalid, SecretMissing, TreadleError
from treadle.kernel.model import Domain, Frame, OpenIntent, Receipt, Reset
from treadle.kernel.values import Value, decode, encode, to_value
from treadle.lang.duration import parse_duration

from . import governance
from .app import App
from .cells import CACHE_ENTRIES
from .governance import ApplyBlocked, ProposalRefused, governed
from .index import CellIndex
from .machine import effect_name, timer_params
from .owner import Item, Owner
from .routing import Delivery, key_order, run_id
from .shadow import shadow
from .shapes import Misfit, moment_of
from .types import shape_of
from .views import CellRow, Intent, Proposal, Record, Snapshot
from .workflow import Workflow

START_NS = 1_800_000_000 * 10**9


class World:
    """`world = World(app); world.send(OrderCreated(...)); world.ok(world.open()[0], ...)`."""

    def __init__(
        self,
        app: App,
        *,
        seed: int = 0,
        cell_cache: int = CACHE_ENTRIES,
        secrets: Mapping[str, str] | Callable[[str], str | None] | None = None,
        _owner: Owner | None = None,
    ) -> None:
        if secrets is None and any(effect.params.secrets for effect in app.effects.values()):
            raise SecretMissing(f"{app.name} uses secrets: give World(app, secrets={{...}})")
        self._secrets = secrets
        self._cache = cell_cache
        self._owner = _owner or Owner.create(app, seed=seed, cell_cache=cell_cache, now_ns=START_NS)

    # --- in ----------------------------------------------------------------------------------------

    def send(
        self,
        event: Any,
        value: Any = None,
        *,
        key: Any = None,
        submission_id: str | None = None,
        run: bool = True,
    ) -> list[Delivery]:
        """Publishes an event: a typed object, or a schema's name with a raw value or canonical CBOR.
        Raises TreadleError where it is refused; then nothing has changed. With run=False it is only
        queued, durably; `run()` then decides, and a refusal is a diagnostic."""
        owner = self._owner
        if submission_id is not None and submission_id in owner.tables.submissions:
            return self._answer(owner.tables.submissions[submission_id])
        schema, canonical = self._canonical(event, value)
        deliveries = owner.app.route(schema, canonical)
        if key is not None:
            self._check_key(deliveries, key)
        items = [owner.item(d, submission_id) for d in deliveries]
        if not items:
            data = {"schema": schema, "value": canonical, "submission": submission_id}
            items = [Item(owner.app.name, None, None, Domain(**data))]
        if not run:
            owner.accept(items, submission_id)
            return deliveries
        owner.run()  # what was queued before comes first
        errors = owner.decide(items, submission_id)
        self.run()
        if errors:
            raise errors[0]
        return deliveries

    def run(self, turns: int | None = None) -> int:
        """Lets ready cells take turns, one event each, until none is left (or `turns` were taken).
        A timer whose deadline has passed fires at once."""
        taken = self._owner.run(turns)
        if turns is None:
            self._fire(self._owner.tables.now_ns)
        return taken

    def _answer(self, outcome: Value) -> list[Delivery]:
        if outcome["error"] is not None:
            raise TreadleError.from_value(outcome["error"])
        return [Delivery(**delivery) for delivery in outcome["deliveries"]]

    def _canonical(self, event: Any, value: Any) -> tuple[str, Value]:
        if not isinstance(event, str):
            if value is not None:
                raise InputInvalid("send takes a typed event, or a schema's name and a value")
            return self._owner.app.event(event)
        return self._owner.app.event(event, value)

    def _check_key(self, deliveries: list[Delivery], key: Any) -> None:
        for delivery in deliveries:
            workflow = self._owner.app.workflow(delivery.workflow)
            if workflow.keyed and self._key(workflow, key) != delivery.key:
                raise InputInvalid(f"the key is {key!r}, but the event is for {delivery.key!r}")

    # --- what effects answer -------------------------------------------------------------------------

    def ok(self, intent: Intent | str, value: Any = None) -> str:
        """Settles an effect with its receipt. Raises if the value does not fit the receipt's type."""
        open_ = self._owner.tables.open.get(_id(intent))
        if open_ is not None and open_.kind != "timer":
            effect = self._owner.app.effects.get(open_.kind)
            if effect is not None:
                try:
                    value = effect.receipt.canon(value)
                except Misfit as misfit:
                    raise InputInvalid(f"{open_.kind}: ${''.join(misfit.path)}: {misfit.message}") from None
        return self.receipt(intent, "ok", value)

    def error(self, intent: Intent | str, message: str = "", *, error_class: str = "transport") -> str:
        error: dict[str, Any] = {
            "class": error_class,
            "code": "FAILED",
            "message": message,
            "where": None,
            "details": {},
        }
        return self.receipt(intent, "error", error)

    def timeout(self, intent: Intent | str) -> str:
        error: dict[str, Any] = {
            "class": "timeout",
            "code": "TIMEOUT",
            "message": "timed out",
            "where": None,
            "details": {},
        }
        return self.receipt(intent, "timeout", error)

    def receipt(self, intent: Intent | str, status: Any, payload: Any = None) -> str:
        """Brings any payload, fitting or not, for any intent. Says what became of it; never raises."""
        owner, id = self._owner, _id(intent)
        open_ = owner.tables.open.get(id)
        if open_ is None:
            found = "stale" if id in owner.tables.known else "unknown"
            owner.diagnose(f"receipt.{found}", intent=id, run=owner.tables.known.get(id))
            return found
        payload = self._payload(open_, status, payload)
        by = None
        if (effect := owner.app.effects.get(open_.kind)) is not None:
            by = effect.entrypoint
        if status == "ok":
            receipt = Receipt(intent=id, status="ok", value=payload, by=by)
        else:
            error = (
                payload
                if isinstance(payload, dict)
                else {"class": "transport", "message": str(payload or "")}
            )
            receipt = Receipt(intent=id, status=status, error=error, by=by)
        became = owner.settle(receipt)
        self.run()
        return became

    def _payload(self, intent: OpenIntent, status: str, payload: Any) -> Value:
        shape = shape_of(type(payload))
        try:
            effect = self._owner.app.effects.get(intent.kind)
            if status == "ok" and effect is not None:
                return effect.receipt.canon(payload)
        except Misfit:
            pass  # it goes in as it is, and is found out there
        try:
            value = shape.canon(payload) if shape is not None else to_value(payload)
            encode(value)
        except (Misfit, TreadleError):
            return {"not a value": type(payload).__name__}
        return value

    def frame(self, intent: Intent | str, kind: str, value: Any = None, *, seq: int | None = None) -> str:
        """Progress of an effect: "admitted", or "dropped" with a diagnostic."""
        owner, id = self._owner, _id(intent)
        owner.run()
        last = owner.tables.frames.get(id, 0)
        seq = last + 1 if seq is None else seq
        if id not in owner.tables.open:
            owner.diagnose("stream.unknown_intent", intent=id, frame=seq)
            return "dropped"
        if seq <= last:
            owner.diagnose("stream.non_monotonic", intent=id, frame=seq, last=last)
            return "dropped"
        if seq > last + 1:
            owner.diagnose("stream.gap", intent=id, frame=seq, last=last)
        owner.frame(Frame(intent=id, seq=seq, type=kind, value=to_value(value)))
        self.run()
        return "admitted"

    def advance(self, duration: str | float | timedelta) -> None:
        """Moves the clock, firing timers in the order of their deadlines."""
        if isinstance(duration, timedelta):
            passes_ns = duration // timedelta(microseconds=1) * 1000
        else:
            passes_ns = parse_duration(duration)
        until = self._owner.tables.now_ns + passes_ns
        self._fire(until)
        self._owner.set_now(until)

    def _fire(self, until: int) -> None:
        owner = self._owner
        while True:
            owner.run()
            due = [i for i in owner.tables.open.values() if i.due_ns is not None and i.due_ns <= until]
            if not due:
                break
            first = min(due, key=lambda i: (i.due_ns, i.id))
            owner.set_now(max(owner.tables.now_ns, first.due_ns or 0))
            owner.settle(Receipt(intent=first.id))

    def reset(self, wf: Workflow | str, key: Any = None) -> None:
        """Lets a failed cell take events again, from the state it had."""
        workflow, id = self._run_id(wf, key)
        if not self._owner.exists(id):
            raise InputInvalid(f"there is no cell {id}")
        errors = self._owner.decide([Item(id, workflow.name, self._key(workflow, key), Reset())], None)
        if errors:
            raise errors[0]

    # --- out -----------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return moment_of(self._owner.tables.now_ns)

    @property
    def manifest_digest(self) -> str:
        return self._owner.app.digest

    def _key(self, workflow: Workflow, key: Any) -> Value:
        if workflow.key is None:
            return None
        try:
            return workflow.key.canon(key)
        except Misfit as misfit:
            raise InputInvalid(f"{key!r} is not a key of {workflow.name}: {misfit.message}") from None

    def _run_id(self, wf: Workflow | str, key: Any) -> tuple[Workflow, str]:
        workflow = self._owner.app.workflow(wf)
        return workflow, run_id(workflow.name, self._key(workflow, key), keyed=workflow.keyed)

    def open(
        self, effect: Any = None, *, workflow: Workflow | str | None = None, key: Any = None
    ) -> list[Intent]:
        """Open effects in the order in which they were asked for."""
        wanted = getattr(effect, "name", effect)
        name = getattr(workflow, "name", workflow)
        found = [self._intent(intent) for intent in self._owner.tables.open.values()]
        return [
            intent
            for intent in found
            if (wanted is None or intent.effect == wanted)
            and (name is None or intent.workflow == name)
            and (key is None or intent.key == key)
        ]

    def _intent(self, intent: OpenIntent) -> Intent:
        meta = self._owner.tables.runs[self._owner.tables.known[intent.id]]
        bound = self._owner.bound(meta.definition)
        effect = bound.workflow.effects.get(intent.kind)
        return Intent(
            id=intent.id,
            effect=effect_name(intent),
            params=timer_params(intent) if effect is None else effect.params.load(intent.params["params"]),
            ref=intent.ref or None,
            workflow=meta.workflow,
            key=None if bound.workflow.key is None else bound.workflow.key.load(meta.key),
            seq=intent.seq,
            due_ns=intent.due_ns,
            idempotency_key=intent.idempotency_key,
        )

    def state(self, wf: Workflow | str, key: Any = None) -> Any:
        workflow, id = self._run_id(wf, key)
        body = self._owner.state_bytes(id)
        return None if body is None else workflow.state.load(decode(body))

    def status(self, wf: Workflow | str, key: Any = None) -> str | None:
        _, id = self._run_id(wf, key)
        return self._owner.tables.runs[id].status if self._owner.exists(id) else None

    def cells(self, wf: Workflow | str) -> list[CellRow]:
        """The cells of a workflow, by key."""
        workflow, owner = self._owner.app.workflow(wf), self._owner
        rows = []
        found = [m for m in owner.tables.runs.values() if m.workflow == workflow.name and owner.exists(m.id)]
        for meta in sorted(found, key=lambda meta: key_order(meta.key)):
            body = owner.state_bytes(meta.id)
            key = None if workflow.key is None else workflow.key.load(meta.key)
            rows.append(CellRow(key, meta.status, 0 if body is None else len(body), meta.last_ns))
        return rows

    def journal(self, wf: Workflow | str | None = None, key: Any = None) -> list[Record]:
        """Records in the order in which they were made: of one cell, of a workflow, or of all."""
        owner = self._owner
        name = getattr(wf, "name", wf)
        only = self._run_id(wf, key)[1] if wf is not None and key is not None else None
        rows = [
            (position, index, meta.id, stored)
            for meta in owner.tables.runs.values()
            if (name is None or meta.workflow == name) and (only is None or meta.id == only)
            for index, (position, stored) in enumerate(zip(meta.positions, meta.records, strict=True))
        ]
        return [self._record(id, stored) for _, _, id, stored in sorted(rows, key=lambda row: row[:3])]

    def _record(self, id: str, stored: Any) -> Record:
        meta = self._owner.tables.runs[id]
        record = stored.record()
        kind, event = record["kind"], record["event"]
        if (
            kind == "started"
            and event.get("input") is not None
            and meta.workflow in self._owner.app.workflows
        ):
            # A cell begins with its first event: one record holds both.
            kind, event = "event", event["input"]
        workflow = (
            self._owner.bound(meta.definition).workflow if meta.workflow != self._owner.app.name else None
        )
        opened = []
        for value in record.get("opened", ()):
            if value["id"] in self._owner.tables.known:
                opened.append(self._intent(OpenIntent(**value, seq=record["seq"], at_ns=record["at"])))
        log = record.get("log") or {}
        return Record(
            seq=record["seq"],
            kind=kind,
            workflow=meta.workflow,
            key=meta.key if workflow is None or workflow.key is None else workflow.key.load(meta.key),
            event=event,
            events=[
                {name: item for name, item in told.items() if name != "type"}
                for told in record.get("events", ())
                if told["type"] == "event"
            ],
            opened=opened,
            cancelled=list(record.get("cancelled", ())),
            status=record["status"],
            digest="sha256:" + stored.digest.hex(),
            state_digest="sha256:" + log["state"] if "state" in log else None,
            at_ns=record["at"],
            manifest=self._owner.manifest_at(meta, record["seq"]),
        )

    def diagnostics(self) -> list[dict[str, Any]]:
        """What was refused, dropped or odd; never part of a journal."""
        return list(self._owner.tables.diagnostics)

    def secret(self, name: str) -> str:
        """What an executor would be given for a secret."""
        given = self._secrets or {}
        value = given(name) if callable(given) else given.get(name)
        if value is None:
            raise SecretMissing(f"no secret {name!r}")
        return value

    # --- durable bytes ---------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Lets the queue run empty, then puts every changed cell into its workflow's index."""
        number = self._owner.snapshot()
        taken = self._owner.tables.snapshots[number]
        return Snapshot(dict(taken["roots"]), number, taken["manifest"])

    def snapshots(self) -> list[Snapshot]:
        return [
            Snapshot(dict(s["roots"]), n, s["manifest"]) for n, s in enumerate(self._owner.tables.snapshots)
        ]

    def compare(self, before: Snapshot, after: Snapshot) -> dict[str, list[Any]]:
        """The keys whose cells differ between two snapshots, by workflow."""
        index, found = CellIndex(self._owner.disk), {}
        for name, root in after.roots.items():
            pairs = index.changes(before.roots.get(name, root), root)
            keys = [entry.key for pair in pairs if (entry := pair[0] or pair[1]) is not None]
            found[name] = [decode(key) if key else None for key in keys]
        return found

    def reopen(self, *, at: Snapshot | int | None = None) -> World:
        """Another world from the durable bytes: from the last snapshot (or `at`) and the tail after it."""
        number = at.number if isinstance(at, Snapshot) else at
        owner = Owner.open(self._owner.disk.copy(), self._owner.apps, cell_cache=self._cache, snapshot=number)
        return World(owner.app, cell_cache=self._cache, secrets=self._secrets or {}, _owner=owner)

    def assert_replays(self) -> None:
        """Deciding everything again from the journal, and from every snapshot, ends in these bytes."""
        expected = self._owner.fingerprint()
        for cut in (-1, *range(len(self._owner.tables.snapshots))):
            owner = Owner.open(
                self._owner.disk.copy(),
                self._owner.apps,
                cell_cache=self._cache,
                snapshot=cut,
                genesis=cut < 0,
            )
            got = owner.fingerprint()
            names = {**expected, **got}
            different = [name for name in names if expected.get(name) != got.get(name)]
            source = "the journal" if cut < 0 else f"snapshot {cut}"
            assert not different, f"replay from {source} differs in {different}"

    def gc(self, *, keep: int = 1) -> int:
        """Removes blobs that no kept snapshot reaches; the last `keep` snapshots are the only roots."""
        return self._owner.gc(keep)

    # --- applying ----------------------------------------------------------------------------------------

    def apply(self, what: App | int) -> None:
        """Moves to another version: of an application given here, or of an approved proposal. Refused
        with details["blockers"] unless everything is quiescent."""
        owner = self._owner
        data: dict[str, Any] = {"op": "apply"}
        if isinstance(what, App):
            app = what
        else:
            proposal = governance.find(owner.app_state(), what)
            if proposal["status"] != "approved":
                raise ProposalRefused(f"proposal {what} is {proposal['status']}; approve it first")
            app, data["proposal"] = owner.app_of(proposal["manifest"]), what
        self._check_name(app)
        blockers = owner.blockers(app)
        if blockers:
            first = blockers[0]
            raise ApplyBlocked(
                f"{len(blockers)} things keep {app.name} from being applied; the first: {first['run']} {first['reason']}",
                details={"blockers": blockers},
            )
        owner.apply(app, {**data, "manifest": app.digest})

    def propose(self, app: App) -> int:
        self._check_name(app)
        self._owner.attach(app)
        self._govern({"op": "propose", "manifest": app.digest})
        return len(self.proposals())

    def shadow(self, id: int) -> dict[str, Any]:
        """Lets the candidate decide what was decided so far, beside the real cells, and reports what it
        did. It says nothing of what did not run."""
        owner = self._owner
        proposal = governance.find(owner.app_state(), id)
        report = shadow(owner.app_of(proposal["manifest"]), owner.histories())
        self._govern({"op": "shadow", "proposal": id})
        return report

    def approve(self, id: int) -> None:
        self._govern({"op": "approve", "proposal": id})

    def reject(self, id: int) -> None:
        self._govern({"op": "reject", "proposal": id})

    def proposals(self) -> list[Proposal]:
        return [Proposal(p["id"], p["status"], p["manifest"]) for p in self._owner.app_state()["proposals"]]

    def _check_name(self, app: App) -> None:
        if app.name != self._owner.app.name:
            raise InputInvalid(f"this world runs {self._owner.app.name}, not {app.name}")

    def _govern(self, data: dict[str, Any]) -> None:
        errors = self._owner.decide([Item(self._owner.app.name, None, None, governed(data))], None)
        if errors:
            raise errors[0]


def _id(intent: Intent | str) -> str:
    return intent if isinstance(intent, str) else intent.id
