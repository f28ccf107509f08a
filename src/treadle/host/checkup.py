"""The doctor, at a store's address or inside an engine: at an address it needs no ownership, and never brings a store
up to date."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.definitions.dialects import Dialects
from treadle.definitions.library import Library
from treadle.lang.duration import instant_text
from treadle.runtime import doctor
from treadle.runtime.registry import Registry
from treadle.store.figures import DEAD_LETTER
from treadle.store.open import has_store, is_postgres, newest_schema, read_store, shown, store_path
from treadle.store.owner import OwnerLock

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


def examine(
    url: str, *, deep: bool = False, tell: doctor.Tell | None = None, pace: doctor.DoctorPace = doctor.PACE
) -> dict[str, Any]:
    """How a store is: `ok`, the `problems` that make it not so, and remarks on what waits for whom."""
    path = None if is_postgres(url) else store_path(url)
    if (path is None and not is_postgres(url)) or not has_store(url):
        return {
            "store": shown(url),
            "ok": True,
            "problems": [],
            "exists": False,
            "remarks": ["there is no store yet"],
        }
    owner = _owner(path) if path is not None else None
    with closing(read_store(url)) as reads:
        registry = Library(Dialects()).registry(reads)
        return report(reads, registry, url, owner, deep=deep, tell=tell, pace=pace)


def report(
    reads: Reads,
    registry: Registry,
    url: str,
    owner: int | None,
    *,
    deep: bool = False,
    tell: doctor.Tell | None = None,
    pace: doctor.DoctorPace = doctor.PACE,
) -> dict[str, Any]:
    """What the doctor says of a store that `owner` drives, if anybody does."""
    newest = newest_schema(url)
    current = reads.schema_version >= newest
    found = doctor.examine(reads, registry, deep=deep, tell=tell, current=current, pace=pace)
    runs, inbox, due = reads.run_count(), len(reads.inbox(10_000)), reads.timer_next()
    # An idle cell is `running` too; what counts is work that nobody does.
    unattended = len(reads.working(after_no=0, limit=10_000))
    letters = [body for _, body in reads.documents(DEAD_LETTER)]
    path = None if is_postgres(url) else store_path(url)
    remarks = _remarks(runs, unattended, inbox, due, owner)
    remarks += [_slow(work, owner) for work in found["open_long"]]
    remarks += [_letter(letter) for letter in letters[: doctor.SHOWN_MAX]]
    if not current:
        remarks.append(f"the store has schema {reads.schema_version} of {newest}: treadle migrate")
    if not found["checked"]["all"]:
        remarks.append("the store is large, and not all of it was looked at: treadle doctor --deep")
    return {
        "store": shown(url),
        **found,
        "exists": True,
        "schema": reads.schema_version,
        "bytes": _size(path),
        "owner": owner,
        "runs": runs,
        "inbox": inbox,
        "dead_letters": len(letters),
        "next_timer": instant_text(due) if due is not None else None,
        "remarks": remarks,
    }


def bus_away(found: dict[str, Any], bus: str) -> dict[str, Any]:
    """What the doctor says where the bus does not answer."""
    message = "it does not answer; runs are taken, their work waits"
    finding = {
        "what": "bus",
        "id": shown(bus),
        "message": message,
        "remedy": "start it, or look at the way to it",
    }
    return {
        **found,
        "ok": False,
        "problems": [*found["problems"], f"bus {finding['id']}: {message}"],
        "findings": [*found.get("findings", ()), finding],
    }


def _slow(work: doctor.OpenLong, owner: int | None) -> str:
    """Work that is open for long, and what to do about it."""
    run = work["run"]
    what = f"{run}: {work['step']} ({work['kind']}) is open since {work['since']}"
    if owner is None:
        return f"{what}, and nobody is at it: treadle resume {run}"
    return f"{what}; process {owner} should be at it: treadle logs {run} shows what it says, treadle cancel {run} gives it up"


def _letter(letter: dict[str, Any]) -> str:
    """What a worker sent back that could not be used, and what to do about it."""
    return (
        f"dead letter {letter['id']}: {letter['run']} got {letter['reason']} from the worker {letter['worker']}; mend the "
        f"worker, then POST /deadletters/{letter['id']}/replay, or /discard"
    )


def _size(path: Path | None) -> int | None:
    if path is None:
        return None
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*") if file.is_file())


def _owner(path: Path) -> int | None:
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
