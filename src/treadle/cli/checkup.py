"""The doctor's look at a store. It needs no ownership: it works beside a running engine, and when no
engine would start."""

from __future__ import annotations

import time
from typing import Any

from treadle.engine import store_path
from treadle.lang.duration import instant_text
from treadle.store.open import open_sqlite, schema_version
from treadle.store.owner import OwnerLock


def examine(url: str) -> dict[str, Any]:
    """How a store is: `ok`, the `problems` that make it not so, and remarks on what waits for whom."""
    path = store_path(url)
    if path is None or schema_version(path) == 0:
        return {
            "store": url,
            "ok": True,
            "problems": [],
            "exists": False,
            "remarks": ["there is no store yet"],
        }
    store = open_sqlite(path)
    try:
        problems = store.check()
        runs, inbox, due = store.run_count(), len(store.inbox(10_000)), store.timer_next()
        schema = store.schema_version
        # An idle cell is `running` too; what counts is work that nobody does.
        unattended = len(store.working(after_no=0, limit=10_000))
    finally:
        store.close()
    owner = _owner(path)
    return {
        "store": url,
        "ok": not problems,
        "problems": problems,
        "exists": True,
        "schema": schema,
        "bytes": sum(file.stat().st_size for file in path.parent.glob(path.name + "*") if file.is_file()),
        "owner": owner,
        "runs": runs,
        "inbox": inbox,
        "next_timer": instant_text(due) if due is not None else None,
        "remarks": _remarks(runs, unattended, inbox, due, owner),
    }


def _owner(path: Any) -> int | None:
    """The process that owns the store now."""
    lock = OwnerLock(path)
    if lock.acquire():
        lock.release()
        return None
    return lock.holder()


def _remarks(
    runs: dict[str, int], unattended: int, inbox: int, due: int | None, owner: int | None
) -> list[str]:
    if owner is not None:
        return []
    found = []
    if unattended:
        found.append(f"{unattended} runs have work that nobody does: treadle resume")
    if inbox:
        found.append(f"{inbox} messages wait to be read: treadle resume")
    if due is not None and due < time.time_ns():
        found.append(f"a timer is overdue since {instant_text(due)}: treadle resume")
    if runs.get("stalled"):
        found.append(
            f"{runs['stalled']} runs are stalled: treadle list --status stalled, then treadle retry ID"
        )
    return found
