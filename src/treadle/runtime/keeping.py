"""House-keeping: forks, collection of what is past its date, the doctor's questions."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from treadle.kernel.errors import RunExists, Unsupported
from treadle.kernel.history import fork as fork_run
from treadle.kernel.model import TERMINAL
from treadle.store.protocol import DefinitionRow, Reads, RunRow

from .core import Core
from .document import row_of
from .hot import Hot, load_state, open_work

COLLECT_PER_COMMIT = 200


def fork(
    core: Core, id: str, *, at: int | None, definition: DefinitionRow | None, new_id: str
) -> dict[str, Any]:
    """A new run from a run's state at a record; its open work is reissued under ids of its own."""
    row = row_of(core.store, id)
    if core.store.run(new_id) is not None:
        raise RunExists(f"a run {new_id!r} exists already; choose another id")
    source = load_state(row, core.store, core.registry, core.blobs, until_seq=at)
    if at is not None and source.seq != at:
        raise Unsupported(f"{id} has no record {at}; its last is {source.seq}", code="NO_SUCH_RECORD")
    digest = definition.digest if definition is not None else source.definition
    loaded = core.registry.load(digest)
    if loaded.row.dialect != source.dialect:
        raise Unsupported(f"{id} is a {source.dialect} run; the definition is a {loaded.row.dialect}")
    if definition is not None and (problem := loaded.machine.compatible(loaded.definition, source.state)):
        raise Unsupported(
            f"{id} cannot go on under {definition.name}: {problem}", code="INCOMPATIBLE_DEFINITION"
        )
    state, step = fork_run(
        source, id=new_id, definition=digest, seed=core.entropy(16), at_ns=core.clock.now_ns()
    )
    state.workflow, state.version = loaded.row.name, loaded.row.version
    new = RunRow(
        no=core.next_run_no,
        id=new_id,
        dialect=state.dialect,
        workflow=state.workflow,
        version=state.version,
        definition=digest,
        cell_key=state.key,
    )
    core.next_run_no += 1
    core.adopt(Hot(state, new.no, 0, loaded.machine, loaded.definition, new, set()), step)
    return {"run": new_id}


def awaiting(reads: Reads, reference: str, name: str) -> list[str]:
    """The runs with a business reference that wait for a signal."""
    found = []
    for row in reads.runs(reference=reference, limit=10_000):
        if row.status not in TERMINAL:
            waits = open_work(row, reads).values()
            if any(intent.kind == "signal" and intent.params["name"] == name for intent in waits):
                found.append(row.id)
    return sorted(found)


async def collect(
    write: Callable[[Callable[[Core], Any]], Awaitable[Any]], *, now_ns: int | None, dry_run: bool
) -> dict[str, int]:
    """Removes in small commits, so that nothing else waits long."""
    removed = 0
    while True:
        count = await write(lambda core: _collect_some(core, now_ns, dry_run))
        removed += count
        if dry_run or count < COLLECT_PER_COMMIT:
            break
    blobs = 0 if dry_run else await write(_sweep)
    return {"runs": removed, "blobs": blobs}


def _sweep(core: Core) -> int:
    from .cells import pinned  # only here are reactive applications of interest to everybody

    return core.store.sweep(keep=pinned(core))


def _collect_some(core: Core, now_ns: int | None, dry_run: bool) -> int:
    now = core.clock.now_ns() if now_ns is None else now_ns
    rows = core.store.retained(now, 1_000_000 if dry_run else COLLECT_PER_COMMIT)
    if not dry_run:
        for row in rows:
            core.hot.drop(row.id)
            core.staged.batch.runs_removed.append(row.no)
    return len(rows)


def diagnosis(core: Core, *, url: str) -> dict[str, Any]:
    problems = core.store.check()
    return {
        "store": url,
        "ok": not problems,
        "problems": problems,
        "runs": core.store.run_count(),
        "rows": dict(getattr(core.store, "counts", lambda: ())()),
        "hot_runs": len(core.hot),
        "inbox": len(core.store.inbox(10_000)),
        "next_timer_ns": core.store.timer_next(),
        "process": os.getpid(),
    }
