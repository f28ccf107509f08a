"""Loops: a cursor and counters in the marking, a few iterations in flight (seed 004 §5.3, §8).

A million items with `max_in_flight: 10` keep ten iterations. Results stay in item order: finished
ones are held until all before them are finished (iterations run ahead by at most `AHEAD_MAX`), and
leave in chunks for the blob store, so neither the marking nor the journal grows with the loop. The
references of many chunks are stored as a chunk of their own, and so on, level by level.

`exec: distributed` opens one intent per iteration. `exec: local` hands a lease of many iterations to
one worker, which reports how each of them ended and gives back those it did not begin.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import ExpressionError
from treadle.kernel.limits import INT_MAX, INT_MIN
from treadle.kernel.model import Intent
from treadle.kernel.values import Value, encode

from . import loop_items, waiting
from .edition import is_first
from .errands import KIND, LeaseParams
from .failures import failure, template_failure
from .handles import payload_of
from .layers import merge
from .marking import Ref, Turn, canonical
from .model import MAX_IN_FLIGHT, Step
from .outcomes import NotACollection
from .pools import pool_of

if TYPE_CHECKING:
    from .states import TokenState, Tracker, WrittenState

AHEAD_MAX: Final = 1024
# Results that come free all at once, behind a slow item, are cut into chunks of this size.
CUT_BYTES_MAX: Final = 256 * 1024
# So many iterations at most are in one lease of a local loop: their events fit into one decision.
LEASE_ITEMS_MAX: Final = 64
LEASE_BYTES_MAX: Final = 64 * 1024


def start(turn: Turn, step: Step, token: TokenState) -> dict[str, Value] | None:
    """Sets a loop up in its token. The error of a collection that is none, else None."""
    loop = step.loop
    assert loop is not None
    where = f"step {step.name!r}, loop.in"
    try:
        source = loop_items.describe(turn, loop, token, where)
        limit: Value = 1
        if loop.mode == "parallel":
            limit = MAX_IN_FLIGHT
            if loop.max_in_flight is not None:
                limit = loop.max_in_flight.render(turn.scope(token["args"]))
        if isinstance(limit, str) and limit.strip().isdigit():
            limit = int(limit)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            return failure(
                "schema", f"step {step.name!r}: max_in_flight is {limit!r:.200}, not a number above 0"
            )
    except NotACollection as error:
        return failure("schema", str(error))
    except ExpressionError as error:
        return template_failure(error)
    total = len(loop_items.items(turn, source, token))
    token["loop"] = {
        "source": source,
        "total": total,
        "limit": limit,
        "next": 0,
        "running": [],
        "success": 0,
        "failed": 0,
        "low": 0,
        "held": {},
        "chunk": [],
        "chunk_bytes": 0,
        "parts": [],
        "keeping": 0,
        "writes": {},
    }
    turn.tell(step.told.started)
    turn.emit("loop.started", step=step.name, data={"total": total})
    return None


def fill(turn: Turn, name: str, step: Step, token: TokenState, params: dict[str, Value]) -> None:
    """Opens iterations while the loop's limit and the turn's room allow."""
    tracker, loop = token["loop"], step.loop
    assert loop is not None
    if tracker.get("stopped"):
        return
    if loop.local:
        _fill_lease(turn, name, step, token, params)
        return
    values, waits = None, step.only_waits and turn.takes_waits
    while (
        len(tracker["running"]) < tracker["limit"]
        and tracker["next"] < tracker["total"]
        and tracker["next"] - tracker["low"] < AHEAD_MAX
    ):
        if not turn.room:
            turn.again = True
            return
        if values is None:
            values = loop_items.items(turn, tracker["source"], token)
        index = tracker["next"]
        tracker["next"] = index + 1
        tracker["running"].append(index)
        turn.emit("loop.iteration.started", step=step.name, iteration=index)
        item = loop_items.item_of(tracker["source"], values[index], index, turn.playbook.inline_bytes_max)
        iteration = {**turn.own_iter, loop.iterator: item, "index": index}
        own = {**params, "iteration": index, "total": tracker["total"], "iter": iteration}
        ref = Ref(name, index)
        if not (waits and waiting.begin(turn, ref, step, token, own)):
            turn.open(Intent(kind=KIND, params=own, ref=str(ref), pool=pool_of(step)))


def _fill_lease(turn: Turn, name: str, step: Step, token: TokenState, params: dict[str, Value]) -> None:
    """Hands the next iterations to one worker, unless one has some already."""
    tracker, loop = token["loop"], step.loop
    assert loop is not None
    slots = tracker["limit"] - len(tracker["running"])
    first = tracker["next"]
    stop = min(tracker["total"], first + LEASE_ITEMS_MAX, tracker["low"] + AHEAD_MAX)
    if tracker.get("lease") or slots < 1 or first >= stop:
        return
    if not turn.room:
        turn.again = True
        return
    values = loop_items.items(turn, tracker["source"], token)
    items: list[Value] = []
    size = 0
    for index in range(first, stop):
        item = loop_items.item_of(tracker["source"], values[index], index, turn.playbook.inline_bytes_max)
        items.append(item)
        size += len(encode(item))
        if size > LEASE_BYTES_MAX:
            break
    lease: LeaseParams = {"first": first, "items": items, "slots": slots, "total": tracker["total"]}
    if tracker["writes"]:
        lease["writes"] = tracker["writes"]
    if tracker.get("appends"):
        lease["appends"] = tracker["appends"]
    tracker["lease"] = {"first": first, "slots": min(slots, len(items))}
    own = {**params, "lease": lease}
    turn.open(Intent(kind=KIND, params=own, ref=str(Ref(name, mark="lease")), pool=pool_of(step)))


def take_lease(tracker: Tracker) -> list[int]:
    """Ends a lease; gives the iterations that were surely under way in it."""
    lease = tracker.pop("lease", None)
    if lease is None:
        return []
    began = list(range(lease["first"], lease["first"] + lease["slots"]))
    tracker["next"] = lease["first"] + lease["slots"]
    return began


def settle(
    turn: Turn,
    step: Step,
    token: TokenState,
    index: int,
    *,
    result: Value,
    error: Value,
    writes: list[list[Value]],
) -> None:
    """Counts one finished iteration."""
    tracker = token["loop"]
    tracker["running"].remove(index)
    error = error or conflict(step, tracker, writes)
    if error is None or error.get("kind") != "ctx_conflict":
        assert step.loop is not None
        # A list that grows is recorded by what it grew by: the journal stays as long as the loop.
        grown = [[p, {"append": value}] for p, value in writes] if step.loop.conflicts == "append" else None
        turn.patch(patches(step, tracker, index, writes), grown, step=step.name, iteration=index)
    if error is None:
        tracker["success"] += 1
        turn.emit("loop.iteration.done", step=step.name, iteration=index)
        _reduce(step, tracker, result)
    else:
        tracker["failed"] += 1
        tracker.setdefault("error", error)
        turn.emit("loop.iteration.failed", step=step.name, iteration=index, error=error)
    _collect(turn, tracker, index, result if error is None else None)


def must_stop(step: Step, token: TokenState) -> bool:
    assert step.loop is not None
    return bool(token["loop"]["failed"]) and not step.loop.best_effort


def stop(turn: Turn, name: str, step: Step, token: TokenState, kind: str, message: str) -> None:
    """Takes the running iterations back; each is recorded as failed."""
    tracker = token["loop"]
    tracker["stopped"] = True
    for ref in turn.open_refs(name):
        parsed = Ref.parse(ref)
        if parsed.iteration is not None or parsed.mark == "lease":
            turn.cancel(ref)
    token.pop("holds", None)
    for index in [*tracker["running"], *take_lease(tracker)]:
        tracker["failed"] += 1
        error = failure(kind, message, code=kind.upper())
        turn.emit("loop.iteration.failed", step=step.name, iteration=index, error=error)
        _collect(turn, tracker, index, None)
    tracker["running"] = []


def is_over(token: TokenState) -> bool:
    tracker = token["loop"]
    ended = tracker["next"] >= tracker["total"] or bool(tracker.get("stopped"))
    return ended and not tracker["running"] and not tracker.get("lease")


def kept(turn: Turn, name: str, tracker: Tracker, part: int, reference: Value) -> None:
    """A chunk of results is in the blob store. The oldest of a level that has enough of them are
    folded into one of the next, so levels stand in falling order and items in theirs."""
    next(entry for entry in reversed(tracker["parts"]) if entry["id"] == part)["stored"] = reference
    tracker["keeping"] -= 1
    _fold(turn, name, tracker)


def _fold(turn: Turn, name: str, tracker: Tracker) -> None:
    parts, count = tracker["parts"], turn.slices.fold_parts
    for start in range(len(parts) - count + 1):
        level = parts[start]["level"]
        first_of_level = start == 0 or parts[start - 1]["level"] != level
        group = parts[start : start + count]
        if first_of_level and all(e["stored"] and e["level"] == level for e in group):
            del parts[start : start + count]
            _keep(turn, name, tracker, _manifest([e["stored"] for e in group]), level + 1, at=start)
            return


def keep_chunks(turn: Turn, name: str, tracker: Tracker) -> None:
    """Puts full chunks of results away (in 0.1.0 a worker did). One slow item may have held back many: they
    leave in several chunks, in slices if need be."""
    while is_full(turn, tracker):
        if not turn.room:
            turn.again = True
            return
        chunk = tracker["chunk"]
        count, size = _cut(chunk, tracker["chunk_bytes"])
        _keep(turn, name, tracker, chunk[:count], 0, at=len(tracker["parts"]))
        tracker["chunk"], tracker["chunk_bytes"] = chunk[count:], tracker["chunk_bytes"] - size


def is_full(turn: Turn, tracker: Tracker) -> bool:
    """Whether results wait that are too many to stay in the marking."""
    slices = turn.slices
    return len(tracker["chunk"]) >= slices.chunk_items or tracker["chunk_bytes"] >= slices.chunk_bytes


def _cut(chunk: list[Value], size: int) -> tuple[int, int]:
    """How many results make one chunk, and their size: all there are, unless they fill a record."""
    if size <= CUT_BYTES_MAX:
        return len(chunk), size
    count = taken = 0
    while taken < CUT_BYTES_MAX:
        taken += len(encode(chunk[count]))
        count += 1
    return count, taken


def _keep(turn: Turn, name: str, tracker: Tracker, chunk: Value, level: int, *, at: int) -> None:
    tracker["chunks"] = part = tracker.get("chunks", 0) + 1
    if not is_first():
        stored = turn.store(chunk, "loop results")
        tracker["parts"].insert(at, {"id": part, "level": level, "stored": stored})
        _fold(turn, name, tracker)
        return
    step = turn.state["tokens"][name]["step"]
    params = {"name": step, "step": step, "keep": chunk}
    turn.open(Intent(kind=KIND, params=params, ref=str(Ref(name, mark="keep", part=part))))
    tracker["parts"].insert(at, {"id": part, "level": level, "stored": None})
    tracker["keeping"] += 1


def _manifest(parts: list[Value]) -> dict[str, Value]:
    return {"kind": "manifest", "strategy": "concat", "parts": parts}


def result_of(turn: Turn, step: Step, token: TokenState) -> dict[str, Value]:
    tracker = token["loop"]
    results: Value = tracker["chunk"]
    if tracker["parts"]:
        parts = [entry["stored"] for entry in tracker["parts"]]
        rest = [tracker["chunk"]] if tracker["chunk"] else []
        results = {**_manifest(parts + rest), "count": tracker["low"]}
    stats = {"total": tracker["total"], "success": tracker["success"], "failed": tracker["failed"]}
    out: dict[str, Value] = {"results": results, "stats": stats}
    reduce = step.loop.reduce if step.loop is not None else None
    if reduce == "collect":
        out["reduced"] = [r for r in results if r is not None] if isinstance(results, list) else results
    elif reduce is not None:
        out["reduced"] = turn.light(tracker.get("reduced", 0 if reduce == "sum" else {}))
    return out


def _collect(turn: Turn, tracker: Tracker, index: int, result: Value) -> None:
    held = tracker["held"]
    held[str(index)] = result
    while (key := str(tracker["low"])) in held:
        value = held.pop(key)
        tracker["chunk"].append(value)
        tracker["chunk_bytes"] += len(encode(value))
        tracker["low"] += 1


def _reduce(step: Step, tracker: Tracker, result: Value) -> None:
    reduce = step.loop.reduce if step.loop is not None else None
    if reduce == "sum" and isinstance(result, int | float) and not isinstance(result, bool):
        total = tracker.get("reduced", 0) + result
        if INT_MIN <= total <= INT_MAX or (isinstance(total, float) and math.isfinite(total)):
            tracker["reduced"] = total
        else:
            message = f"step {step.name!r}: the sum of its results is no number of 64 bits any more"
            tracker["wrong"] = failure("schema", message)
    elif reduce == "merge" and isinstance(result, dict):
        own = result if is_first() else payload_of(result)
        if isinstance(own, dict):
            tracker["reduced"] = canonical(merge(tracker.get("reduced", {}), own))


def conflict(step: Step, tracker: WrittenState, writes: list[list[Value]]) -> dict[str, Value] | None:
    """Two parallel iterations that write different values to one key contradict each other."""
    loop = step.loop
    assert loop is not None
    if loop.mode != "parallel" or loop.conflicts != "reject":
        return None
    known: dict[str, Value] = tracker["writes"]
    for path, value in writes:
        if _contradicts(known, tracker.get("above") or {}, path, value):
            message = f"step {step.name!r}: iterations write different values to ctx.{path}"
            return failure(
                "ctx_conflict",
                message,
                code="CTX_CONFLICT",
                details={"key": path, "remedy": "loop.spec.policy.ctx: last_write or append"},
            )
    return None


def _contradicts(known: dict[str, Value], above: dict[str, Value], path: str, value: Value) -> bool:
    """Whether an earlier iteration wrote something else to this key, to one above or one below it."""
    if path in known:
        return bool(known[path] != value)
    return path in above or any(parent in known for parent in _parents(path))


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def patches(step: Step, tracker: WrittenState, index: int, writes: list[list[Value]]) -> list[list[Value]]:
    """What an iteration's writes make of ctx, under the loop's policy; remembers them for the next."""
    loop = step.loop
    assert loop is not None
    if loop.conflicts == "append":
        appended = tracker.setdefault("appends", {})
        for path, value in writes:
            entries = appended.setdefault(path, [])
            entries.append([index, value])
            entries.sort(key=lambda entry: entry[0])
        return [[path, [value for _, value in appended[path]]] for path, _ in writes]
    if loop.mode == "parallel" and loop.conflicts == "reject":
        tracker["writes"].update((path, value) for path, value in writes)
        for path, _ in writes:
            if parents := _parents(path):
                tracker.setdefault("above", {}).update(dict.fromkeys(parents, True))
    return writes
