"""A run as people see it: the run document, its events, its journal. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from treadle.kernel.errors import BlobMissing, RunNotFound, TreadleError
from treadle.kernel.history import Stored, check_link
from treadle.kernel.machine import Machine
from treadle.kernel.model import ENGINE_KINDS, PLACE, TERMINAL, OpenIntent, child_id
from treadle.kernel.run import error_of
from treadle.kernel.state import GENESIS, RunState
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.lang.duration import instant_text
from treadle.store.run_rows import RunRow

from .hot import BlobCache, load_state, read_past, state_of
from .narrative import events_of, numbered, shown
from .opened import open_work
from .payloads import input_of, may_refer, refers, whole
from .registry import Loaded, Registry
from .retention import kept_until_ns
from .undecided import is_lasting, is_undecided

PAGE = 500
# Children whose own waits are part of their parent's document.
CHILDREN_SHOWN_MAX = 20
# Kinds of waits as the run document names them.
SHOWN = {
    **{kind: kind for kind in ("task", "timer", "signal", "child", "call", "step", "model", "gate")},
    "start": "child",
    "route": "model",
    "ask": "model",
    PLACE: "place",
}


if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    class Queued(TypedDict):
        """Where a run stands in its line, and since when."""

        position: int
        since: str | None

    class RunOutcome(TypedDict):
        """How a run ended."""

        status: str
        result: Value
        error: dict[str, Value] | None


def row_of(reads: Reads, id: str) -> RunRow:
    row = reads.run(id)
    if row is None:
        raise no_run(id)
    return row


def check_there(reads: Reads, row: RunRow) -> None:
    """Something of a run is missing: it is no damage if the run was removed since its row was read."""
    now = reads.run(row.id)
    if now is None or now.no != row.no:
        raise no_run(row.id)


def no_run(id: str) -> RunNotFound:
    return RunNotFound(f"there is no run {id!r}; `treadle list` shows what is there")


def _at(at_ns: int | None) -> str | None:
    return None if at_ns is None else instant_text(at_ns)


def state_at(reads: Reads, registry: Registry, id: str, *, at: int | None = None) -> tuple[RunState, Loaded]:
    """Time travel: a run as it was at a record."""
    state = load_state(row_of(reads, id), reads, registry, BlobCache(reads), until_seq=at)
    return state, registry.load(state.definition)


def view_of(loaded: Loaded, state: RunState) -> dict[str, Value]:
    """What people see of a run's state; there is none of one that waits for its place, or was cancelled there."""
    if state.state is None and loaded.machine.traits.final:
        return {"state": None}
    return loaded.machine.view(loaded.definition, state.state)


def queued(reads: Reads, run: str) -> Queued | None:
    """Where a run stands in its line; None once it has its place."""
    place = reads.place(run)
    if place is None or place.held:
        return None
    return {"position": reads.places_ahead(place) + 1, "since": _at(place.since_ns)}


