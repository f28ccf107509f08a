"""Rows as the columns of their tables, in the order of `row_reading.RUN_COLUMNS` and `reads.TASK_COLUMNS`."""

from __future__ import annotations

import json
from typing import Any

from treadle.kernel.values import Value, encode

from .packing import pack
from .protocol import Batch, RunRow, TaskRow


def optional(value: Value) -> bytes | None:
    return None if value is None else encode(value)


def record_values(batch: Batch) -> list[tuple[Any, ...]]:
    """Its records, as they are stored."""
    of = batch.dialects
    return [
        (run, seq, event_no, opens, closes, digest, pack(body, of.get(run, ""), opens, closes))
        for run, seq, event_no, opens, closes, digest, body in batch.records
    ]


def run_values(run: RunRow) -> tuple[Any, ...]:
    return (
        run.no,
        run.id,
        run.dialect,
        run.workflow,
        run.version,
        run.definition,
        optional(run.cell_key),
        run.parent,
        run.parent_intent,
        run.continued_from,
        run.reference,
        run.status,
        int(run.working),
        run.started_ns,
        run.updated_ns,
        run.ended_ns,
        run.retain_ns,
        run.seq,
        optional(run.error),
    )


def task_values(task: TaskRow) -> tuple[Any, ...]:
    return (
        task.no,
        task.id,
        task.run,
        task.run_id,
        task.workflow,
        task.name,
        task.type,
        json.dumps(task.roles),
        optional(task.payload),
        optional(task.schema),
        task.reference,
        task.status,
        task.assignee,
        task.created_ns,
        task.due_ns,
        encode(task.history),
    )
