"""The documents that the API answers with, as types: OpenAPI is made of them, and a test holds every answer to it.

A field that stands here is always there unless it is `NotRequired`. More may be added to a document; nothing is taken away.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypeVar

from typing_extensions import TypedDict

T = TypeVar("T")
RunStatus = Literal["queued", "running", "waiting", "stalled", "completed", "failed", "cancelled", "partial"]

# `class` is a word of Python.
Error = TypedDict(
    "Error",
    {
        "class": str,
        "code": str,
        "message": str,
        "where": NotRequired[str | None],
        "details": NotRequired[Any],
    },
)
Problem = TypedDict(
    "Problem",
    {
        "type": str,
        "title": str,
        "status": int,
        "detail": str,
        "class": str,
        "code": str,
        "where": str | None,
        "details": dict[str, Any],
        "problems": NotRequired[list[dict[str, Any]]],
    },
)


class Page(TypedDict, Generic[T]):
    """One page of a list; `next` is the cursor of the following one."""

    items: list[T]
    next: str | None


class EventPage(TypedDict):
    """Events of a run; `next` is the `after` of the following page."""

    items: list[dict[str, Any]]
    next: int | None


class DefinitionShown(TypedDict):
    name: str
    version: str | None
    dialect: str | None
    digest: str
    status: Literal["available", "unavailable"]
    reasons: list[Any]


class Deployed(TypedDict):
    items: list[DefinitionShown]


class CheckShown(TypedDict):
    ok: bool
    problems: list[dict[str, Any]]


class DefinitionBody(TypedDict):
    name: str
    version: str | None
    dialect: str
    digest: str
    path: str | None
    status: Literal["available", "unavailable"]
    reasons: list[Any]
    description: Any
    input_schema: dict[str, Any] | None
    body: Any


class PlaceInLine(TypedDict):
    position: int
    since: str


class RunShown(TypedDict):
    id: str
    workflow: str
    version: str | None
    dialect: str
    status: RunStatus
    reference: str | None
    parent: str | None
    started_at: str | None
    ended_at: str | None
    error: Error | None
    queued: NotRequired[PlaceInLine]


class WaitShown(TypedDict):
    kind: str
    id: NotRequired[str]
    name: NotRequired[str | None]
    due: NotRequired[str | None]


class RunDocument(TypedDict):
    id: str
    workflow: str
    version: str | None
    digest: str
    dialect: str
    status: RunStatus
    input: Any
    result: Any
    error: Error | None
    reference: str | None
    started_at: str | None
    ended_at: str | None
    version_no: int
    waiting_for: list[WaitShown]
    state: Any
    parent: str | None
    children: list[str]
    stats: dict[str, Any]
    queued: NotRequired[PlaceInLine | None]
    # Whether the command came too late, and changed nothing.
    stale: NotRequired[bool]


class RunsReached(TypedDict):
    """The runs that something reached or made."""

    runs: list[str]


class Replayed(TypedDict):
    id: str
    # null: a payload that it needs is gone.
    equal: bool | None


class Recorded(TypedDict):
    script: dict[str, Any]
    remarks: list[str]


class ManifestShown(TypedDict):
    name: str
    digest: str
    manifest: dict[str, Any]


class Applied(TypedDict):
    app: str
    manifest: str
    proposal: int | None


class GraphShown(TypedDict):
    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class TaskShown(TypedDict):
    id: str
    run: str
    workflow: str
    name: str
    type: str | None
    roles: list[str]
    payload: Any
    schema: Any
    reference: str | None
    status: str
    assignee: str | None
    created_at: str
    due: str | None
    history: list[dict[str, Any]]


class ScheduleShown(TypedDict):
    name: str
    workflow: str
    input: Any
    timezone: str
    catch_up: str
    overlap: str
    paused: bool
    next: list[str]
    last: Any


class LineShown(TypedDict):
    key: str
    running: int
    queued: int


class LimitShown(TypedDict):
    workflow: str
    limits: dict[str, Any] | None
    # Who said so: operator, definition; nobody where there are none.
    origin: str | None
    running: int
    queued: int
    lines: list[LineShown]


class RetentionShown(TypedDict):
    workflow: str
    # Ages by status; null where nobody says anything any more.
    keep: dict[str, str] | None


class Preview(TypedDict):
    next: list[str]


class WorkerRow(TypedDict):
    id: str
    name: str
    pools: list[str] | None
    concurrency: int | None
    busy: int | None
    version: str | None
    bus: str
    user: str
    status: Literal["live", "draining", "lost"]


class ServerRow(TypedDict):
    id: str
    name: str
    # None for an engine that shares the store and serves nobody.
    url: str | None
    version: str | None
    started_at: str
    seen_at: str
    status: Literal["live", "draining", "lost"]
    # How many of the store's shards it decides: held, of.
    shards: dict[str, int]
    # How many runs it has in memory; None where that is not known.
    runs: int | None


class Stats(TypedDict):
    runs: Any
    streams: int
    queue: Any
    unavailable: int


class Begun(TypedDict):
    """Runs that began in one stretch of time."""

    at: str
    workflow: str
    status: str
    count: int
    mean_ms: float | None


class RunHistory(TypedDict):
    since: str
    until: str
    width_s: int
    items: list[Begun]


class Insights(TypedDict):
    failures: list[dict[str, Any]]
    waits: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    costs: list[dict[str, Any]]
    sampled: dict[str, int]


class Steps(TypedDict):
    items: list[dict[str, Any]]


class Ready(TypedDict):
    ready: bool
    store: str
    bus: str
    shards: dict[str, int]
    access: Literal["open", "tokens"]
    draining: NotRequired[bool]
    # How far this server's clock is ahead of the store's, where that is more than two seconds.
    clock: NotRequired[str]


class Live(TypedDict):
    live: bool


class TokenShown(TypedDict):
    id: str
    user: str
    roles: list[str]
    workflow: str | None
    status: Literal["live", "expired", "revoked"]
    made_at: str
    expires_at: str | None


class TokenMade(TypedDict):
    id: str
    token: str
    user: str
    roles: list[str]
    expires_at: str | None


class Me(TypedDict):
    user: str
    roles: list[str]
    task_roles: list[str]
    workflow: str | None
    token: str | None
    expires_at: str | None
    access: Literal["open", "tokens"]
    may: list[str]


class OidcLogin(TypedDict):
    issuer: str
    client: str
    audience: str
    scope: str


class LoginShown(TypedDict):
    access: Literal["open", "tokens"]
    # The issuer at which the console lets people log in, and as which client.
    oidc: OidcLogin | None


class AuditShown(TypedDict):
    at: str
    user: str
    token: str | None
    action: str
    target: str
    status: str
    code: NotRequired[str | None]
    server: str | None
    request: str | None


class HookRow(TypedDict):
    name: str
    secret: str


class Removed(TypedDict):
    name: str
    removed: bool


class SecretName(TypedDict):
    name: str


class SecretChange(TypedDict):
    name: str
    status: Literal["set", "removed"]


class Cell(TypedDict):
    key: Any
    status: str


class DeadLetterShown(TypedDict):
    id: str
    at: str
    intent: str
    run: str
    worker: str
    reason: str
    error: Error
    size: int
    sample: str


class DeadLetterDone(TypedDict):
    id: str
    run: str
    intent: str


class BlobKept(TypedDict):
    digest: str
    size: int


class Registered(TypedDict):
    bus: dict[str, Any]


class WorkTaken(TypedDict):
    items: list[dict[str, Any]]
    revoked: list[str]
    bus: dict[str, Any]


class Renewed(TypedDict):
    renewed: list[str]
    lost: list[str]


class WorkSettled(TypedDict):
    settled: list[Any]
    stale: list[Any]
    refused: list[dict[str, Any]]


class ProgressKept(TypedDict):
    durable: list[Any]
    lost: list[Any]


class SecretsGiven(TypedDict):
    """A text or fields by name; a name that is nowhere is left out."""

    values: dict[str, str | dict[str, str]]


class Released(TypedDict):
    released: int


class BulkAccepted(TypedDict):
    """`id` of the job; with `dry_run` a `sample` of the runs in its place."""

    matched: int
    id: NotRequired[str]
    sample: NotRequired[list[str]]


class BulkFailure(TypedDict):
    id: str
    error: Error


class BulkShown(TypedDict):
    id: str
    action: Literal["retry", "cancel", "signal", "delete"]
    status: Literal["running", "completed", "cancelled"]
    matched: int
    done: int
    failed: int
    errors: list[BulkFailure]
    by: str
    at: str
