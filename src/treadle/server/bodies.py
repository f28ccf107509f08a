"""What requests may say: each body as a type. A field that is not here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from treadle.bus.data import TAKE_MAX

# What every reader of JSON can count to; no store comes near it.
NUMBER_MAX: Final = 2**53 - 1
Version = Annotated[int, Field(ge=0, le=NUMBER_MAX)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class File(Body):
    path: str = Field(min_length=1, max_length=500)
    text: str


class DefinitionsBody(Body):
    files: list[File] = Field(min_length=1, max_length=10_000)
    validation: Literal["strict", "warn"] | None = None


class StartBody(Body):
    workflow: str | None = None
    files: list[File] | None = None
    main: str | None = None
    input: Any = None
    id: str | None = Field(default=None, min_length=1, max_length=200)
    key: Any = None
    reference: str | None = None
    model: str | None = None
    priority: int | None = Field(default=None, ge=-100, le=100)
    offline: bool = False
    dry_run: bool = False
    # Further Sources of an agent run, by name.
    templates: dict[str, Any] | None = None


class SignalBody(Body):
    name: str = Field(min_length=1)
    data: Any = None
    key: str | None = None
    expected_version: Version | None = None


class SignalReference(Body):
    reference: str
    name: str = Field(min_length=1)
    data: Any = None


class CancelBody(Body):
    reason: str = ""


class RetryBody(Body):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    from_: str | None = Field(default=None, alias="from")
    input: Any = None
    skip: bool | None = None
    value: Any = None
    fail: str | None = None
    definition: str | None = None
    # The mended definition itself, for this run alone: nothing is deployed.
    files: list[File] | None = None
    main: str | None = None
    budget: Any = None


class PatchBody(Body):
    data: dict[str, Any]


class ForkBody(Body):
    at: int | None = Field(default=None, ge=1, le=NUMBER_MAX)
    id: str | None = Field(default=None, min_length=1, max_length=200)
    definition: str | None = None
    # The definition itself, which is not deployed.
    files: list[File] | None = None
    main: str | None = None


class ReplayBody(Body):
    against: str | None = None
    # The definition itself, which is not deployed.
    files: list[File] | None = None
    main: str | None = None


class AssignBody(Body):
    to: str = Field(min_length=1)


class CommentBody(Body):
    text: str


class CompleteBody(Body):
    data: Any = None
    expected_version: Version | None = None


class Nothing(Body):
    """An empty object, or no body at all."""


class PublishBody(Body):
    event: str
    value: Any = None
    key: Any = None
    submission_id: str | None = None


class RunFilter(Body):
    """Which runs: the parameters of `GET /runs`, or ids, or all."""

    ids: list[str] | None = Field(default=None, max_length=100_000)
    all: bool = False
    status: list[str] | None = None
    workflow: str | None = None
    reference: str | None = None
    parent: str | None = None
    since: str | None = None
    until: str | None = None
    search: str | None = None

    @field_validator("status", mode="before")
    @classmethod
    def _one_status(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value


class BulkAsked(Body):
    action: Literal["retry", "cancel", "signal", "delete"]
    filter: RunFilter
    arguments: dict[str, Any] | None = None
    dry_run: bool = False


class BulkRetry(Body):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    from_: str | None = Field(default=None, alias="from")
    input: Any = None
    skip: bool | None = None
    value: Any = None
    fail: str | None = None
    # Deployed, by name: one definition for all.
    definition: str | None = None
    budget: Any = None


class BulkSignal(Body):
    name: str = Field(min_length=1)
    data: Any = None
    key: str | None = None


class SchedulePreview(Body):
    cron: str | None = None
    every: str | None = None
    at: str | None = None
    timezone: str | None = None
    offset: str | None = None
    count: int = Field(default=5, ge=1, le=1000)


class ScheduleChange(Body):
    workflow: str | None = None
    input: Any = None
    cron: str | None = None
    every: str | None = None
    at: str | None = None
    timezone: str | None = None
    offset: str | None = None
    jitter: str | None = None
    catch_up: Literal["none", "last", "all"] | None = None
    overlap: Literal["allow", "skip", "queue", "cancel"] | None = None
    paused: bool | None = None


class ScheduleNew(ScheduleChange):
    name: str = Field(min_length=1, max_length=150)
    workflow: str = Field(min_length=1)


class LimitsSet(Body):
    concurrency: int | None = Field(default=None, ge=1, le=1_000_000)
    per: str | None = None
    rate: str | None = None
    queue: int | None = Field(default=None, ge=0, le=1_000_000)
    priority: int | None = Field(default=None, ge=-100, le=100)
    while_: Literal["running"] | None = Field(default=None, alias="while")


class RetentionSet(Body):
    keep: str | dict[str, str]


class OfWorker(Body):
    worker: str = Field(min_length=1, max_length=200)


Names = list[Annotated[str, Field(min_length=1, max_length=200)]]
Pools = list[Annotated[str, Field(pattern="^[a-z0-9_-]{1,64}$")]]


class RegisterBody(OfWorker):
    pools: Pools | None = None
    concurrency: int | None = Field(default=None, ge=1, le=1_000_000)
    tools: Names | None = None
    apps: Names | None = None
    version: str | None = None
    # Tells a worker that comes back from another one with its name.
    instance: str | None = None
    draining: bool | None = None


class TakeBody(OfWorker):
    pools: Pools | None = None
    limit: int = Field(default=1, ge=0, le=TAKE_MAX)
    wait: float = Field(default=0, ge=0, strict=False)
    concurrency: int | None = Field(default=None, ge=1, le=1_000_000)
    tools: Names | None = None
    apps: Names | None = None
    version: str | None = None
    instance: str | None = None


class Leases(OfWorker):
    leases: list[str]


class ReleaseBody(Leases):
    reason: str = Field(default="", max_length=1000)


class AskSecrets(OfWorker):
    intent: str
    lease: str
    names: list[str] = Field(min_length=1, max_length=100)


class SettleBody(OfWorker):
    """Each receipt is judged by itself, so that a bad one refuses itself only."""

    receipts: list[Any]


class ProgressBody(OfWorker):
    frames: list[Any]


class CollectBody(Body):
    dry_run: bool = False


class NewToken(Body):
    user: str = Field(min_length=1, max_length=200)
    roles: list[str] = Field(min_length=1, max_length=100)
    workflow: str | None = Field(default=None, max_length=200)
    expires: str | None = Field(default=None, max_length=100)


class HookTarget(Body):
    run: str = Field(min_length=1, max_length=500)
    name: str = Field(min_length=1, max_length=500)


class NewHook(Body):
    workflow: str | None = Field(default=None, min_length=1, max_length=500)
    signal: HookTarget | None = None
    event: str | None = Field(default=None, min_length=1, max_length=500)
    secret: str = Field(min_length=1, max_length=200)
    id: str | None = Field(default=None, min_length=1, max_length=500)
    reference: str | None = Field(default=None, min_length=1, max_length=500)


class NewSecret(Body):
    value: str | dict[str, str]


class ShadowBody(Body):
    # The digest of the candidate's manifest, which the server has loaded.
    manifest: str = Field(min_length=1, max_length=200)
    run: str | None = Field(default=None, max_length=200)


class ApplyBody(Body):
    manifest: str | None = Field(default=None, min_length=1, max_length=200)
    proposal: Version | None = None
    wait: bool = False
