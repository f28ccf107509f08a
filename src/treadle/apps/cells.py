"""Reactive applications on a store: which manifest is active, publishing, applying, snapshots.

An application has a run of its own (its id is the application's name). It holds the digest of the active
manifest, the proposals, and events that nobody subscribes to. Publishing routes an event by the active
manifest and hands one event to each cell; applying moves to another manifest once everything is quiet.

Everything here runs on the core thread, between batches, or reads. Nothing is abandoned, cleared or hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from treadle.dialects.reactive import governance
from treadle.dialects.reactive.app import DIALECT_NAME, App
from treadle.dialects.reactive.decide import Bound
from treadle.dialects.reactive.governance import ApplyBlocked
from treadle.dialects.reactive.machine import ReactiveMachine
from treadle.dialects.reactive.routing import key_order, run_id
from treadle.dialects.reactive.shadow import History, shadow
from treadle.dialects.reactive.shapes import Misfit
from treadle.kernel.errors import PASSING, InputInvalid, TreadleError, UnknownWorkflow
from treadle.kernel.limits import PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import Domain, Patch, Started, is_reference, put_away
from treadle.kernel.showing import shown
from treadle.kernel.values import Value, encode
from treadle.lang.duration import instant_text
from treadle.runtime import deploys
from treadle.runtime.commands import Deliver, Operate
from treadle.runtime.hot import BlobCache, load_state
from treadle.runtime.opened import open_work
from treadle.runtime.ports import NewRun
from treadle.runtime.registry import Registry
from treadle.runtime.staging import answer_of, refusal_of
from treadle.store.run_rows import RunRow

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk, Handing
    from treadle.store.protocol import Reads


PAGE = 1_000
# The operation that publishes an event to several cells.
PUBLISH: Final = "publish"


# --- which code is active -----------------------------------------------------------------------------


def active_manifest(reads: Reads, registry: Registry, app: str) -> str | None:
    """The manifest that an application runs under; None if it has never run in this store."""
    books = _books(reads, registry, app)
    return None if books is None else str(books["manifest"])


def is_closed(reads: Reads, registry: Registry, app: str) -> bool:
    """Whether its members are being asked whether it may move to another manifest."""
    until = governance.closed_until(_books(reads, registry, app))
    return until > 0 and until > reads.now_ns()


def _books(reads: Reads, registry: Registry, app: str) -> Value:
    row = reads.run(app)
    if row is None or row.dialect != DIALECT_NAME:
        return None
    return load_state(row, reads, registry, BlobCache(reads)).state


def active_app(reads: Reads, registry: Registry, machine: ReactiveMachine, name: str) -> App:
    """The code of the active manifest; an application that is new here is active by being there."""
    manifest = active_manifest(reads, registry, name)
    here = [app for app in machine.apps() if app.name == name]
    for app in here:
        if manifest in (None, app.digest):
            return app
    if not here:
        raise UnknownWorkflow(
            f"no application {name!r} is loaded here; give it with --app FILE:ATTR", code="CODE_MISSING"
        )
    raise UnknownWorkflow(
        f"{name} runs under {manifest}, and its code is another version ({here[-1].digest}); "
        "apply it first (treadle apply FILE:ATTR), or give the version that runs",
        code="CODE_MISSING",
        details={"app": name, "active": manifest, "here": here[-1].digest},
    )


def names(machine: ReactiveMachine) -> list[str]:
    return list(dict.fromkeys(app.name for app in machine.apps()))


# --- publishing ---------------------------------------------------------------------------------------


def items(app: App, schema: str, value: Value, *, submission: str | None, key: Value = None) -> list[Deliver]:
    """An event as one item for each cell that subscribes; for the application itself if none does."""
    deliveries = app.route(schema, value)
    if key is not None and any(d.key not in (None, key) for d in deliveries):
        raise InputInvalid(f"the key is {shown(key)}, but the event is for {shown(deliveries[0].key)}")
    unrouted = (None, None, app.name, schema, value)
    targets: Sequence[tuple[str | None, Value, str, str, Value]] = deliveries or [unrouted]
    found: list[Deliver] = []
    for workflow, cell, run, arm, carried in targets:
        event = Domain(schema=arm, value=carried, submission=submission)
        create = NewRun(DIALECT_NAME, workflow or app.name, None, app.definition(workflow).digest, cell)
        found.append(_by_reference(Deliver(run, event, create=create)))
    if submission is not None:
        for item in found:
            scope = f"app:{app.name}" if len(found) == 1 else f"run:{item.run}"
            item.submission = (scope, submission)
    return found


def _by_reference(item: Deliver) -> Deliver:
    """A large value is moved to the blobs, and a reference stands in its place; so is one that would be
    taken for a reference."""
    assert isinstance(item.event, Domain)
    body = encode(item.event.value)
    if len(body) > PAYLOAD_INLINE_BYTES_MAX or is_reference(item.event.value):
        item.blobs = {}
        schema = item.event.schema
        reference = put_away(body, item.blobs, schema_hint=schema)
        item.event = Domain(schema=schema, value=reference, submission=item.event.submission)
    return item


def publishing(app: App, schema: str, value: Value, submission: str | None) -> dict[str, Value]:
    """What is asked for where an event is for several cells."""
    return {"app": app.name, "schema": schema, "value": value, "submission": submission}


def publish(desk: Handing, app: App, asked: Operate) -> object:
    """Publishes to several cells, on the core thread. They are accepted together: each delivery is
    decided in this commit, or waits in the inbox with it. The answer is the runs, or the refusal, once all have decided."""
    body, submission = asked.body, asked.body["submission"]
    made = items(app, str(body["schema"]), body["value"], submission=submission)
    runs = [item.run for item in made]
    if submission is not None:
        scope = (f"app:{app.name}", str(submission))
        found = desk.remembered(scope)
        if found is None:
            desk.remember(scope, {"runs": runs})
        elif asked.inbox is None or runs_of(found) != runs:
            return runs_of(found)
    # What came in a message may be performed again, by whoever takes over: each cell takes it once.
    once = submission or asked.inbox
    for item in made:
        item.submission = None if once is None else (f"run:{item.run}", once)
    return desk.share(asked, made, _combined)


def _combined(answers: Mapping[str, TreadleError | None]) -> tuple[object, TreadleError | None]:
    refused = refusal(answers)
    return (list(answers), None) if refused is None else (None, refused)


def answered(reads: Reads, app: str, submission: str) -> Value:
    """The durable answer of a submission id; None if it has none."""
    return answer_of(reads.submission, f"app:{app}", submission)


def runs_of(answer: dict[str, Any]) -> list[str]:
    """What a submission was answered: the runs it reached, or its refusal."""
    if "error" in answer:
        raise TreadleError.from_value(answer["error"])
    return answer.get("runs") or [answer["run"]]


def refusal(answers: Mapping[str, TreadleError | None]) -> TreadleError | None:
    """One refusal for the deliveries of one event, which says what became of each (`answers.refusal_of`)."""
    errors = [error for error in answers.values() if error is not None]
    value = refusal_of({run: None if e is None else e.to_value() for run, e in answers.items()})
    return None if value is None else TreadleError.restored(value, type(errors[0]).__name__)


# --- looking ------------------------------------------------------------------------------------------


def rows_of(reads: Reads, workflow: str | None, *, status: tuple[str, ...] = ()) -> Iterator[RunRow]:
    """All runs of a workflow (or of all), newest first, in pages."""
    before: int | None = None
    while page := reads.runs(workflow=workflow, status=status, before_no=before, limit=PAGE):
        yield from page
        before = page[-1].no


def listed(
    reads: Reads, registry: Registry, workflow: str, *, limit: int | None = None
) -> list[dict[str, Any]]:
    """`treadle cells`: key, status, size, last active."""
    blobs, found = BlobCache(reads), []
    for row in rows_of(reads, workflow):
        if not is_cell(row):
            continue
        try:
            state = load_state(row, reads, registry, blobs)
        except PASSING:
            raise
        except TreadleError as error:
            # One that cannot be loaded must not hide the others.
            told = {"size": None, "last_active": instant_text(row.updated_ns), "error": error.to_value()}
            found.append({"key": row.cell_key, "status": row.status, **told})
            continue
        if state.state is None and state.status not in ("waiting", "failed"):
            continue
        size = 0 if state.state is None else len(encode(state.state))
        found.append(
            {
                "key": row.cell_key,
                "status": state.status,
                "size": size,
                "last_active": instant_text(state.last_ns),
            }
        )
        if limit is not None and len(found) == limit:
            break
    return sorted(found, key=lambda cell: key_order(cell["key"]))


def is_cell(row: RunRow) -> bool:
    """Whether a run is the instance of its workflow and key; a child of another workflow is not."""
    return row.id == run_id(row.workflow, row.cell_key, keyed=row.id != row.workflow)


def exists(reads: Reads, registry: Registry, id: str) -> bool:
    row = reads.run(id)
    if row is None:
        return False
    state = load_state(row, reads, registry, BlobCache(reads))
    return state.state is not None or state.status in ("waiting", "failed")


def cell_id(app: App | None, workflow: str, key: Value) -> str:
    """The run behind (workflow, key); the key is checked where the code is at hand."""
    if app is None or workflow not in app.workflows:
        return run_id(workflow, key, keyed=key is not None)
    declared = app.workflows[workflow]
    if declared.key is None:
        if key is not None:
            raise Misfit("it has no key: there is one of it")
        return workflow
    return run_id(workflow, declared.key.canon(key))


# --- applying -----------------------------------------------------------------------------------------


def blockers(desk: Desk, current: App | None, app: App) -> list[dict[str, Any]]:
    """What keeps another manifest from being applied, of all that is decided here."""
    found: list[dict[str, Any]] = []
    for row in _unfinished(desk.store, app.name):
        if not desk.held.holds(row.id):
            continue
        intents = list(open_work(row, desk.store))
        if intents or _has_an_end(row.workflow, current or app):
            reason = "has open effects" if intents else "is not terminal"
            found.append({**_about(row), "reason": reason, "intents": intents})
    blocked = {blocker["run"] for blocker in found}
    for name, workflow in app.workflows.items():
        if current is None or not _same_state(current, app, name):
            bound = Bound(app, workflow)
            for row in rows_of(desk.store, name):
                if row.id in blocked or not desk.held.holds(row.id):
                    continue
                if (why := _misfit(desk, bound, row)) is not None:
                    found.append({**_about(row), "reason": why})
    return found + [{"run": run, "reason": "has queued events"} for run in queued(desk)]


def _has_an_end(workflow: str, app: App) -> bool:
    """Whether a workflow says what its last states are. One that does not has none: with nothing open its
    instances are at rest, whatever they may be told later."""
    known = app.workflows.get(workflow)
    return known is None or known.terminal is not None


def _about(row: RunRow) -> dict[str, Any]:
    return {"run": row.id, "workflow": row.workflow, "key": row.cell_key, "status": row.status}


def _unfinished(reads: Reads, app: str) -> Iterator[RunRow]:
    """Runs of an application that are not terminal, found without its code; its own run is not one."""
    owners: dict[str, str] = {}
    for row in rows_of(reads, None, status=("running", "waiting", "stalled")):
        if row.dialect != DIALECT_NAME or row.id == app:
            continue
        if row.definition not in owners:
            stored = reads.definition(row.definition)
            owners[row.definition] = stored.body["app"] if stored is not None else app
        if owners[row.definition] == app:
            yield row


def _same_state(current: App, app: App, workflow: str) -> bool:
    if workflow not in current.workflows:
        return False
    one, other = current.nodes[workflow]["state"], app.nodes[workflow]["state"]
    return bool(one == other and current.nodes[one] == app.nodes[other])


def _misfit(desk: Desk, bound: Bound, row: RunRow) -> str | None:
    try:
        hot = desk.hot.get(row.id)
    except TreadleError as error:
        return f"cannot be loaded: {error.message}"
    why = None if hot is None else ReactiveMachine().compatible(bound, hot.state.state)
    return None if why is None else f"does not fit the new state: {why}"


def queued(desk: Desk) -> list[str]:
    """Cells that have events or receipts waiting."""
    found = []
    for item in desk.queued():
        hot = desk.hot.peek(item.run)
        dialect = item.create.dialect if item.create is not None else hot.state.dialect if hot else None
        if dialect == DIALECT_NAME and not isinstance(item.event, Patch):
            found.append(item.run)
    return list(dict.fromkeys(found))


def apply(desk: Handing, current: App | None, app: App, operate: Operate) -> Any:
    """Moves to another manifest, in one commit. Cells with a tail are snapshotted first, so that none
    needs the code it leaves in order to load."""
    asked = operate.body
    if current is not None and current.digest == app.digest and asked.get("proposal") is None:
        if (token := asked.get("token")) is None:
            return {"manifest": app.digest}  # it is active already
        # Somebody else applied it while everybody was asked: the cells are closed for nothing.
        return govern(desk, app, {"op": "open", "token": token}, operate)
    settle(desk, current, app)
    for asked_deploy in asked.get("deploys", ()):
        deploys.perform(desk, deploys.Deploy.from_value(asked_deploy))
    data = {"op": "apply", "manifest": app.digest}
    if asked.get("proposal") is not None:
        data["proposal"] = asked["proposal"]
    return govern(desk, app, data, operate)


def settle(desk: Desk, current: App | None, app: App) -> None:
    """All that is decided here, ready for another manifest: refused where something is in its way."""
    if found := blockers(desk, current, app):
        first = found[0]
        raise ApplyBlocked(
            f"{len(found)} things keep {app.name} from being applied; the first: {first['run']} {first['reason']}",
            details={"blockers": found},
        )
    for workflow in current.workflows if current else ():
        for row in rows_of(desk.store, workflow):
            hot = desk.hot.get(row.id) if desk.held.holds(row.id) else None
            if hot is not None and hot.state.tail_records:
                desk.stage_snapshot(hot)


def govern(desk: Handing, app: App, data: dict[str, Any] | None, operate: Operate) -> object:
    """A move in the application's own run; without one the run is only begun."""
    digest = app.definition(None).digest
    create = NewRun(DIALECT_NAME, app.name, None, digest)
    if data is not None:
        return desk.hand_on(operate, Deliver(app.name, governance.governed(data), create=create))
    started = Started(definition=digest, seed=desk.entropy(16), machine=ReactiveMachine.version)
    return desk.hand_on(operate, Deliver(app.name, started, create=create))


