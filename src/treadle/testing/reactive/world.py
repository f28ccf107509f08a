"""A whole reactive application in memory: `rx.testing.World`.

Synchronous and deterministic: equal calls give equal ids, the clock moves only by `advance`, nothing runs
unless it is told to. What decides is the engine's own core on a store in memory (`host.py`), and what is asked
of it are the engine's own operations on applications (`treadle.apps`): a world has no rules of its own.
`reopen` makes another world from the stored bytes alone.

Executors do not run here; a test answers for them with `ok`, `error`, `timeout`, `receipt`, `frame`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from treadle.apps import cells as apps
from treadle.apps import snapshots
from treadle.dialects.reactive.app import App
from treadle.dialects.reactive.governance import ProposalRefused
from treadle.dialects.reactive.machine import effect_name, timer_params
from treadle.dialects.reactive.routing import Delivery, key_order, run_id
from treadle.dialects.reactive.shapes import Misfit, moment_of
from treadle.dialects.reactive.types import shape_of
from treadle.dialects.reactive.workflow import Workflow
from treadle.kernel.errors import InputInvalid, SecretMissing, TreadleError
from treadle.kernel.limits import HOT_RUNS_MAX
from treadle.kernel.model import Frame, OpenIntent, Receipt, Reset
from treadle.kernel.values import Value, encode, to_value
from treadle.lang.duration import parse_duration
from treadle.runtime.commands import Deliver, FrameSent, message_to_bytes
from treadle.runtime.hot import Hot

from . import journal, replaying
from .host import WorldHost
from .views import CellRow, Intent, Proposal, Record, Snapshot

START_NS = 1_800_000_000 * 10**9


class World:
    """`world = World(app); world.send(OrderCreated(...)); world.ok(world.open()[0], ...)`."""

    def __init__(
        self,
        app: App,
        *,
        seed: int = 0,
        cell_cache: int = HOT_RUNS_MAX,
        secrets: Mapping[str, str] | Callable[[str], str | None] | None = None,
        _host: WorldHost | None = None,
    ) -> None:
        if secrets is None and any(effect.params.secrets for effect in app.effects.values()):
            raise SecretMissing(f"{app.name} uses secrets: give World(app, secrets={{...}})")
        self._secrets = secrets
        self._cache = cell_cache
        self._app = app
        self._host = _host or WorldHost(b"", [app], seed=seed, now_ns=START_NS, cell_cache=cell_cache)
        if _host is None:
            self._host.operate("govern", {"app": app.name, "data": None})
            self.snapshot()

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
        if submission_id is not None and (known := self._answered(submission_id)) is not None:
            return known
        schema, canonical = self._canonical(event, value)
        deliveries = self._app.route(schema, canonical)
        if key is not None:
            self._check_key(deliveries, key)
        items = apps.items(self._app, schema, canonical, submission=submission_id)
        if not run:
            self._host.leave([message_to_bytes(item) for item in items])
            return deliveries
        self._host.run()  # what was queued before comes first
        self._host.publish(items, apps.publishing(self._app, schema, canonical, submission_id))
        return deliveries

    def run(self, turns: int | None = None) -> int:
        """Lets ready cells take turns, one event each, until none is left (or `turns` were taken).
        A timer whose deadline has passed fires at once."""
        return self._host.run(turns)

    def _answered(self, submission: str) -> list[Delivery] | None:
        """What was delivered under a submission id, or its refusal; None if it is new."""
        known = apps.answered(self._host.store, self._app.name, submission)
        if known is None:
            return None
        rows = [self._host.store.run(run) for run in apps.runs_of(known)]
        return [
            journal.delivery(self._host, row, submission)
            for row in rows
            if row is not None and row.id != self._app.name
        ]

    def _canonical(self, event: Any, value: Any) -> tuple[str, Value]:
        if not isinstance(event, str):
            if value is not None:
                raise InputInvalid("send takes a typed event, or a schema's name and a value")
            return self._app.event(event)
        return self._app.event(event, value)

    def _check_key(self, deliveries: list[Delivery], key: Any) -> None:
        for delivery in deliveries:
            workflow = self._app.workflow(delivery.workflow)
            if workflow.keyed and self._key(workflow, key) != delivery.key:
                raise InputInvalid(f"the key is {key!r}, but the event is for {delivery.key!r}")

    # --- what effects answer -------------------------------------------------------------------------

    def ok(self, intent: Intent | str, value: Any = None) -> str:
        """Settles an effect with its receipt. Raises if the value does not fit the receipt's type."""
        id = _id(intent)
        if id in self._host.store.open:
            hot, open_ = self._host.intent(id)
            effect = self._host.bound(hot, self._app).workflow.effects.get(open_.kind)
            if effect is not None:
                try:
                    value = effect.receipt.canon(value)
                except Misfit as misfit:
                    raise InputInvalid(f"{open_.kind}: ${''.join(misfit.path)}: {misfit.message}") from None
        return self.receipt(intent, "ok", value)

    def error(self, intent: Intent | str, message: str = "", *, error_class: str = "transport") -> str:
        error: dict[str, Any] = {"class": error_class, "code": "FAILED", "message": message}
        return self.receipt(intent, "error", {**error, "where": None, "details": {}})

    def timeout(self, intent: Intent | str) -> str:
        error: dict[str, Any] = {"class": "timeout", "code": "TIMEOUT", "message": "timed out"}
        return self.receipt(intent, "timeout", {**error, "where": None, "details": {}})

    def receipt(self, intent: Intent | str, status: Any, payload: Any = None) -> str:
        """Brings any payload, fitting or not, for any intent. Says what became of it; never raises."""
        host, id = self._host, _id(intent)
        host.run()
        if id not in host.store.known:
            host.diagnose("", "receipt.unknown", intent=id)
            return "unknown"
        if id not in host.store.open:
            host.ask(Deliver(host.row_of(id).id, Receipt(intent=id)))
            return "stale"
        hot, open_ = host.intent(id)
        effect = host.bound(hot, self._app).workflow.effects.get(open_.kind)
        by = None if effect is None else effect.entrypoint
        value = self._payload(hot, open_, status, payload)
        if status == "ok":
            receipt = Receipt(intent=id, value=value, by=by)
        else:
            error = value if isinstance(value, dict) else {"class": "transport", "message": str(value or "")}
            receipt = Receipt(intent=id, status=status, error=error, by=by)
        host.ask(Deliver(hot.state.id, receipt))
        return "admitted"

    def _payload(self, hot: Hot, intent: OpenIntent, status: str, payload: Any) -> Value:
        shape = shape_of(type(payload))
        try:
            effect = self._host.bound(hot, self._app).workflow.effects.get(intent.kind)
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
        host, id = self._host, _id(intent)
        host.run()
        if id not in host.store.open:
            run = host.row_of(id).id if id in host.store.known else ""
            host.diagnose(run, "stream.unknown_intent", intent=id)
            return "dropped"
        hot, open_ = host.intent(id)
        wanted = host.machine.wants_frames(hot.definition)
        last = open_.frame if wanted else host.last_shown(id)
        seq = last + 1 if seq is None else seq
        if wanted:
            frame = Frame(intent=id, seq=seq, type=kind, value=to_value(value))
            answer, _ = host.ask(Deliver(hot.state.id, frame))
            return "dropped" if answer is not None and answer.get("stale") else "admitted"
        if seq != last + 1:
            code = "stream.gap" if seq > last else "stream.non_monotonic"
            host.diagnose(hot.state.id, code, intent=id, frame=seq, last=last)
        if seq <= last:
            return "dropped"
        host.core.submit(FrameSent(hot.state.id, id, seq, kind, to_value(value)))
        host.keep_shown(id, seq)
        return "admitted"

    def advance(self, duration: str | float | timedelta) -> None:
        """Moves the clock, firing timers in the order of their deadlines."""
        if isinstance(duration, timedelta):
            passes_ns = duration // timedelta(microseconds=1) * 1000
        else:
            passes_ns = parse_duration(duration)
        self._host.run()
        until = self._host.now_ns() + passes_ns
        while (due := self._host.store.timer_next()) is not None and due <= until:
            self._host.set_now(max(self._host.now_ns(), due))
            self._host.run()
        self._host.set_now(until)
        self._host.run()

    def reset(self, wf: Workflow | str, key: Any = None) -> None:
        """Lets a failed cell take events again, from the state it had."""
        id = self._run_id(wf, key)[1]
        if not self._exists(id):
            raise InputInvalid(f"there is no cell {id}")
        _, error = self._host.ask(Deliver(id, Reset()))
        if error is not None:
            raise error

    # --- out -----------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        return moment_of(self._host.now_ns())

    @property
    def manifest_digest(self) -> str:
        return self._app.digest

    def _key(self, workflow: Workflow, key: Any) -> Value:
        if workflow.key is None:
            return None
        try:
            return workflow.key.canon(key)
        except Misfit as misfit:
            raise InputInvalid(f"{key!r} is not a key of {workflow.name}: {misfit.message}") from None

    def _run_id(self, wf: Workflow | str, key: Any) -> tuple[Workflow, str]:
        workflow = self._app.workflow(wf)
        return workflow, run_id(workflow.name, self._key(workflow, key), keyed=workflow.keyed)

    def _exists(self, id: str) -> bool:
        """Whether there is a cell: it has a state, or something of it is open, or it has failed."""
        hot = self._host.hot(id)
        return hot is not None and (hot.state.state is not None or hot.state.status in ("waiting", "failed"))

    def open(
        self, effect: Any = None, *, workflow: Workflow | str | None = None, key: Any = None
    ) -> list[Intent]:
        """Open effects in the order in which they were asked for."""
        wanted = getattr(effect, "name", effect)
        name = getattr(workflow, "name", workflow)
        found = [self._intent(*self._host.intent(id)) for id in self._host.store.open]
        return [
            intent
            for intent in found
            if (wanted is None or intent.effect == wanted)
            and (name is None or intent.workflow == name)
            and (key is None or intent.key == key)
        ]

    def _intent(self, hot: Hot, intent: OpenIntent) -> Intent:
        workflow = self._host.bound(hot, self._app).workflow
        effect = workflow.effects.get(intent.kind)
        return Intent(
            id=intent.id,
            effect=effect_name(intent),
            params=timer_params(intent) if effect is None else effect.params.load(intent.params["params"]),
            ref=intent.ref or None,
            workflow=workflow.name,
            key=None if workflow.key is None else workflow.key.load(hot.state.key),
            seq=intent.seq,
            due_ns=intent.due_ns,
            idempotency_key=intent.idempotency_key,
        )

    def state(self, wf: Workflow | str, key: Any = None) -> Any:
        workflow, id = self._run_id(wf, key)
        hot = self._host.hot(id)
        return None if hot is None or hot.state.state is None else workflow.state.load(hot.state.state)

    def status(self, wf: Workflow | str, key: Any = None) -> str | None:
        id = self._run_id(wf, key)[1]
        hot = self._host.hot(id)
        return hot.state.status if hot is not None and self._exists(id) else None

    def cells(self, wf: Workflow | str) -> list[CellRow]:
        """The cells of a workflow, by key."""
        workflow, found = self._app.workflow(wf), []
        for row in apps.rows_of(self._host.store, workflow.name):
            hot = self._host.hot(row.id)
            if hot is None or not self._exists(row.id):
                continue
            state = hot.state
            key = None if workflow.key is None else workflow.key.load(state.key)
            size = 0 if state.state is None else len(encode(state.state))
            found.append((key_order(state.key), CellRow(key, state.status, size, state.last_ns)))
        return [cell for _, cell in sorted(found, key=lambda pair: pair[0])]

    def journal(self, wf: Workflow | str | None = None, key: Any = None) -> list[Record]:
        """Records in the order in which they were made: of one cell, of a workflow, or of all."""
        name = getattr(wf, "name", wf)
        only = self._run_id(wf, key)[1] if wf is not None and key is not None else None
        rows = [
            row
            for row in replaying.rows_of(self._host)
            if (name is None or row.workflow == name) and (only is None or row.id == only)
        ]
        return journal.records(self._host, self._app, rows, self._intent)

    def diagnostics(self) -> list[dict[str, Any]]:
        """What was refused, dropped or odd; never part of a journal."""
        found = self._host.store.diagnostics(limit=1_000_000)
        return [{**one, "code": "event.refused"} if one["code"] == "refused" else one for one in found]

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
        self._host.run()
        return self._host.snapshot(self._app)

    def snapshots(self) -> list[Snapshot]:
        return self._host.snapshots()

    def compare(self, before: Snapshot, after: Snapshot) -> dict[str, list[Any]]:
        """The keys whose cells differ between two snapshots, by workflow."""
        return {
            name: [
                one["key"]
                for one in snapshots.differences(self._host.store, before.roots.get(name, root), root)
            ]
            for name, root in after.roots.items()
        }

    def reopen(self, *, at: Snapshot | int | None = None) -> World:
        """Another world from the durable bytes: from the last snapshot (or `at`) and the tail after it."""
        apps_here = list(self._host.apps.values())
        host = WorldHost(self._host.store.image(), apps_here, seed=0, now_ns=0, cell_cache=self._cache)
        number = at.number if isinstance(at, Snapshot) else at
        replaying.open_all(host, None if number is None else host.cuts()[number]["seqs"])
        app = apps.active_app(host.store, host.registry, host.machine, self._app.name)
        return World(app, cell_cache=self._cache, secrets=self._secrets or {}, _host=host)

    def assert_replays(self) -> None:
        """Deciding everything again from the journal, and from every snapshot, ends in these bytes."""
        different = [
            f"{run} from {f'record {seq}' if seq else 'the journal'}"
            for run, seq in replaying.differences(self._host)
        ]
        assert not different, f"replay differs in {different}"

    def gc(self, *, keep: int = 1) -> int:
        """Removes blobs that no kept snapshot reaches; the last `keep` snapshots are the only roots."""
        return self._host.collect(keep)

    # --- applying ----------------------------------------------------------------------------------------

    def apply(self, what: App | int) -> None:
        """Moves to another version: of an application given here, or of an approved proposal. Refused
        with details["blockers"] unless everything is quiescent."""
        proposal = None
        if isinstance(what, App):
            app = what
        else:
            known = apps.proposed(self._host.store, self._host.registry, self._app.name, what)
            if known["status"] != "approved":
                raise ProposalRefused(f"proposal {what} is {known['status']}; approve it first")
            app, proposal = self._host.app_of(known["manifest"]), what
        self._check_name(app)
        # Its code has to be at hand; what is active is another matter.
        self._host.attach(app)
        self._host.operate("apply", {"app": app.name, "manifest": app.digest, "proposal": proposal})
        self._app = app
        self.snapshot()

    def propose(self, app: App) -> int:
        self._check_name(app)
        self._host.attach(app)
        self._govern({"op": "propose", "manifest": app.digest})
        return len(self.proposals())

    def shadow(self, id: int) -> dict[str, Any]:
        """Lets the candidate decide what was decided so far, beside the real cells, and reports what it
        did. It says nothing of what did not run."""
        host = self._host
        known = apps.proposed(host.store, host.registry, self._app.name, id)
        report = apps.report(host.store, host.registry, host.app_of(known["manifest"]))
        self._govern({"op": "shadow", "proposal": id})
        return report

    def approve(self, id: int) -> None:
        self._govern({"op": "approve", "proposal": id})

    def reject(self, id: int) -> None:
        self._govern({"op": "reject", "proposal": id})

    def proposals(self) -> list[Proposal]:
        found = apps.proposals(self._host.store, self._host.registry, self._app.name)
        return [Proposal(p["id"], p["status"], p["manifest"]) for p in found]

    def _check_name(self, app: App) -> None:
        if app.name != self._app.name:
            raise InputInvalid(f"this world runs {self._app.name}, not {app.name}")

    def _govern(self, data: dict[str, Any]) -> None:
        self._host.operate("govern", {"app": self._app.name, "data": data})


def _id(intent: Intent | str) -> str:
    return intent if isinstance(intent, str) else intent.id
