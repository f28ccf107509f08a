"""What must always hold, read from the journals alone.

`advance` reads what the last commit added; it trusts nothing of the engine but the bytes on disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.apps import snapshots
from treadle.kernel.model import DETACHED_KINDS, TERMINAL, Event, Started, event_value
from treadle.kernel.state import GENESIS
from treadle.kernel.values import decode_trusted, digest_bytes
from treadle.runtime.hot import BlobCache, load_state
from treadle.runtime.ports import Work
from treadle.runtime.registry import Registry, machines_of
from treadle.store.packing import unpack
from treadle.store.run_rows import RunRow

from .disk import Disk
from .oracle import references

if TYPE_CHECKING:
    from treadle.runtime.commands import CheckpointSaved

    from .world import SimWorld


@dataclass(slots=True)
class RunLife:
    """One run as its records tell it."""

    id: str
    definition: str = ""
    seq: int = 0
    digest: bytes = GENESIS
    status: str = ""
    open: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    # The payloads that its records refer to.
    payloads: set[str] = field(default_factory=set)


class Journals:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._rowid = 0
        # The last place that was ever given to a record.
        self._last_given = 0
        self._newest: bytes | None = None
        # The runs that are there, by their numbers; and those that were collected.
        self.lives: dict[int, RunLife] = {}
        self.gone: list[RunLife] = []
        # How long runs of a definition are kept after their end; None where nothing is collected before all is quiet.
        self.kept_ns: Callable[[str], int] | None = None
        self.opened: dict[str, tuple[str, dict[str, Any]]] = {}
        self.settled: dict[str, tuple[str, dict[str, Any]]] = {}
        self.saves: set[str] = set()
        self.clock_max_ns = 0
        # Whether the journals were checked to their end, and are being collected.
        self.closed = False
        # Payloads that were there after the last commit, and whose bytes were looked at.
        self._whole: set[str] = set()
        # What the last commit has added.
        self.fresh: list[tuple[RunLife, dict[str, Any]]] = []
        self.on_record: Callable[[RunLife, dict[str, Any]], None] = lambda life, record: None
        # Under which definition a run was after the record with a digest.
        self._under: dict[bytes, str] = {}

    @property
    def settled_all(self) -> bool:
        return not any(life.open for life in self.lives.values())

    def all_lives(self) -> list[RunLife]:
        return [*self.gone, *self.lives.values()]

    # --- after every commit ---

    def advance(self) -> list[str]:
        """Reads what a commit has added; the runs that it has decided something for."""
        self.fresh = []
        if self.closed:
            return []
        if self.kept_ns is not None:
            self._look_for_collected(self.kept_ns)
        twice = self._disk.live.execute(
            "SELECT r.key FROM replies r JOIN inbox i ON i.key = r.key LIMIT 1"
        ).fetchone()
        assert twice is None, f"{twice and twice[0]} is answered, and waits to be decided"
        rows = self._disk.live.execute(
            "SELECT j.rowid, r.id, j.run, j.seq, j.opens, j.closes, j.digest, j.body FROM journal j "
            "JOIN runs r ON r.no = j.run WHERE j.rowid > ? ORDER BY j.rowid",
            (self._rowid,),
        ).fetchall()
        for rowid, id, no, seq, opens, closes, digest, stored in rows:
            assert rowid > self._last_given, (
                f"{id}#{seq}: who follows the journal takes it for one that is gone"
            )
            self._last_given = rowid
            body = unpack(stored, opens, closes)
            life = self.lives.get(no) or self._born(no, id)
            assert seq == life.seq + 1, f"{id}: record {seq} follows record {life.seq}"
            assert hashlib.sha256(life.digest + body).digest() == digest, f"{id}#{seq}: the chain is broken"
            self._fold(life, decode_trusted(body), _ids(opens), _ids(closes))
            life.seq, life.digest = seq, digest
            self._under[digest] = life.definition
            self._rowid, self._newest = rowid, digest
        if self.kept_ns is not None:
            self._look_for_payloads()
        return [row[1] for row in rows]

    def _born(self, no: int, id: str) -> RunLife:
        assert all(life.id != id for life in self.lives.values()), f"there are two runs {id}"
        self.lives[no] = life = RunLife(id)
        return life

    def _look_for_collected(self, kept_ns: Callable[[str], int]) -> None:
        """What a collection has removed had ended, and its time was over."""
        there = {row[0] for row in self._disk.live.execute("SELECT no FROM runs")}
        missing = self.lives.keys() - there
        for no in sorted(missing):
            life = self.lives.pop(no)
            assert life.status in TERMINAL, f"{life.id} is gone, and was under way"
            kept_until = life.records[-1]["at"] + kept_ns(life.definition)
            assert kept_until <= self.clock_max_ns, f"{life.id} is gone before its time"
            self.gone.append(life)
        if missing:
            self._rowid, self._newest = self._last_row()

    def _look_for_payloads(self) -> None:
        """What the records of a run refer to is there for as long as the run is."""
        if not any(life.payloads for life in self.lives.values()):
            return
        there = {row[0] for row in self._disk.live.execute("SELECT digest FROM blobs")}
        for digest in there - self._whole:
            (body,) = self._disk.live.execute("SELECT body FROM blobs WHERE digest = ?", (digest,)).fetchone()
            found = self._disk.payloads.get(digest) if body is None else body
            assert found is not None, f"{digest} has a row, and its file is not there"
            assert digest_bytes(found) == digest, f"{digest} is not what was written"
        self._whole = there
        for life in self.lives.values():
            assert life.payloads <= there, f"{life.id} refers to payloads that are gone"

    def _last_row(self) -> tuple[int, bytes | None]:
        row = self._disk.live.execute(
            "SELECT rowid, digest FROM journal ORDER BY rowid DESC LIMIT 1"
        ).fetchone()
        return (0, None) if row is None else (row[0], row[1])

    def _fold(self, life: RunLife, record: dict[str, Any], opens: list[str], closes: list[str]) -> None:
        where = f"{life.id}#{record['seq']}"
        gone = list(record.get("cancelled", ()))
        intent = record["event"].get("intent")
        if record["kind"] == "signal":
            # A signal that somebody awaits settles the await: the index column names it.
            gone += [id for id in closes if id not in gone]
        elif intent is not None and record["kind"] != "frame":
            gone.append(intent)
            self._settle(life, intent, record, where)
        assert sorted(gone) == sorted(closes), f"{where}: closes {closes}, and its record says {gone}"
        for id in gone:
            assert id in life.open, f"{where}: {id} is closed and was not open"
            del life.open[id]
        for opened in record.get("opened", ()):
            assert opened["id"] not in self.opened, f"{where}: {opened['id']} is opened twice"
            self.opened[opened["id"]] = (life.id, opened)
            if opened["kind"] not in DETACHED_KINDS and record["status"] not in TERMINAL:
                life.open[opened["id"]] = opened
                assert opened["id"] in opens, f"{where}: {opened['id']} is missing in the index"
        life.status = record["status"]
        life.definition = self._definition(record["event"]) or life.definition
        life.payloads |= {reference["checksum"] for reference in references(record)}
        assert life.status not in TERMINAL or not life.open, f"{where}: ended with open work"
        life.records.append(record)
        self.fresh.append((life, record))
        self.on_record(life, record)

    def _definition(self, event: dict[str, Any]) -> str | None:
        """The definition that a run is under from this event on, if it says so. A fork has that of its original."""
        if (origin := event.get("forked_from")) is not None:
            return self._under[origin["digest"]]
        found: str | None = event.get("definition")
        return found

    def _settle(self, life: RunLife, intent: str, record: dict[str, Any], where: str) -> None:
        assert intent not in self.settled, f"{where}: {intent} is settled twice"
        self.settled[intent] = (life.id, record)
        opened = life.open.get(intent)
        assert opened is not None, f"{where}: {intent} is settled and was not open"
        due = opened.get("due_ns")
        early = due is not None and self.clock_max_ns < due
        fired = opened["kind"] == "timer" or record["event"].get("status") == "timeout"
        assert not (fired and early), f"{where}: fired before its time"

    # --- at each answer ---

    def assert_recorded(self, run: str, seq: int, event: Event) -> None:
        """Whoever was told that an event is there, at this place: it is."""
        value = event_value(event)
        there = any(
            len(life.records) >= seq and is_about(life.records[seq - 1], event.kind, value)
            for life in self._lives(run)
        )
        assert there, f"{run}: acknowledged as record {seq}, which is another one, or not there"

    def assert_same(self, run: str, event: Started) -> None:
        """Whoever was told that a run is there already: it is the one that was asked for."""
        there = any(_began_with(life, event) for life in self._lives(run))
        assert there, f"{run}: said to be there already, and what is there is another run"

    def assert_taken(self, run: str, event: Started) -> None:
        """Whoever was told that an id is taken: it is, and by a run that is not the one that was asked for."""
        taken = any(not _began_with(life, event) for life in self._lives(run))
        assert taken, f"{run}: said to be taken, and it is not, or by the very run that was asked for"

    def assert_settled(self, intent: str, value: Any) -> None:
        run, record = self.settled.get(intent, ("", None))
        assert record is not None, f"{intent} is acknowledged, and not settled"
        assert record["event"].get("value") == value, f"{run}: {intent} was settled by another"

    def assert_there(self, run: str) -> None:
        assert self._lives(run), f"{run} is acknowledged, and not there"

    def _lives(self, run: str) -> list[RunLife]:
        """All that there were of this id: one after the other, where it was collected in between."""
        return [life for life in self.all_lives() if life.id == run]

    def saved(self, saved: CheckpointSaved) -> None:
        """A worker was told that its checkpoint is durable."""
        self.saves.add(saved.intent)

    # --- at each dispatch ---

    def assert_durable(self, work: Work, is_ours: bool) -> None:
        live, intent = self._disk.live, work.intent
        assert not live.in_transaction, f"{work.run}: {intent.id} is dispatched inside a transaction"
        assert intent.id in self.opened, f"{work.run}: {intent.id} is dispatched and not durable"
        # Two workers may hold one intent, and the last to save wins; but saved is saved, where whoever hands work out
        # still has a say in it.
        known = work.checkpoint is not None or intent.id not in self.saves
        assert known or not is_ours, f"{work.run}: a checkpoint is lost"

    def assert_opened(self, work: Work) -> None:
        """Of work that is begun and may touch the outside."""
        assert work.intent.id in self.opened, f"{work.run}: {work.intent.id} is begun and not durable"

    def assert_not_open(self, run: str, intent: str) -> None:
        """Of work that is done, where its receipt comes too late for whoever goes on from here."""
        is_open = any(intent in life.open for life in self._lives(run))
        assert not is_open, f"{run} is given away, and the receipt of {intent} is not decided"

    def assert_recovered(self) -> None:
        """After a restart: every commit that was acknowledged is still there."""
        if self.closed:
            return
        found = self._last_row()
        assert found == (self._rowid, self._newest), (
            f"acknowledged records are gone: {found[0]} < {self._rowid}"
        )

    # --- at the end ---

    def check(self, world: SimWorld) -> None:
        self._check_replay(world)
        self._check_rows(world)
        self._check_actions(world)
        self._check_children()
        self._check_deliveries()
        self._check_performed(world)
        for task, person in world.people.told:
            self.assert_settled(task, {"by": person})

    def check_collected(self, world: SimWorld) -> None:
        """What is left are the runs that never end, also cells that have come to rest, and what belongs to them."""
        machines, endless = world.workload.machines, world.workload.endless
        rows = {no: world.store.run_by_no(no) for no in self.lives}
        left = [row for row in rows.values() if row is not None]
        past = [
            row.id
            for row in left
            if row.retain_ns
            or (row.status in TERMINAL and machines[row.dialect].traits.final and not endless(row.workflow))
        ]
        assert not past, f"{past} are past their date, and still there"
        for table in ("journal", "snapshots", "timers", "tasks", "checkpoints", "frames", "blob_refs"):
            query = f"SELECT count(*) FROM {table} WHERE run > 0 AND run NOT IN (SELECT no FROM runs)"
            assert self._count(query) == 0, f"{table} has rows of runs that are gone"
        loose = "SELECT digest FROM blobs WHERE digest NOT IN (SELECT digest FROM blob_refs)"
        unused = {row[0] for row in self._disk.live.execute(loose)} - set(snapshots.pinned(world.store))
        assert not unused, f"payloads that nobody refers to are still there: {sorted(unused)}"
        for no, life in self.lives.items():
            assert rows[no] is not None or life.status in TERMINAL, f"{life.id} is gone, and has not ended"
            if rows[no] is not None:
                assert [r.seq for r in world.store.journal(no)] == [r["seq"] for r in life.records], life.id

    def _count(self, query: str) -> int:
        return int(self._disk.live.execute(query).fetchone()[0])

    def _check_replay(self, world: SimWorld) -> None:
        store = world.store
        registry = Registry(machines_of(world.workload.machines), store)
        blobs = BlobCache(store)
        for no in self.lives:
            row = self._row(world, no)
            whole = load_state(row, store, registry, blobs, genesis=True)
            tail = load_state(row, store, registry, blobs)
            assert whole.digest == tail.digest == self.lives[no].digest
            assert (whole.state, sorted(whole.open)) == (tail.state, sorted(tail.open)), f"{row.id}: snapshot"
            for seq in store.snapshot_seqs(no):
                load_state(row, store, registry, blobs, until_seq=seq)

    def _row(self, world: SimWorld, no: int) -> RunRow:
        row = world.store.run_by_no(no)
        assert row is not None, f"run {no} has a journal and no row"
        return row

    def _check_rows(self, world: SimWorld) -> None:
        for no, life in self.lives.items():
            row = self._row(world, no)
            assert row.status == life.status, (
                f"{row.id}: the row says {row.status}, the journal {life.status}"
            )
            timers = {t.intent for t in world.store.timers_of(no)}
            due = {id for id, intent in life.open.items() if intent.get("due_ns") is not None}
            assert timers == due, f"{row.id}: timers {sorted(timers ^ due)} do not match open work"
            for task in world.store.tasks(run=row.id, limit=10_000):
                assert (task.status in ("open", "claimed")) == (task.id in life.open), (
                    f"{row.id}: task {task.id}"
                )

    def _check_actions(self, world: SimWorld) -> None:
        """Everything acknowledged is there, nothing is there more often than it was asked for."""
        for asked in world.clients.asked:
            action = asked.action
            lives = self._lives(action.run)
            value = event_value(action.event)
            records = [record for life in lives for record in life.records]
            count = sum(is_about(record, action.event.kind, value) for record in records)
            low, high = asked.count("ok"), asked.count("ok") + asked.count("sent")
            if action.submission is not None or action.create is not None:
                # Once for each time that the id was free.
                low, high = min(low, 1), min(high, max(1, len(lives)))
            if action.event.kind != "cancel":
                assert low <= count <= high, f"{action.name}: {count} times, expected {low} to {high}"

    def _check_children(self) -> None:
        born: dict[str, RunLife] = {}
        for life in self.all_lives():
            parent = life.records[0]["event"].get("parent_intent")
            if parent is not None:
                assert parent not in born, f"{parent} has two children"
                born[parent] = life
        for intent, (run, opened) in self.opened.items():
            if opened["kind"] != "child" or intent not in self.settled:
                continue
            receipt = self.settled[intent][1]["event"]
            if intent not in born:
                assert receipt.get("status") == "error", f"{run}: {intent} reports and was never born"
                continue
            last = born[intent].records[-1]
            if receipt.get("status", "ok") == "ok":
                assert last["status"] in ("completed", "partial"), f"{run}: {intent} reports ok"
                assert receipt["value"]["result"] == last["result"], f"{run}: {intent} reports another result"

    def _check_deliveries(self) -> None:
        heard: dict[str, int] = {}
        for life in self.all_lives():
            for record in life.records:
                if (source := _source(record)) is not None:
                    heard[source] = heard.get(source, 0) + 1
        for intent, (run, opened) in self.opened.items():
            if opened["kind"] == "deliver":
                assert heard.get(intent, 0) == 1, (
                    f"{run}: {intent} was delivered {heard.get(intent, 0)} times"
                )

    def _check_performed(self, world: SimWorld) -> None:
        for intent, (run, record) in self.settled.items():
            kind = self.opened[intent][1]["kind"]
            if kind in world.workload.performers and record["event"].get("status", "ok") == "ok":
                assert world.performed.get(intent), f"{run}: {intent} is settled and was never done"


def _ids(column: bytes | None) -> list[str]:
    return [column[at : at + 16].hex() for at in range(0, len(column), 16)] if column else []


def is_about(record: dict[str, Any], kind: str, value: dict[str, Any]) -> bool:
    """Whether a record is of this event; a cell's first event is the input it was started with."""
    if kind == "event" and record["kind"] == "started":
        return bool(record["event"].get("input") == value)
    # Whether it got its place at once, and which definition it was under, is decided with it.
    said = {name: part for name, part in record["event"].items() if name not in ("place", "was")}
    return bool(record["kind"] == kind and said == value)


def _began_with(life: RunLife, event: Started) -> bool:
    began = life.records[0]["event"]
    return is_start_of(began, event)


def is_start_of(began: dict[str, Any], event: Started) -> bool:
    """Whether a run began as one that is asked for: whoever asked."""
    said = (began.get("definition"), began.get("input"))
    return "forked_from" not in began and said == (event.definition, event.input)


def _source(record: dict[str, Any]) -> str | None:
    """The message a record is about; a cell's first one is the input it was started with."""
    event = record["event"].get("input") if record["kind"] == "started" else record["event"]
    if record["kind"] in ("started", "event") and isinstance(event, dict):
        source: str | None = event.get("source")
        return source
    return None
