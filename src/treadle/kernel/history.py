"""A run's history: snapshots, replay, forks.

`replay` is `advance` again with recorded inputs, comparing bytes: the first difference is an error
that says where. `opened_by` reads open work off records without running any machine, so that
recovery needs no definitions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from . import holding
from .errors import PASSING, BlobMissing, JournalCorrupt, ReplayDiffers
from .machine import Machine
from .model import (
    DETACHED_KINDS,
    TERMINAL,
    Cancel,
    Decision,
    Intent,
    OpenIntent,
    Started,
    event_from_value,
    event_value,
)
from .roles import PastMachine, has_role, unavailable
from .run import Blobs, Step, abandon, admit, advance, error_of, fault
from .state import GENESIS, RunState
from .values import decode_trusted, encode

SNAPSHOT_VERSION: Final = 1


class Stored(msgspec.Struct, frozen=True):
    """A record as the store gives it back."""

    seq: int
    body: bytes
    digest: bytes

    def record(self) -> dict[str, Any]:
        value: dict[str, Any] = decode_trusted(self.body)
        return value


def snapshot(run: RunState) -> bytes:
    """The canonical bytes of a run at its last record; `restore` is its inverse."""
    run.tail_bytes, run.tail_records = 0, 0
    body = encode(
        {
            "v": SNAPSHOT_VERSION,
            "id": run.id,
            "dialect": run.dialect,
            "workflow": run.workflow,
            "version": run.version,
            "definition": run.definition,
            "key": run.key,
            "machine": run.machine,
            "seed": run.seed,
            "options": run.options,
            "parent": run.parent,
            "parent_intent": run.parent_intent,
            "continued_from": run.continued_from,
            "depth": run.depth,
            "reference": run.reference,
            "seq": run.seq,
            "digest": run.digest,
            "status": run.status,
            "state": run.state,
            "result": run.result,
            "error": run.error,
            "started_ns": run.started_ns,
            "last_ns": run.last_ns,
            "ended_ns": run.ended_ns,
            "open": [_open_value(intent) for intent in run.open.values()],
            "signals": list(run.signals),
            "more": list(run.more),
            "retries": run.retries,
            "intents": run.intents,
            # Only where there is something to say: other snapshots are as they always were.
            **({"placed": True} if run.placed else {}),
            **({"held": run.held} if run.held is not None else {}),
        }
    )
    run.snapshot_bytes = len(body)
    return body


def _open_value(intent: OpenIntent) -> dict[str, Any]:
    value = {**intent.to_value(), "seq": intent.seq, "at_ns": intent.at_ns}
    return {**value, "frame": intent.frame} if intent.frame else value


def restore(body: bytes) -> RunState:
    value: dict[str, Any] = decode_trusted(body)
    if value.pop("v") != SNAPSHOT_VERSION:
        raise JournalCorrupt("a snapshot of an unknown version")
    value["open"] = {i["id"]: OpenIntent(**i) for i in value["open"]}
    value["signals"], value["more"] = tuple(value["signals"]), tuple(value["more"])
    return RunState(**value, snapshot_bytes=len(body))


def check_link(id: str, seq: int, digest: bytes, stored: Stored) -> None:
    """Whether a record is the one that follows record `seq` of a run, as it was written."""
    if stored.seq != seq + 1:
        raise JournalCorrupt(f"{id}: record {seq + 1} is missing", where=f"{id}#{seq + 1}")
    if hashlib.sha256(digest + stored.body).digest() != stored.digest:
        raise JournalCorrupt(
            f"{id}: the digest of record {stored.seq} does not match its bytes", where=f"{id}#{stored.seq}"
        )


def replay(
    run: RunState,
    machine: Machine,
    definition_of: Callable[[str], Any],
    records: Iterable[Stored],
    *,
    blobs: Blobs | None = None,
    reading: bool = False,
) -> RunState:
    """Folds records into a run by deciding each of them again. The first difference is an error. With `reading`,
    a machine whose code need not be at hand (`PastMachine`) takes its decisions from the records."""
    for stored in records:
        check_link(run.id, run.seq, run.digest, stored)
        record = stored.record()
        # A move is decided by what it moves to: what it leaves need not be at hand any more.
        moves = record["kind"] in ("apply", "retry") and record["event"].get("definition")
        decides = moves or run.definition
        definition = definition_of(decides)
        reads = reading and has_role(type(machine), PastMachine)
        if not reads and (problem := unavailable(machine, definition)) is not None:
            raise problem
        step = _again(run, machine, definition, record, blobs, reads)
        if step.body != stored.body:
            got = decode_trusted(step.body)
            fields = [name for name in {**record, **got} if record.get(name) != got.get(name)]
            raise ReplayDiffers(
                f"{run.id}: record {stored.seq} was decided differently ({', '.join(fields)})",
                where=f"{run.id}#{stored.seq}",
                details={
                    "seq": stored.seq,
                    "expected": {name: record.get(name) for name in fields},
                    "got": {name: got.get(name) for name in fields},
                },
            )
    return run


def _again(
    run: RunState,
    machine: Machine,
    definition: Any,
    record: dict[str, Any],
    blobs: Blobs | None,
    reads: bool = False,
) -> Step:
    kind, value, at_ns = record["kind"], record["event"], record["at"]
    if kind == "fault":
        value = dict(value)
        event = event_from_value(value.pop("kind"), value)
        if reads:
            return fault(run, event, record["error"], at_ns=at_ns)
        # The step that failed must fail again; a copy is stepped because a failed step may have
        # changed its state halfway.
        probe = restore(snapshot_of(run))
        try:
            logged = {"fault": record["error"]}
            advance(probe, machine, definition, event, at_ns=at_ns, blobs=blobs, logged=logged)
        except PASSING:
            raise
        except Exception as error:  # the same error is what replay expects
            again = _as_recorded(error_of(error), record["error"])
            return fault(run, event, again, at_ns=at_ns)
        return fault(
            run, event, {"class": "internal", "code": "NO_FAULT", "message": "", "details": {}}, at_ns=at_ns
        )
    if kind == "abandon":
        return abandon(run, Cancel(**value), record["error"], at_ns=at_ns)
    event = event_from_value(kind, value)
    if isinstance(event, Started) and event.forked_from is not None:
        raise JournalCorrupt(f"{run.id} is a fork; replay it from its first snapshot")
    try:
        return advance(
            run,
            machine,
            definition,
            event,
            at_ns=at_ns,
            blobs=blobs,
            logged=record.get("log"),
            recorded=record if reads else None,
        )
    except PASSING:
        raise
    except BlobMissing:
        # A payload that is past its date is no difference: nobody can tell.
        raise
    except Exception as error:
        raise ReplayDiffers(
            f"{run.id}: record {record['seq']} was admitted, and is refused now: {error}",
            where=f"{run.id}#{record['seq']}",
            details={"seq": record["seq"], "expected": "admitted", "got": error_of(error)},
        ) from error


def _as_recorded(again: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """The error of a fault that was decided again. Which one it is, where and with what details was
    decided; its words may quote an author's code, and so Python's or a library's, which change."""
    if again["code"] == recorded["code"] == "MACHINE_ERROR":
        return recorded
    worded = {**again, "message": recorded["message"]}
    return recorded if worded == recorded else again


