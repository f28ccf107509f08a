"""Workers of other processes: who they are, what they may take, and what becomes of what they bring back.

They come over HTTP to the hatch of the bus (`bus/hatch.py`). A worker is known by its name while it is seen; two
live ones cannot share a name. Work that none of them can do says so: in its run's events once, and wherever the run
is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

from msgspec.structs import replace

from treadle.bus.data import DEFAULT_POOL, RESIDENT, Told
from treadle.bus.hatch import Hatch
from treadle.engine import Engine
from treadle.kernel.errors import LimitExceeded, TreadleError, Unsupported
from treadle.kernel.limits import LEASE_DURATION_MS, PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.model import Receipt, is_reference
from treadle.kernel.values import Value, encode
from treadle.lang.duration import instant_text
from treadle.lang.json_text import to_json
from treadle.runtime.commands import LATE, CheckpointSaved, Deliver, FrameSent
from treadle.runtime.ports import Work

from .carrying import MEMORY, Carrying
from .problems import RequestRefused

SAMPLE_CHARS_MAX: Final = 2048
LOST_NS: Final = (LEASE_DURATION_MS + 1_000) * 1_000_000
GONE_NS: Final = 3_600 * 1_000_000_000
WATCH_S: Final = 1.0
# Work that nobody can do says so after it has waited this long: a worker may be on its way.
UNAVAILABLE_S: Final = 3.0
_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)")


class EngineOwner:
    """The engine behind the bus (`bus.protocol.Owner`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def settle(self, work: Work, receipt: Receipt) -> bool:
        if len(encode(receipt.value)) > PAYLOAD_INLINE_BYTES_MAX:
            raise LimitExceeded(
                "the value of a receipt is larger than 64 KiB; put it into a blob and refer to it"
            )
        blobs = await self._blobs([receipt.value, receipt.events])
        vouched = self._engine.vouched(work.dialect, receipt)
        answer = await self._engine.ask(lambda ack: Deliver(work.run, vouched, ack=ack, blobs=blobs))
        return not (isinstance(answer, dict) and answer.get("stale"))

    async def progress(self, work: Work, told: Sequence[Told]) -> bool:
        run, intent = work.run, work.intent.id
        open_ = True
        for one in told:
            if one.kind == "frame":
                self._engine.hand_in(FrameSent(run, intent, one.seq, one.type, one.value))
                continue
            blobs = await self._blobs([one.value, one.events])
            saved = CheckpointSaved(run, intent, one.value, one.events, blobs, None)
            answer = await self._engine.ask(lambda ack, saved=saved: replace(saved, ack=ack))  # type: ignore[misc]  # mypy cannot type a lambda with a default
            open_ = not answer.get("stale")
        return open_

    async def dead_letter(self, work: Work, worker: str, error: TreadleError, sent: Value) -> None:
        text = to_json(self._engine.secrets.redact(sent))
        row = {
            "intent": work.intent.id,
            "run": work.run,
            "worker": worker,
            "reason": error.code,
            "error": error.to_value(),
            "size": len(text),
            "sample": text[:SAMPLE_CHARS_MAX],
        }
        id = secrets.token_hex(8)
        await self._engine.operate("deadletter", {"op": "keep", "id": id, "row": row}, home=work.run)
        failed = TreadleError(
            f"what the worker {worker} sent back cannot be used: {error.message}", code="RECEIPT_UNUSABLE"
        )
        receipt = Receipt(intent=work.intent.id, status="error", error=failed.to_value())
        vouched = self._engine.vouched(work.dialect, receipt)
        await self._engine.ask(lambda ack: Deliver(work.run, vouched, ack=ack))

    async def _blobs(self, value: Value) -> dict[str, bytes]:
        """The payloads that a value refers to: they belong to the run from now on."""
        wanted = list(dict.fromkeys(_checksums(value)))
        if not wanted:
            return {}
        return await self._engine.read(lambda reads: {digest: reads.blob(digest) for digest in wanted})


def _checksums(value: Value) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _checksums(item)
    elif is_reference(value):
        yield str(value["checksum"])
    elif isinstance(value, dict):
        for item in value.values():
            yield from _checksums(item)


@dataclass(slots=True)
class Row:
    name: str
    instance: str
    user: str
    started_ns: int
    pools: list[str] = field(default_factory=lambda: [DEFAULT_POOL])
    concurrency: int = 1
    tools: list[str] = field(default_factory=list)
    apps: list[str] = field(default_factory=list)
    version: str = ""
    seen_ns: int = 0
    # Requests of this worker's that wait for work now.
    waiting: int = 0
    draining: bool = False


class Workers:
    def __init__(
        self,
        engine: Engine,
        hatch: Hatch | None = None,
        now_ns: Callable[[], int] | None = None,
        *,
        bus: str = MEMORY,
        alone: bool = True,
        watch_s: float = WATCH_S,
        patience_s: float = UNAVAILABLE_S,
    ) -> None:
        self._engine = engine
        # Whether every request to this address comes to this process.
        self._alone = alone
        self._watch_s = watch_s
        self._patience_s = patience_s
        self.hatch = hatch or Hatch(
            engine.bus,
            EngineOwner(engine),
            on_forged=self._forged,
            on_late=self._late,
            traced=engine.traced,
        )
        self.carrying = Carrying(engine, self.hatch, bus)
        # Workers that come over the carrier, as they were there a second ago.
        self._far: dict[str, dict[str, Any]] = {}
        self._now_ns = now_ns or engine.clock.now_ns
        self._rows: dict[str, Row] = {}
        # Leases that ran out.
        self.expired = 0
        # Work that nobody can do, by intent: since when, and whether its run was told.
        self._undone: dict[str, tuple[float, bool]] = {}

    # --- who they are ---

    def see(self, name: str, user: str, **told: Any) -> Row:
        """A worker has come: registers it, or notes that it is still there."""
        now = self._now_ns()
        row = self._rows.get(name)
        if (given := told.get("version")) is not None:
            _check_version(str(given))
        instance = told.pop("instance", None)
        if row is not None and not self._is_lost(row, now):
            if (instance is not None and row.instance and instance != row.instance) or row.user != user:
                raise RequestRefused(
                    "WORKER_EXISTS", f"a live worker is called {name!r}; choose another --name"
                )
        else:
            row = self._rows[name] = Row(name, instance or "", user, now)
        row.seen_ns = now
        for key, value in told.items():
            if value is not None:
                setattr(row, key, value)
        (self.hatch.dismiss if row.draining else self.hatch.welcome)(name)
        return row

    def _is_lost(self, row: Row, now: int) -> bool:
        return not row.waiting and now - row.seen_ns > LOST_NS

    def rows(self) -> list[dict[str, Any]]:
        now = self._now_ns()
        self._rows = {n: row for n, row in self._rows.items() if row.waiting or now - row.seen_ns < GONE_NS}
        held = self._engine.bus.held_by()
        near = [row for row in self._rows.values() if row.name not in self._far]
        found = [self._shown(row, held.get(row.name, 0), now) for row in near]
        found += [_shown_far(name, row, self.carrying.bus, now) for name, row in self._far.items()]
        if (resident := self._engine.resident_row(held.get(RESIDENT, 0))) is not None:
            found.insert(
                0, {**resident, "version": version("treadle"), "bus": MEMORY, "user": "", "status": "live"}
            )
        return found

    def _shown(self, row: Row, busy: int, now: int) -> dict[str, Any]:
        status = "lost" if self._is_lost(row, now) else "draining" if row.draining else "live"
        return {
            "id": row.name,
            "name": row.name,
            "pools": row.pools,
            "concurrency": row.concurrency,
            "busy": busy,
            "tools": row.tools,
            "apps": row.apps,
            "version": row.version,
            "bus": "http",
            "user": row.user,
            "started_at": instant_text(row.started_ns),
            "seen_at": instant_text(now if row.waiting else row.seen_ns),
            "status": status,
        }

    def check_reach(self) -> None:
        """Refuses a worker that has only HTTP where it would reach another process each time."""
        if not self._alone:
            raise Unsupported(
                "several processes serve behind this address, and each has work of its own: start the worker with "
                "--store postgresql://…, or the server with --bus nats://…"
            )

    def _forged(self, worker: str, intent: str) -> None:
        """Somebody showed a lease that was never theirs: kept among the diagnostics, changes nothing."""
        self._note("receipt.forged", worker, intent)

    def _late(self, worker: str, intent: str, run: str) -> None:
        """Work came to its end after it was settled: noted with its run, where that is known."""
        if run:
            self._engine.hand_in(FrameSent(run, intent, 0, LATE, None))
        else:
            self._note("receipt.stale", worker, intent)

    def _note(self, code: str, worker: str, intent: str) -> None:
        asked = {"op": "note", "code": code, "worker": worker, "intent": intent}
        task = asyncio.ensure_future(self._engine.operate("deadletter", asked))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    # --- work that nobody can do ---

    def undone(self) -> dict[str, str]:
        """Intents that no live worker can do, and why."""
        now = self._now_ns()
        live = [(row.name, row.pools) for row in self._rows.values() if not self._is_lost(row, now)]
        live += [(name, row.get("pools", [])) for name, row in self._far.items()]
        return self._engine.bus.undone(live)

    async def watch(self) -> None:
        """Takes work back from silent workers, and has work say that nobody can do it. Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._watch_s)
            self.expired += self._engine.bus.expire()
            with contextlib.suppress(TreadleError):  # a store that is away says so elsewhere
                await self._engine.limit_pools()
            self._far = await self.carrying.members()
            found = self.undone()
            self._engine.bus.tell_undone(found)
            now = loop.time()
            self._undone = {id: self._undone.get(id, (now, False)) for id in found}
            for id, (since, said) in self._undone.items():
                if (
                    not said
                    and now - since >= self._patience_s
                    and (work := self._engine.bus.find(id)) is not None
                ):
                    self._undone[id] = (since, True)
                    intent = work.intent
                    data = {"intent": id, "kind": intent.kind, "name": intent.name, "reason": found[id]}
                    self._engine.hand_in(FrameSent(work.run, id, 0, "work.unavailable", data))


def _shown_far(name: str, row: dict[str, Any], bus: str, now: int) -> dict[str, Any]:
    return {
        "id": name,
        "name": name,
        **{key: row.get(key) for key in ("pools", "concurrency", "busy", "tools", "apps", "version")},
        "bus": bus.partition(":")[0],
        "user": "",
        "started_at": instant_text(int(row.get("started_ns", now))),
        "seen_at": instant_text(now),
        "status": "draining" if row.get("draining") else "live",
    }


def _check_version(given: str) -> None:
    ours, theirs = _NUMBERS.match(version("treadle")), _NUMBERS.match(given)
    if ours is None or theirs is None:
        raise RequestRefused(
            "VERSION_SKEW", f"this server is {version('treadle')}, the worker is {given[:40]!r}"
        )
    (major, minor), (their_major, their_minor) = map(int, ours.groups()), map(int, theirs.groups())
    if major != their_major or abs(minor - their_minor) > 1:
        raise RequestRefused(
            "VERSION_SKEW",
            f"this server is {version('treadle')}, the worker is {given[:40]}; bring them within one minor version",
        )
