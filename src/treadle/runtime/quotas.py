"""Limits of workflows, as operators set and see them: what they said wins over what a definition says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from treadle.kernel.errors import Unsupported
from treadle.kernel.values import Value
from treadle.lang.pools import is_pool
from treadle.lang.quota import Quota
from treadle.store.place_rows import Crowd

from . import pools
from .lines import LIMIT, POOL
from .registry import Registry, latest

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk


class InLane(TypedDict):
    """How many are in one line of a workflow."""

    key: str
    running: int
    queued: int


class LimitsRow(TypedDict):
    """The limits of a workflow, who said them, and who is in line."""

    workflow: str
    limits: dict[str, Value] | None
    origin: Literal["definition", "operator"] | None
    running: int
    queued: int
    lines: list[InLane]


def perform(desk: Desk, body: dict[str, Value]) -> LimitsRow:
    """One operation on the limits of one workflow, as data; what they are from now on."""
    name = checked_name(body["name"])
    quota: Quota | None = None
    match body["do"]:
        case "set":
            quota = Quota.read(body["limits"])
            if name.startswith(POOL) and quota != Quota(concurrency=quota.concurrency):
                raise Unsupported(f"{name}: a pool takes concurrency, and nothing else")
            if name.startswith(POOL) and desk.store.document(LIMIT, name) is None:
                pools.begin(desk, name.removeprefix(POOL))
            desk.lines.override(name, quota)
        case "remove":
            if desk.store.document(LIMIT, name) is None:
                raise no_limit(name)
            if name.startswith(POOL):
                pools.end(desk, name.removeprefix(POOL))
            desk.lines.override(name, None)
        case other:
            raise Unsupported(f"{other!r:.40} is not an operation on limits")
    return _row(desk.store, desk.registry, name, quota)


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > 200:
        raise Unsupported("limits are set for a workflow by its name")
    if name.startswith(POOL) and not is_pool(name.removeprefix(POOL)):
        raise Unsupported(f"{name}: the name of a pool is 1 to 64 of a-z, 0-9, _ and -")
    return name


def no_limit(name: str) -> Unsupported:
    return Unsupported(
        f"nobody has set limits for {name!r:.80}; `treadle limit list` shows those that there are",
        code="LIMIT_NOT_FOUND",
    )


def listed(reads: Reads, registry: Registry) -> list[LimitsRow]:
    """Every workflow that is limited or has somebody in line."""
    set_ = {name: Quota.of(value) for name, value in reads.documents(LIMIT)}
    names = {row.name for row in reads.versions()} | set_.keys() | {line.workflow for line in reads.crowds()}
    rows = (shown(reads, registry, name) for name in sorted(names))
    return [row for row in rows if row["limits"] is not None or row["lines"]]


def shown(reads: Reads, registry: Registry, name: str) -> LimitsRow:
    """The limits of one workflow: who said them, and who is in line."""
    said = reads.document(LIMIT, name)
    return _row(reads, registry, name, None if said is None else Quota.of(said))


def _row(reads: Reads, registry: Registry, name: str, said: Quota | None) -> LimitsRow:
    """`said` is what an operator said, if one did."""
    quota = _stated(reads, registry, name) if said is None else said
    crowds = {line.lane: crowd for line, crowd in reads.crowds().items() if line.workflow == name}
    everybody = Crowd(sum(c.held for c in crowds.values()), sum(c.waiting for c in crowds.values()))
    return {
        "workflow": name,
        "limits": None if quota is None else quota.to_value(),
        "origin": None if quota is None else "definition" if said is None else "operator",
        "running": everybody.held,
        "queued": everybody.waiting,
        "lines": [
            {"key": lane, "running": crowd.held, "queued": crowd.waiting} for lane, crowd in crowds.items()
        ],
    }


def _stated(reads: Reads, registry: Registry, name: str) -> Quota | None:
    """What the latest version of a workflow says of itself."""
    usable = [row for row in reads.versions(name) if row.status == "available"]
    return registry.orders(latest(usable).digest).limits if usable else None
