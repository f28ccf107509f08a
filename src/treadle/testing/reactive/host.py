"""The core of a `World`: the engine's own, on a store in memory, turned by hand.

Nothing here decides: events go to `Core`, which loads, steps, commits. This module is what surrounds a core in
a process, made still: a clock that moves when it is told to, chance that is a function of what is stored, a port
that only remembers answers. One record is one commit, so that a world can be cut between any two of them, and
`image` is what another process would find.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from hashlib import sha512
from typing import Any

from treadle.dialects.reactive.app import DIALECT_NAME, App
from treadle.dialects.reactive.decide import Bound
from treadle.dialects.reactive.machine import ReactiveMachine
from treadle.kernel.errors import TreadleError
from treadle.kernel.model import OpenIntent
from treadle.kernel.values import Value, decode_trusted, encode
from treadle.runtime.commands import Write
from treadle.runtime.core import Core
from treadle.runtime.hot import Hot, split_ids
from treadle.runtime.ports import Ack, Item, News, Work
from treadle.runtime.registry import Registry, machines_of
from treadle.store.protocol import Batch, DefinitionRow, RunRow
from treadle.store.sql import SqlStore
from treadle.store.sqlite import SqliteDialect

# Documents of a world's own: its seed and clock, frames that were only shown.
WORLD = "world"


class Memory(SqliteDialect):
    """SQLite in memory, from an image of its bytes."""

    def __init__(self, image: bytes) -> None:
        super().__init__(None)
        self._image = image
        # How many messages were left for the core, which looks for them when the number changes.
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
        """Leaves messages for the core, as another process does."""
        self.post(messages)
        self._memory.posts += 1

    def image(self) -> bytes:
        return self._connection.serialize()


class Host:
    """Also the core's clock and port."""

    def __init__(self, image: bytes, apps: list[App], *, seed: int, now_ns: int, cell_cache: int) -> None:
        self.store = WorldStore(image)
        self.store.own()
        kept: Any = self.store.document(WORLD, "clock")
        self._seed, self._now_ns = (seed, now_ns) if kept is None else (kept["seed"], kept["now_ns"])
        self.machine = ReactiveMachine()
        self.registry = Registry(machines_of({DIALECT_NAME: self.machine}), self.store)
        self._known: dict[str, DefinitionRow] = {}
        self.registry.pending = self._known
        self.apps: dict[str, App] = {}
        for app in apps:
            self.attach(app)
        self.core = Core(
            self.store,
            self.registry,
            self,
            clock=self,
            entropy=self.entropy,
            hot_max=cell_cache,
            batch_records=1,
        )
        if kept is None:
            self.set_now(now_ns)

    def attach(self, app: App) -> None:
        self.apps[app.digest] = app
        self.machine.attach(app)
        for made in app.definitions():
            about = {"dialect": made.dialect, "name": made.name, "version": made.version}
            self._known[made.digest] = DefinitionRow(digest=made.digest, body=made.body, **about)

    # --- a core without threads ----------------------------------------------------------------------

    def entropy(self, size: int) -> bytes:
        """A function of the seed and of how much is recorded: equal calls give equal ids, and neither a
        restart nor an event that was refused changes what comes after it."""
        count = len(self.store.order) + len(self.core.staged.batch.records)
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

    def ask(self, item: Item) -> tuple[Any, TreadleError | None]:
        """Hands an event to the core and lets everything run; what was answered."""
        answers: list[tuple[Any, TreadleError | None]] = []
        item.ack = lambda value, error: answers.append((value, error))
        self.core.submit(item)
        self.run()
        assert answers, f"{item.run} was not answered"
        return answers[0]

    def change(self, change: Callable[[Core, Ack], Any]) -> Any:
        """Makes a change on the core; its value, or its error raised."""
        answers: list[tuple[Any, TreadleError | None]] = []

        def ack(value: Any, error: TreadleError | None) -> None:
            answers.append((value, error))

        self.core.submit(Write(lambda core: change(core, ack), ack))
        self.run()
        value, error = answers[0]
        if error is not None:
            raise error
        return value

    def keep(self, name: str, body: Value) -> None:
        """Writes a document of the world's own."""
        row = (WORLD, name, self._now_ns, encode(body))
        self.change(lambda core, ack: core.staged.batch.documents.append(row))

    def diagnose(self, run: str, code: str, **about: Value) -> None:
        self.change(lambda core, ack: core.diagnose(run, code, about))

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
        return found if isinstance(found, Bound) else Bound(app, app.workflow(found.workflow))

    def records(self, row: RunRow) -> list[tuple[dict[str, Any], str]]:
        """A run's records with their digests."""
        return [(decode_trusted(s.body), "sha256:" + s.digest.hex()) for s in self.store.journal(row.no)]
