"""The state of an agent's run, as types: what is known key by key. All of it is canonical values.

A branch has at most one open intent, whose `ref` is the branch's id.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from treadle.kernel.values import Value

Mapped = dict[str, Value]
# What is kept of a visit for later nodes: [node, data] or [node, data, evals]; a chunk of them by reference.
Item = Value
# Where a branch goes on: [branch, "enter", node], [branch, "route", node],
# [branch, "follow", [edge, reason, traced]], [branch, "settle", [node, status, data, extra]],
# [branch, "visit", node] (the one that is paused), and [branch, "begin", attempt] inside a visit.
Ready = list[Value]


class UsageState(TypedDict):
    input_tokens: int
    output_tokens: int
    usd: float


class VisitState(TypedDict):
    """One visit of a node: turns of its model, calls of its tools, verdicts on its result."""

    node: str
    iteration: int
    attempt: int
    turn: int
    tries: int
    stage: str
    usage: UsageState
    spent: UsageState
    calls: list[Value]
    evals: list[Mapped]
    bytes: int
    # The call that is being made: which of the turn's, and what the turn said.
    at: NotRequired[int]
    pending: NotRequired[list[Mapped]]
    results: NotRequired[list[Value]]
    text: NotRequired[Value]
    unread: NotRequired[Value]
    history: NotRequired[Value]
    preamble: NotRequired[Value]
    # A question to a person, and what they said.
    approval: NotRequired[Value]
    question: NotRequired[Value]
    # The key of a call of which nobody knows whether it took effect.
    doubt: NotRequired[Value]
    # A result that is judged, or on its way out.
    data: NotRequired[Value]
    asked: NotRequired[Value]
    nth: NotRequired[int]
    leaving: NotRequired[Value]


class Branch(TypedDict):
    """One thread of the run, "0" the first. `base` is what it was forked with, `own` what it added."""

    id: str
    # Its group; "" for the first.
    parent: str
    base: list[Item]
    own: list[Item]
    # The item that each of its nodes left.
    data: dict[str, Item]
    visit: VisitState | None
    # The visit it was in when the run was stopped.
    paused: VisitState | None


class GroupState(TypedDict):
    """A fork that has not joined yet; `parent` is the branch that waits for it."""

    parent: str
    join: str | None
    branches: list[str]
    left: int
    goal: Value
    own: dict[str, list[Item]]
    data: dict[str, dict[str, Item]]


class AgentState(TypedDict):
    # What was known before the first node. `setup` refers to what step 0 found, `texts` is the digest of the
    # Sources as they are written; `sources` and `skills` are references when they are many.
    input: Value
    dry: bool
    setup: Value
    texts: str | None
    sources: Value
    skills: Value
    # References to long contents, and warnings and absent skills, per node.
    long: Mapped
    warnings: dict[str, list[str]]
    absent: NotRequired[dict[str, list[str]]]
    # What people see; `bytes` is the size of the results, `missing` the declared output nobody was warned of.
    results: dict[str, Mapped]
    steps: list[Mapped]
    edges: list[Mapped]
    usage: UsageState
    retries: int
    bytes: int
    missing: Mapped
    trace: NotRequired[Value]
    # Edges followed, visits per node, visits in all, runs and routes per node; questions in all and per kind, so
    # that a scripted answer follows from the request.
    counts: dict[str, int]
    iterations: dict[str, int]
    visits: int
    runs: dict[str, int]
    routes: dict[str, int]
    asks: int
    node_asks: Mapped
    branches: dict[str, Branch]
    groups: dict[str, GroupState]
    forks: int
    ended: Value
    # A dry run came to a decision: nothing more is entered.
    halted: bool
    # Where the branches of a run that was stopped go on if a person retries it.
    resume: list[Ready]
    # A long result in the making.
    seal: Value
    # What a person set instead of the budgets of the workflow and its nodes.
    budget: NotRequired[Mapped]
