"""Rows for tests of stores: one of everything, and everything a store holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.values import digest, digest_bytes, encode
from treadle.store.place_rows import PlaceRow
from treadle.store.rows import Batch, DefinitionRow, Message, TaskRow, TimerRow, VersionRow
from treadle.store.run_rows import RunRow

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


FOR_EVER = 2**62

DEFINITION = digest({"dialect": "toy", "name": "flow", "version": "1.0.0", "body": {"x": 1}})


def run_row(no: int, **fields: Any) -> RunRow:
    about: dict[str, Any] = {
        "id": f"run-{no}",
        "dialect": "toy",
        "workflow": "flow",
        "version": "1.0.0",
        "definition": DEFINITION,
        **fields,
    }
    return RunRow(no=no, **about)


def record(run: int, seq: int, *, event_no: int | None = None, body: bytes | None = None) -> Any:
    """A journal row. Stores do not look into bodies: the chain is the kernel's."""
    return (
        run,
        seq,
        seq if event_no is None else event_no,
        None,
        None,
        bytes(32),
        body or encode({"seq": seq}),
    )


def task_row(no: int, run: int, **fields: Any) -> TaskRow:
    about: dict[str, Any] = {
        "id": f"task-{no}",
        "run_id": f"run-{run}",
        "workflow": "flow",
        "name": "approve",
    }
    return TaskRow(no=no, run=run, **{**about, **fields})


def full_batch(run: int = 1) -> Batch:
    """One of everything, about one run."""
    body = encode({"payload": run})
    batch = Batch()
    batch.records = [record(run, 1), record(run, 2)]
    batch.runs_new = {run: run_row(run, working=True, reference=f"ref-{run}", cell_key=["k", run])}
    batch.snapshots = [(run, 1, b"snapshot")]
    batch.timers = {f"timer-{run}": TimerRow(f"timer-{run}", run, 1_000 + run, True, f"run-{run}")}
    batch.tasks_new = {f"task-{run}": task_row(run, run, roles=["clerk", "boss"], payload={"a": 1})}
    batch.inbox = [Message(f"message-{run}", b"hello", f"run-{run}")]
    batch.replies = [(f"asked-{run}", 76, encode({"value": run}))]
    batch.checkpoints = {f"work-{run}": (run, encode({"mark": 1}))}
    batch.frames = [(run, 3, 77, encode({"type": "progress"}))]
    batch.diagnostics = [(f"run-{run}", 78, "refused", encode({"why": "because"}))]
    batch.submissions = [(f"run:run-{run}", "s", 79, encode({"seq": 1}))]
    batch.blobs = {digest_bytes(body): body}
    batch.blob_refs = [(run, digest_bytes(body))]
    batch.definitions = [
        DefinitionRow(digest=DEFINITION, dialect="toy", name="flow", version="1.0.0", body={"x": 1})
    ]
    batch.versions = [VersionRow(name="flow", version="1.0.0", digest=DEFINITION, path="a/b")]
    batch.documents = [("schedule", f"doc-{run}", 80, encode({"every": run}))]
    batch.places_new = {
        f"run-{run}": PlaceRow(run=f"run-{run}", workflow="flow", lane="k", since_ns=81 + run)
    }
    return batch


def contents(reads: Reads) -> dict[str, Any]:
    """Everything a store holds, by its questions alone: for comparing two moments or two stores."""
    runs = reads.runs(limit=10_000)
    return {
        "runs": runs,
        "journal": {r.no: reads.journal_page(r.no, after_seq=0, limit=10_000) for r in runs},
        "open_ids": {r.no: [tuple(row) for row in reads.open_ids(r.no, after_seq=0)] for r in runs},
        "snapshots": {r.no: reads.snapshot_seqs(r.no) for r in runs},
        "timers": reads.timers_due(FOR_EVER, 10_000),
        "tasks": reads.tasks(limit=10_000),
        "inbox": [tuple(row) for row in reads.inbox(10_000)],
        "replies": reads.replies([f"asked-{r.no}" for r in runs]),
        "checkpoints": {r.no: reads.checkpoints(r.no) for r in runs},
        "frames": {r.no: [tuple(row) for row in reads.frames(r.no)] for r in runs},
        "events": {r.no: reads.last_event_no(r.no) for r in runs},
        "diagnostics": reads.diagnostics(),
        "versions": reads.versions(),
        "documents": reads.documents("schedule"),
        "places": [reads.place(r.id) for r in runs],
        "lines": reads.crowds(),
        "counts": reads.run_count(),
    }