def snapshot_of(run: RunState) -> bytes:
    """A snapshot for a copy, leaving the run's own bookkeeping as it is."""
    kept = run.tail_bytes, run.tail_records, run.snapshot_bytes
    body = snapshot(run)
    run.tail_bytes, run.tail_records, run.snapshot_bytes = kept
    return body


def opened_by(record: dict[str, Any]) -> list[OpenIntent]:
    """The intents a record opened, found without running a machine."""
    if record["status"] in TERMINAL:
        return []
    return [
        OpenIntent(**value, seq=record["seq"], at_ns=record["at"])
        for value in record.get("opened", ())
        if value["kind"] not in DETACHED_KINDS
    ]


def fork(
    source: RunState,
    *,
    id: str,
    definition: str,
    seed: bytes,
    at_ns: int,
    by: str | None = None,
    queued: bool = False,
) -> tuple[RunState, Step]:
    """A new run that goes on from another one's state. Its open intents are reissued under ids of
    its own, so nothing that the source gets back can reach the fork, or the other way round. One that is `queued`
    goes on once it has its place in line."""
    copy = restore(snapshot_of(source))
    intents = [
        Intent(
            kind=i.kind,
            params=i.params,
            ref=i.ref,
            due_ns=i.due_ns,
            idempotency_key=i.idempotency_key,
            pool=i.pool,
        )
        for i in copy.open.values()
    ]
    run = replace(
        copy,
        id=id,
        definition=definition,
        seq=0,
        digest=GENESIS,
        open={},
        seed=seed,
        parent=None,
        parent_intent=None,
        depth=0,
        tail_bytes=0,
        tail_records=0,
        snapshot_bytes=0,
        started_ns=at_ns,
        placed=False,
    )
    whose = {} if by is None else {"by": by}
    origin = {"run": source.id, "seq": source.seq, "digest": source.digest, **whose}
    event = Started(
        seed=seed, machine=copy.machine, reference=copy.reference, options=copy.options, forked_from=origin
    )
    decision = Decision(
        state=copy.state,
        intents=intents,
        status=copy.status,
        result=copy.result,
        error=copy.error,
    )
    if queued:
        holding.fork(run, decision)
    decision.events = [{"type": "run.forked", "from": source.id, "seq": source.seq, **whose}]
    step = admit(
        run,
        "started",
        event_value(event),
        decision,
        at_ns,
        None,
        allowed=None,
        final=False,
        event=event,
        bytes_max=None,
    )
    return run, step
