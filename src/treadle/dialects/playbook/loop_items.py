"""What a loop goes over, without ever copying it into the marking if it need not be.

A range is three numbers; a path into the workload or the token's args, and a path into a result
that is stored by reference, are looked up again for each slice, because what they lead to cannot
change. Only a computed list is kept with the loop's tracker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treadle.kernel.values import Value, encode

from .bounds import Misuse
from .edition import is_first
from .handles import MISSING, Handle, attribute, bare, is_stored
from .marking import Turn, canonical
from .model import Loop
from .outcomes import collection
from .texts import bounded, is_not_there

if TYPE_CHECKING:
    from .states import LoopSource, TokenState


def describe(turn: Turn, loop: Loop, token: TokenState, where: str) -> LoopSource:
    """How to find the items again: `{"range": …} | {"path": …} | {"stored": …, "path": …} | {"list": …}`."""
    if loop.source.constant:
        return _listed(turn, collection(loop.source.value_if_constant, where))
    scope = turn.scope(token["args"], event=token.get("event") or {})
    if loop.field is None:
        # A written list, or mapping, of templates.
        return _listed(turn, canonical(collection(loop.source.render(scope), where)))
    raw = loop.field.raw(scope)
    if is_not_there(raw) and not is_first():
        raise loop.field.missing(raw)
    if isinstance(raw, range):
        return {"range": [raw.start, raw.stop, raw.step]}
    found = _lasting(turn, loop, token, raw)
    if found is not None and isinstance(items(turn, found, token), list):
        return found
    try:
        computed = bounded(raw, load=True)
    except (TypeError, ValueError, Misuse) as error:
        raise loop.field.failed(error) from error
    return _listed(turn, canonical(collection(computed, where)))


def _listed(turn: Turn, found: list[Value]) -> LoopSource:
    kept = turn.light(found)
    return {"list": found} if kept is found else {"stored": kept, "path": []}


def _lasting(turn: Turn, loop: Loop, token: TokenState, raw: Value) -> LoopSource | None:
    assert loop.field is not None
    path = loop.field.expression.path
    if path is None:
        return None
    if path[0] in ("workload", "args"):
        root = turn.state["workload"] if path[0] == "workload" else {} if is_first() else token["args"]
        large = root.get(path[1]) if len(path) > 1 else None
        if large is not None and is_stored(large):
            return {"stored": large, "path": list(path[2:])}
        return {"path": list(path)}
    if isinstance(raw, Handle) and is_stored(raw.raw):
        return {"stored": raw.raw, "path": []}
    entry = turn.state["steps"].get(path[0])
    if entry is not None and is_stored(entry.get("result")) and path[0] not in turn.state["ctx"]:
        return {"stored": entry["result"], "path": list(path[1:])}
    return None


def item_of(source: LoopSource, value: Value, index: int, limit: int) -> Value:
    """One item as its iteration gets it: a large one of a stored collection goes by its address."""
    stored = source.get("stored")
    if stored is None or "parts" in stored or len(encode(value)) <= limit:
        return value
    address = {key: part for key, part in stored.items() if key not in ("preview", "extracted", "ttl")}
    return {**address, "path": [*(stored.get("path") or ()), *source["path"], index]}


def items(turn: Turn, source: LoopSource, token: TokenState) -> Sequence[Value]:
    """The items behind a description."""
    found: Sequence[Value]
    if "list" in source:
        found = source["list"]
        return found
    if "range" in source:
        return range(*source["range"])
    value: Any
    if "stored" in source:
        value = Handle(source["stored"])
        path = source["path"]
    else:
        root, *path = source["path"]
        value = turn.state["workload"] if root == "workload" else token["args"]
    for name in path:
        value = attribute(value, name)
    found = bare(value)
    return [] if found is MISSING or found is None else found
