"""The core of a `World`: the engine's own, on a store in memory, turned by hand.

Nothing here decides: events go to `Core`, which loads, steps, commits. This module is what surrounds a core in
a process, made still: a clock that moves when it is told to, chance that is a function of what is stored, a port
that only remembers answers. One record is one commit, so that a world can be cut between any two of them, and
`image` is what another process would find.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from hashlib import sha512
from typing import TYPE_CHECKING, Any

from treadle.apps import cells as apps
from treadle.apps import snapshots
from treadle.dialects.reactive.app import DIALECT_NAME, App
from treadle.dialects.reactive.decide import Bound, CodeAbsent
from treadle.dialects.reactive.index import EMPTY, CellIndex
from treadle.dialects.reactive.machine import ReactiveMachine
from treadle.kernel.errors import KernelBug, TreadleError, UnknownWorkflow
from treadle.kernel.limits import Limits
from treadle.kernel.model import OpenIntent
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.runtime.commands import Deliver, Operate
from treadle.runtime.core import Core
from treadle.runtime.hot import Hot
from treadle.runtime.opened import split_ids
from treadle.runtime.own_changes import OwnChange
from treadle.runtime.ports import Ack, Audience, News, Work
from treadle.runtime.registry import Known, Registry, machines_of
from treadle.store.rows import Batch, DefinitionRow
from treadle.store.run_rows import RunRow
from treadle.store.sql import SqlStore
from treadle.store.sqlite import SqliteDialect

from .views import Snapshot

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk, Handing


# Documents of a world's own: its seed and clock, its snapshots, frames that were only shown.
WORLD = "world"
# How the keys of messages begin that are left for the desk.
_LEFT = "left:"


class Memory(SqliteDialect):
    """SQLite in memory, from an image of its bytes."""

    def __init__(self, image: bytes) -> None:
        super().__init__(None)
        self._image = image
        # How many messages were left for the desk, which looks for them when the number changes.
        self.posts = 0

    @property
    def shared(self) -> bool:
        return True

    def connect(self, *, readonly: bool = False) -> sqlite3.Connection:
        connection = super().connect(readonly=readonly)
        if self._image:
            connection.deserialize(self._image)
        return connection

    def data_version(self, connection: sqlite3.Connection) -> int:
        return self.posts


class WorldStore(SqlStore):
    """The store, and what its journal says about open work, folded as it is written and as it is read."""

    def __init__(self, image: bytes) -> None:
        self._memory = Memory(image)
        super().__init__(self._memory, None)
        self.end_with_its_holder()
        self.taken = 0
        # (run, seq) of each record, in the order of their commits.
        self.order: list[tuple[int, int]] = []
        # Every intent ever opened, with its run; and those that are open, in the order of opening.
        self.known: dict[str, int] = {}
        self.open: dict[str, int] = {}
        query = "SELECT run, seq, opens, closes FROM journal ORDER BY rowid"
        for row in self._connection.execute(query).fetchall():
            self._fold(*row)

    def _fold(self, run: int, seq: int, opens: bytes | None, closes: bytes | None) -> None:
        self.order.append((run, seq))
        for id in split_ids(closes):
            self.open.pop(id.hex(), None)
        for id in split_ids(opens):
            self.known[id.hex()] = self.open[id.hex()] = run

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        self.taken += bool(batch.records or batch.inbox_done)
        for run, seq, _, opens, closes, _, _ in batch.records:
            self._fold(run, seq, opens, closes)

    def leave(self, messages: list[tuple[str, bytes]]) -> None:
        """Leaves messages for the desk, as another process does."""
        self.post(messages)
        self._memory.posts += 1

    def image(self) -> bytes:
        return bytes(self._connection.serialize())


class WorldHost:
    """Also the core's clock and port."""

    def __init__(self, image: bytes, apps: list[App], *, seed: int, now_ns: int, cell_cache: int) -> None:
        self.store = WorldStore(image)
        self.store.own()
        kept: Any = self.store.document(WORLD, "clock")
        clock: dict[str, int] = {"seed": seed, "now_ns": now_ns} if kept is None else kept
        self._seed, self._now_ns = clock["seed"], clock["now_ns"]
        self.machine = ReactiveMachine()
        self._known = Known()
        self.registry = Registry(machines_of({DIALECT_NAME: self.machine}), self.store, self._known)
        self.apps: dict[str, App] = {}
        for app in apps:
            self.attach(app)
        self.core = Core(
            self.store,
            self.registry,
            self,
            clock=self,
            entropy=self.entropy,
            operations=self,
            limits=Limits(hot_runs=cell_cache, batch_records=1),
        )
        if kept is None:
            self.set_now(now_ns)

    def attach(self, app: App) -> None:
        self.apps[app.digest] = app
        self.machine.attach(app)
        for made in app.definitions():
            self._known.known[made.digest] = DefinitionRow(
                digest=made.digest, dialect=made.dialect, name=made.name, version=made.version, body=made.body
            )

    # --- a core without threads ----------------------------------------------------------------------

    def entropy(self, size: int) -> bytes:
        """A function of the seed and of how much is recorded: equal calls give equal ids, and neither a
        restart nor an event that was refused changes what comes after it."""
        count = len(self.store.order) + len(self.core.staging.batch.records)
        return sha512(encode([self._seed, count])).digest()[:size]

    def now_ns(self) -> int:
        return self._now_ns

    def set_now(self, now_ns: int) -> None:
        """Moves the clock, durably."""
        self._now_ns = now_ns
        self.keep("clock", {"seed": self._seed, "now_ns": now_ns})

    def answer(self, answers: list[tuple[Ack, Any, TreadleError | None]]) -> None:
        for ack, value, error in answers:
            ack(value, error)

    def dispatch(self, works: list[Work]) -> None:
        """Executors do not run here; the test answers for them."""

    def revoke(self, intents: list[str]) -> None:
        """Nobody works on them."""

    def publish_news(self, news: list[News]) -> None:
        """Nobody watches."""

    @property
    def audience(self) -> Audience:
        return Audience()

    def wants_news(self, run: str, ended: bool) -> bool:
        return False

    def run(self, turns: int | None = None) -> int:
        """Lets ready cells take turns, one event each, until nothing is left to do."""
        before = self.store.taken
        self.core.poll()
        while turns is None or self.store.taken - before < turns:
            if not self.core.turn():
                break
        return self.store.taken - before

    def ask(self, item: Deliver) -> tuple[Any, TreadleError | None]:
        """Hands an event to the core and lets everything run; what was answered."""
        answers: list[tuple[Any, TreadleError | None]] = []
        item.ack = lambda value, error: answers.append((value, error))
        self.core.submit(item)
        self.run()
        assert answers, f"{item.run} was not answered"
        return answers[0]

    def change(self, change: Callable[[Desk], Any]) -> Any:
        """Makes a change on the core, which is the host's own; its value, or its error raised."""
        return self._answer_to(lambda ack: self.core.change(OwnChange(change, ack)))

    def _answer_to(self, ask: Callable[[Ack], None]) -> Any:
        answers: list[tuple[Any, TreadleError | None]] = []
        ask(lambda value, error: answers.append((value, error)))
        self.run()
        value, error = answers[0]
        if error is not None:
            raise error
        return value

    def operate(self, name: str, body: dict[str, Any]) -> Any:
        """Performs an operation; its value, or its error raised."""
        return self._answer_to(lambda ack: self.core.submit(Operate(body["app"], name, body, ack)))

    def publish(self, items: list[Deliver], publishing: dict[str, Value]) -> None:
        """Delivers an event to all who subscribe; the first refusal is raised once all have decided."""
        if len(items) == 1:
            _, error = self.ask(items[0])
            if error is not None:
                raise error
            return
        self.operate(apps.PUBLISH, publishing)

    def leave(self, messages: list[bytes]) -> None:
        """Leaves messages for the desk, to be read when it runs."""
        there = [key for key, _ in self.store.inbox(1_000_000) if key.startswith(_LEFT)]
        first = int(there[-1].removeprefix(_LEFT)) + 1 if there else 0
        self.store.leave([(f"{_LEFT}{first + n:09}", body) for n, body in enumerate(messages)])

    # --- operations: as an engine performs them ------------------------------------------------------

    def perform(self, desk: Handing, asked: Operate) -> Any:
        current = apps.active_app(desk.store, desk.registry, self.machine, asked.home)
        match asked.name:
            case "apply":
                return apps.apply(desk, current, self.app_of(asked.body["manifest"]), asked)
            case "govern":
                return apps.govern(desk, current, asked.body["data"], asked)
            case apps.PUBLISH:
                return apps.publish(desk, current, asked)
            case _:
                raise KernelBug(f"a world asks for no {asked.name}")

    def app_of(self, manifest: str) -> App:
        if manifest not in self.apps:
            raise UnknownWorkflow(f"the application at {manifest} is not here", code="CODE_MISSING")
        return self.apps[manifest]

    # --- snapshots -----------------------------------------------------------------------------------

    def snapshot(self, app: App) -> Snapshot:
        """Roots of the cells as an engine takes them, and a cut of every run."""

        def take(desk: Desk) -> dict[str, Any]:
            taken = snapshots.take(desk, app)
            seqs: dict[str, int] = {}
            for row in apps.rows_of(desk.store, None):
                hot = desk.hot.get(row.id)
                assert hot is not None
                seqs[row.id] = hot.state.seq
                if hot.state.tail_records:
                    desk.stage_snapshot(hot)
            return {"roots": taken["roots"], "manifest": app.digest, "seqs": seqs}

        made = self.change(take)
        number = len(self.snapshots())
        self.keep(f"snapshot {number:06}", {**made, "number": number})
        self.core.hot.evict()
        return Snapshot(made["roots"], number, made["manifest"])

    def snapshots(self) -> list[Snapshot]:
        return [Snapshot(cut["roots"], cut["number"], cut["manifest"]) for cut in self.cuts()]

    def cuts(self) -> list[dict[str, Any]]:
        """What is kept of each snapshot: also which record each run had come to."""
        return [body for name, body in sorted(self.store.documents(WORLD)) if name.startswith("snapshot ")]

    def collect(self, keep: int) -> int:
        index = CellIndex(snapshots.StoreBlobs(self.core.desk))
        kept = {
            blob
            for cut in self.cuts()[-keep:]
            for root in cut["roots"].values()
            for blob in _reached(index, root)
        }
        return int(self.change(lambda desk: desk.store.sweep(keep=kept)))

    def last_shown(self, intent: str) -> int:
        """The number of the last frame of a workflow that takes no frames."""
        return int(self.store.document(WORLD, f"frame {intent}") or 0)

    def keep_shown(self, intent: str, seq: int) -> None:
        self.keep(f"frame {intent}", seq)

    def keep(self, name: str, body: Value) -> None:
        """Writes a document of the world's own."""
        row = (WORLD, name, self._now_ns, encode(body))
        self.change(lambda desk: desk.batch.documents.append(row))

    def diagnose(self, run: str, code: str, **about: Value) -> None:
        self.change(lambda desk: desk.diagnose(run, code, about))

    # --- looking -------------------------------------------------------------------------------------

    def hot(self, id: str) -> Hot | None:
        """A run as it is, loaded through the cache."""
        hot = self.core.hot.get(id)
        self.core.hot.evict()
        return hot

    def row_of(self, intent: str) -> RunRow:
        row = self.store.run_by_no(self.store.known[intent])
        assert row is not None, "runs are not removed here"
        return row

    def intent(self, id: str) -> tuple[Hot, OpenIntent]:
        """An open intent, with its run."""
        hot = self.hot(self.row_of(id).id)
        assert hot is not None
        return hot, hot.state.open[id]

    def bound(self, hot: Hot, app: App) -> Bound:
        """A run's workflow, to look at: of its own version, or of the active one if that is gone."""
        found = hot.definition
        if isinstance(found, Bound):
            return found
        assert isinstance(found, CodeAbsent), "cells are looked at"
        return Bound(app, app.workflow(found.workflow))

    def records(self, row: RunRow) -> list[tuple[dict[str, Any], str]]:
        """A run's records with their digests."""
        return [(decode_trusted(s.body), "sha256:" + s.digest.hex()) for s in self.store.journal(row.no)]


def _reached(index: CellIndex, root: str) -> Iterator[str]:
    return index.reachable(root) if root != EMPTY else iter(())