def show(
    reads: Reads, registry: Registry, id: str, *, engine: bool = False, at: int | None = None
) -> dict[str, Value]:
    """The run document of INTERFACES §1."""
    found = reads.outlined(id)
    if found is None:
        raise no_run(id)
    row, has_snapshot, has_children = found
    tail: list[Stored] = []
    try:
        if at is None:
            cut, tail = read_past(row, reads, has_snapshot=has_snapshot)
            state = state_of(row, cut, tail, registry, BlobCache(reads))
        else:
            state = load_state(row, reads, registry, BlobCache(reads), until_seq=at)
        loaded = registry.load(state.definition)
    except TreadleError as error:
        check_there(reads, row)
        if at is not None or not is_lasting(error):
            raise
        return _bare(reads, row, error)
    view = view_of(loaded, state)
    first = tail[0] if tail and tail[0].seq == 1 else reads.record(row.no, 1)
    if first is None:
        check_there(reads, row)
    started = first.record()["event"] if first is not None else {}
    extra = view.pop("waiting_for", [])
    detail = view.pop("engine", {})
    stats = {"steps": state.seq, "intents": state.intents, "retries": state.retries, **view.pop("stats", {})}
    ended = state.status in TERMINAL
    # What children wait for is known as of now only.
    children_max = CHILDREN_SHOWN_MAX if at is None else 0
    document: dict[str, Value] = {
        "id": state.id,
        "workflow": state.workflow,
        # A run may have been sent on under another definition; one without a version has the number it was given.
        "version": loaded.row.version or state.version,
        "digest": state.definition,
        "dialect": state.dialect,
        "key": state.key,
        "status": state.shown,
        "input": input_of(reads, started),
        "result": state.result,
        "error": state.error,
        "reference": state.reference,
        "started_at": _at(state.started_ns),
        "ended_at": _at(state.ended_ns),
        "version_no": state.seq,
        "waiting_for": [] if ended else [*waits(reads, registry, state, children_max), *extra],
        "state": view.pop("state"),
        "parent": state.parent,
        "children": _children(reads, state.id) if has_children else [],
        "stats": stats,
        "retain_until": _at(kept_until_ns(reads, row)),
        **view,
    }
    if at is None and is_undecided(row):
        # It is as its journal says, and waits for code that can take it on.
        document["status"], document["error"] = row.status, row.error
    if at is None and state.held is not None:
        document["queued"] = queued(reads, id)
    if state.continued_from is not None:
        document["continued_from"] = state.continued_from
    if started.get("forked_from"):
        document["forked_from"] = {"run": started["forked_from"]["run"], "seq": started["forked_from"]["seq"]}
    if engine:
        document["engine"] = _engine(reads, row, state, detail)
    for name in ("input", "state", "result", "results"):
        if refers(document.get(name)):
            document[name] = whole(reads, document[name])
    return document


def _children(reads: Reads, id: str) -> list[str]:
    return [child.id for child in reversed(reads.runs(parent=id, limit=10_000))]


def _bare(reads: Reads, row: RunRow, error: TreadleError) -> dict[str, Value]:
    """What can be said of a run that cannot be decided: what its row says, and why there is no more."""
    document = {
        **list_row(row),
        "digest": row.definition,
        "key": row.cell_key,
        "input": None,
        "result": None,
        "error": row.error or error_of(error),
        "undecided": error_of(error),
        "version_no": row.seq,
        "waiting_for": [],
        "state": None,
        "children": _children(reads, row.id),
        "stats": {},
        "retain_until": _at(kept_until_ns(reads, row)),
    }
    if row.continued_from is not None:
        document["continued_from"] = row.continued_from
    return document


def outcome(reads: Reads, id: str) -> RunOutcome | None:
    """How a run ended, read off its last record; None while it has not."""
    row = row_of(reads, id)
    if row.status not in TERMINAL:
        return None
    stored = reads.record(row.no, row.seq)
    if stored is None:
        check_there(reads, row)
    assert stored is not None, "the record that ended the run is there"
    record = stored.record()
    result = record.get("result")
    return {
        "status": row.status,
        "result": whole(reads, result) if may_refer(stored.body) else result,
        "error": record.get("error"),
    }


