"""The state of a playbook's run, as types: what the marking holds, key by key.

All of it is canonical values in plain mappings, so that a snapshot is the state itself; the types cost nothing
when it runs. A key that is not always there is `NotRequired`.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from treadle.kernel.values import Value

Mapped = dict[str, Value]
# A write to ctx: a dotted path and its value.
Write = list[Value]
Phase = Literal["flow", "keychain", "failure", "final", "cancel", "over"]


class Hold(TypedDict):
    """A pipeline that waits: its frame, what it waits for; and the id its keys are made of, if a worker had it."""

    frame: Value
    on: Mapped
    first: NotRequired[str]


class AgainState(TypedDict):
    """Where the pipeline of a failed step-run stood, so that a retry goes on there."""

    frame: Value
    first: str


class Part(TypedDict):
    """A chunk of a loop's results in the store (None: on its way there, 0.1.0)."""

    id: int
    level: int
    stored: Value


class Leased(TypedDict):
    first: int
    slots: int


class LoopSource(TypedDict, total=False):
    """Where a loop's items are; one of `range`, `list`, `path`, or `stored` with a `path` inside it."""

    range: list[int]
    list: list[Value]
    path: list[str]
    stored: Mapped


class WrittenState(TypedDict):
    """What the iterations of a loop have written to ctx so far. `above` has the paths above written ones."""

    writes: Mapped
    appends: NotRequired[dict[str, list[list[Value]]]]
    above: NotRequired[dict[str, bool]]


class Tracker(WrittenState):
    """A loop under way: a cursor, counters, and results that wait for their turn."""

    source: LoopSource
    total: int
    limit: int
    next: int
    running: list[int]
    success: int
    failed: int
    low: int
    held: Mapped
    chunk: list[Value]
    chunk_bytes: int
    parts: list[Part]
    keeping: int
    chunks: NotRequired[int]
    stopped: NotRequired[bool]
    # The first error of an iteration, and what failed the loop itself.
    error: NotRequired[Mapped]
    wrong: NotRequired[Mapped]
    lease: NotRequired[Leased]
    reduced: NotRequired[Value]


# `from` is a word of Python's, so these two are written the other way.
_From = TypedDict("_From", {"from": str}, total=False)
Collected = TypedDict("Collected", {"from": str | None, "args": Mapped})


class TokenState(_From):
    """`ready` to be admitted, `pending` (denied, parked), `running`, or `storing` its arguments (0.1.0)."""

    step: str
    status: Literal["ready", "storing", "running", "pending"]
    args: Mapped
    event: NotRequired[Mapped]
    joined: NotRequired[bool]
    special: NotRequired[str]
    denied: NotRequired[int | None]
    due: NotRequired[bool]
    loop: NotRequired[Tracker]
    holds: NotRequired[dict[str, Hold]]
    again: NotRequired[AgainState]


_Sources = TypedDict("_Sources", {"from": list[str | None]})


class Gathering(_Sources):
    """A join that collects tokens. One that has `fired` takes in the late ones of its round."""

    tokens: list[Collected]
    fired: NotRequired[bool]


class StepEntry(TypedDict):
    """A step that has begun at least once."""

    status: Literal["running", "done", "failed"]
    runs: int
    active: int
    result: NotRequired[Value]
    error: NotRequired[Mapped]
    latched: NotRequired[bool]


class Failed(TypedDict):
    step: str
    error: Mapped
    hard: bool
    args: Mapped
    special: NotRequired[str]
    again: NotRequired[AgainState]


class Halted(TypedDict):
    step: str
    args: Mapped
    again: NotRequired[AgainState]


class PlaybookState(TypedDict):
    workload: Mapped
    ctx: Mapped
    steps: dict[str, StepEntry]
    tokens: dict[str, TokenState]
    # Tokens by name: to be looked at, and denied ones.
    ready: list[str]
    parked: list[str]
    joins: dict[str, dict[str, Gathering]]
    failures: list[Failed]
    halted: list[Halted]
    # How many tokens there were, step-runs by how they ended, branches that came to their end.
    n: int
    done: int
    failed: int
    branches: int
    phase: Phase
    # The step that ended last.
    last: str | None
    # Events that had no room in their record.
    backlog: list[Mapped]
    hard: NotRequired[bool]
    succeeded: NotRequired[bool]
    closing: NotRequired[str]
    cancelled: NotRequired[Mapped]