def proposals(reads: Reads, registry: Registry, app: str) -> list[dict[str, Any]]:
    books = _books(reads, registry, app)
    return [] if books is None else list(books["proposals"])


def submitted(reads: Reads, app: str, seq: int) -> int:
    """The number of the proposal that a record of an application's run is about; others may have been made since."""
    row = reads.run(app)
    stored = None if row is None else reads.record(row.no, seq)
    assert stored is not None, "what was answered is there"
    return int(stored.record()["events"][0]["proposal"])


def proposed(reads: Reads, registry: Registry, app: str, number: int) -> governance.ProposalState:
    books = _books(reads, registry, app)
    if books is None:
        raise InputInvalid(f"{app:.200} has not run in this store, so nothing was proposed for it")
    return governance.find(books, number)


def report(reads: Reads, registry: Registry, app: App, *, run: str | None = None) -> dict[str, Any]:
    """What a candidate does with what was recorded, of one run or of all."""
    blobs, histories = BlobCache(reads), []
    for workflow in app.workflows:
        for row in rows_of(reads, workflow):
            if run is None or row.id == run:
                records = [stored.record() for stored in reads.journal(row.no)]
                state = load_state(row, reads, registry, blobs)
                histories.append(History(row.id, workflow, row.cell_key, records, state))
    if run is not None and not histories:
        raise InputInvalid(f"{run:.200} is no cell of {app.name}")
    return shadow(app, histories)