def waits(reads: Reads, registry: Registry, state: RunState, children_max: int) -> list[dict[str, Value]]:
    """What a run waits for. Children that are under way, so many of them, say in turn what they wait for."""
    found = []
    for intent in state.open.values():
        wait: dict[str, Value] = {
            "kind": kind_shown(intent.kind),
            "id": intent.id,
            "name": _child_name(reads, state.id, intent) if intent.kind == "child" else intent.name,
            "due": _at(intent.due_ns),
        }
        if intent.kind == "task":
            wait |= _asked(intent.params)
        if intent.kind == "child" and children_max:
            children_max -= 1
            wait |= _child_waits(reads, registry, child_id(state.id, intent.id), children_max // 4)
        found.append(wait)
    return found


def _asked(params: Mapping[str, Value]) -> dict[str, Value]:
    """What a person has to know to answer a task."""
    payload = params.get("payload")
    prompt = payload.get("prompt") if isinstance(payload, Mapping) else None
    found: dict[str, Value] = {"roles": params.get("roles") or [], "schema": params.get("schema")}
    return {**found, "prompt": prompt} if isinstance(prompt, str) else found


def _child_waits(reads: Reads, registry: Registry, id: str, children_max: int) -> dict[str, Value]:
    row = reads.run(id)
    if row is None or row.status in TERMINAL:
        return {}
    about: dict[str, Value] = {"run": id, "status": row.status}
    try:
        state, loaded = state_at(reads, registry, id)
    except TreadleError:
        # Damaged, or its code is not at hand: its parent can be shown all the same.
        return about
    more = view_of(loaded, state).get("waiting_for") or []
    return {**about, "waiting_for": [*waits(reads, registry, state, children_max), *more]}


def _child_name(reads: Reads, run: str, intent: OpenIntent) -> str:
    """The child's workflow; until it has started, what it was asked for by (a name, name@version, a path)."""
    child = reads.run(child_id(run, intent.id))
    return child.workflow if child is not None else str(intent.params.get("workflow") or intent.name)


def kind_shown(kind: str) -> str:
    """One of the kinds that people know: what a worker does by any other name is a call."""
    return SHOWN.get(kind, "call")


def _engine(reads: Reads, row: RunRow, state: RunState, detail: dict[str, Value]) -> dict[str, Value]:
    children = []
    for intent in state.open.values():
        if intent.kind == "child":
            child = reads.run(child_id(state.id, intent.id))
            children.append(
                {
                    "id": child_id(state.id, intent.id),
                    "name": _child_name(reads, state.id, intent),
                    "version": child.version if child else None,
                    "reference": child.reference if child else None,
                    "into": intent.params.get("into"),
                }
            )
    last = reads.record(row.no, state.seq)
    return {
        "waits": [
            {"kind": i.kind, "token": i.id, "path": i.params.get("path") or i.ref, "due": _at(i.due_ns)}
            for i in state.open.values()
        ],
        "resume_pointer": None,
        "frames": [],
        "timers": [{"token": t.intent, "due": _at(t.due_ns)} for t in reads.timers_of(row.no)],
        "last_event": None if last is None else {"seq": state.seq, "kind": last.record()["kind"]},
        "retain_until": _at(kept_until_ns(reads, row)),
        **detail,
        "children": children or detail.get("children", []),
    }


def record_events(stored: Stored, last_no: int, *, narrated: bool) -> list[dict[str, Value]]:
    """A record's events, numbered."""
    record = stored.record()
    found = events_of(record, narrated=narrated)
    return numbered(found, last_no - len(found) + 1, stored.seq, record["at"])


def events(
    reads: Reads, row: RunRow, machine: Machine, *, after: int = 0, record: int = 1
) -> Iterator[dict[str, Value]]:
    """A run's events in order of their numbers: the journal's and those beside it, merged, paged.
    `record` is one that no event with a number above `after` comes before."""
    beside = _frames(reads, row.no, after)
    frame = next(beside, None)
    for stored, last_no in records(reads, row, after=record - 1):
        if last_no <= after:
            continue
        hidden = may_refer(stored.body)
        for event in record_events(stored, last_no, narrated=machine.traits.narrated):
            if event["seq"] <= after:
                continue
            if hidden:
                event = whole(reads, event)
            while frame is not None and frame["seq"] < event["seq"]:
                yield frame
                frame = next(beside, None)
            yield event
    while frame is not None:
        yield frame
        frame = next(beside, None)


def _frames(reads: Reads, run: int, after: int) -> Iterator[dict[str, Value]]:
    while page := reads.frames(run, after=after, limit=PAGE):
        for number, at_ns, body in page:
            after = number
            yield shown(decode_trusted(body), number, instant_text(at_ns), None)


def records(reads: Reads, row: RunRow, *, after: int = 0) -> Iterator[tuple[Stored, int]]:
    """A run's records after one of them, with the number of each one's last event. Each is held against
    the chain: bytes that are not those that were written are an error, never shown."""
    digest, seq = GENESIS, after
    if after:
        last = reads.record(row.no, after)
        if last is None:
            return
        digest = last.digest
    while page := reads.journal_page(row.no, after_seq=seq, limit=PAGE):
        for stored, last_no in page:
            check_link(row.id, seq, digest, stored)
            seq, digest = stored.seq, stored.digest
            yield stored, last_no


def journal(reads: Reads, row: RunRow, *, after: int = 0) -> Iterator[dict[str, Value]]:
    """A run's records as people see them."""
    for stored, _ in records(reads, row, after=after):
        record = stored.record()
        # What is empty is not stored, but shown.
        shown = {"events": [], "opened": [], "cancelled": [], **record}
        yield {**shown, "at": instant_text(record["at"]), "digest": "sha256:" + stored.digest.hex()}


def list_row(row: RunRow) -> dict[str, Value]:
    return {
        "id": row.id,
        "workflow": row.workflow,
        "version": row.version,
        "dialect": row.dialect,
        "status": row.status,
        "reference": row.reference,
        "parent": row.parent,
        "started_at": _at(row.started_ns),
        "ended_at": _at(row.ended_ns),
        "error": row.error,
    }


def in_state(
    reads: Reads,
    registry: Registry,
    wanted: Mapping[str, Value],
    filters: Mapping[str, Any],
    before: int | None,
) -> Iterator[RunRow]:
    """The runs whose shown state has these values under these dotted names. Each is read from its last snapshot
    on: nothing is kept for it."""
    bodies = {tuple(name.split(".")): encode(value) for name, value in wanted.items()}
    while page := reads.runs(**filters, before_no=before, limit=PAGE):
        for row in page:
            try:
                state, loaded = state_at(reads, registry, row.id)
            except TreadleError:
                continue  # what cannot be read has no state to match
            shown = view_of(loaded, state)["state"]
            shown = whole(reads, shown)
            if all(_has(shown, path, body) for path, body in bodies.items()):
                yield row
        before = page[-1].no


def _has(value: Value, path: tuple[str, ...], body: bytes) -> bool:
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return encode(value) == body


def replayed(reads: Reads, registry: Registry, id: str) -> dict[str, Value]:
    """Decides a whole journal again: equal, or the first difference; `equal` is None where a payload
    that a decision looked into has expired."""
    row = row_of(reads, id)
    try:
        load_state(row, reads, registry, BlobCache(reads), genesis=True)
    except BlobMissing as error:
        # No difference was found, and none can be: a payload is past its date.
        return {"id": id, "equal": None, "blob_expired": True, "error": error.to_value()}
    except TreadleError as error:
        if error.cls != "consistency":
            raise
        details = {name: error.details.get(name) for name in ("seq", "expected", "got")}
        return {"id": id, "equal": False, **details, "error": error.to_value()}
    return {"id": id, "equal": True}


def moves(
    reads: Reads,
    row: RunRow,
    *,
    timers: bool,
    unavailable: frozenset[str] = frozenset(),
    now_ns: int = 0,
) -> bool:
    """Whether a run, or something it waits for, goes on without people and outside signals. What was
    due before `now_ns` is about to fire, be it a timer or the deadline of a task or a signal."""
    if row.status in TERMINAL or is_undecided(row):
        return False
    found = open_work(row, reads)
    if row.working and not any(intent.kind not in ENGINE_KINDS for intent in found.values()):
        return True
    for intent in found.values():
        if intent.due_ns is not None and intent.due_ns <= now_ns and intent.kind in ENGINE_KINDS:
            return True
        if intent.kind not in ENGINE_KINDS:
            if intent.id not in unavailable:
                return True
        elif (intent.kind in ("timer", PLACE) and timers) or intent.kind == "start":
            return True
        elif intent.kind == "child":
            child = reads.run(child_id(row.id, intent.id))
            if (
                child is None
                or child.status in TERMINAL
                or moves(reads, child, timers=timers, unavailable=unavailable, now_ns=now_ns)
            ):
                return True
    return False


def root_of(reads: Reads, row: RunRow) -> RunRow:
    while row.parent is not None and (parent := reads.run(row.parent)) is not None:
        row = parent
    return row
