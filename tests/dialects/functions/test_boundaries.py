"""Crash at every commit boundary, on the engine and its store: six workflows, children of every dialect among them.

After each commit the files of the store are copied as they lie there, write-ahead log and all: what SIGKILL leaves at
that instant. Every copy is given to an engine that knows nothing else. Results, events and states equal those of the
run that nobody disturbed, and no step whose result is in a copy is called by whoever takes that copy up.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.store.sql import SqlStore
from treadle.testing import VirtualClock

from . import six
from .six import CALLS

pytestmark = pytest.mark.at_home("copies the file of the store after each commit")

TERMINAL = ("completed", "failed", "cancelled")


@dataclass
class Outcome:
    seen: dict[str, Any]
    calls: Counter[str]


class Played:
    """One workflow in one folder; whatever the run waits for is done, by looking at it alone."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.script = folder / "script.json"
        self.script.write_text(json.dumps(six.SCRIPT))
        self.files = []
        for file, text in (("p.yaml", six.PLAYBOOK), ("q.yaml", six.PROCESS), ("a.yaml", six.AGENT)):
            (folder / file).write_text(text)
            self.files.append(str(folder / file))

    async def go(self, store: Path, *, at_ns: int | None = None) -> Outcome:
        CALLS.clear()
        clock = VirtualClock() if at_ns is None else VirtualClock(at_ns)
        engine = clock.engine(f"sqlite:///{store}")

        @engine.tool("counted", idempotent=True)
        def counted(what: str) -> str:
            CALLS[f"tool {what} 1"] += 1
            return what

        workflow, input = six.CASES[self.name]
        for target in (*self.files, six.app, workflow):
            engine.deploy(target)
        async with engine:
            model = f"scripted:{self.script}" if self.name == "parent" else None
            await engine.start(workflow, input, id="r", model=model)
            run = await engine.run("r")
            while (await self._moved(engine, clock))["status"] not in TERMINAL:
                pass
            await clock.settle()
            for row in await engine.list(limit=1000):
                assert (await engine.replay(row["id"]))["equal"]
            return Outcome(await _seen(engine, await run.show()), Counter(CALLS))

    async def _moved(self, engine: Engine, clock: VirtualClock) -> dict[str, Any]:
        await clock.settle()
        shown = await (await engine.run("r")).show()
        if shown["status"] in TERMINAL:
            return shown
        for wait in shown["waiting_for"]:
            if wait["kind"] == "task" and wait["roles"] == ["boss"]:
                await engine.task_claim(wait["id"], user="ann", roles=["boss"])
                await engine.task_complete(wait["id"], {"ok": True}, user="ann", roles=["boss"])
                return shown
        names = [wait["name"] for wait in shown["waiting_for"] if wait["kind"] == "signal"]
        if names and names != ["late"]:
            done = shown["state"].get("done", 0)
            await engine.signal("r", names[0], f"{names[0]} {done}")
            return shown
        due = min(_dues(shown["waiting_for"]), default=None)
        if due is not None:
            await clock.advance(max(0.0, due - clock.now_ns() / 1e9))
        return shown


def _dues(waits: list[dict[str, Any]]) -> list[float]:
    """When what a run waits for, or its children do, is due: seconds since 1970."""
    found = [datetime.fromisoformat(wait["due"]).timestamp() for wait in waits if wait.get("due")]
    return found + [due for wait in waits for due in _dues(wait.get("waiting_for") or [])]


async def _seen(engine: Engine, shown: dict[str, Any]) -> dict[str, Any]:
    """What people see of all that happened, but for times and numbers that any two runs have of their own."""
    rows = sorted(await engine.list(limit=1000), key=lambda row: str(row["id"]))
    return {
        "status": shown["status"],
        "error": shown["error"],
        "state": shown["state"],
        "result": shown["result"],
        "runs": [(row["id"], row["workflow"], row["status"]) for row in rows],
        "events": [
            {name: part for name, part in event.items() if name not in ("at", "seq", "record")}
            for event in await engine.events_after("r", 0)
        ],
    }


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """A copy of `calm.db` after each of its commits."""
    found: list[Path] = []
    commit, source = SqlStore.commit, tmp_path / "calm.db"

    def copied(self: SqlStore, batch: Any) -> None:
        commit(self, batch)
        if self._dialect.path != source:
            return
        target = tmp_path / "crashed" / str(len(found)) / "calm.db"
        target.parent.mkdir(parents=True)
        for ending in ("", "-wal", "-key"):
            shutil.copyfile(f"{source}{ending}", f"{target}{ending}")
        if (blobs := Path(f"{source}-blobs")).exists():
            shutil.copytree(blobs, f"{target}-blobs")
        found.append(target)

    monkeypatch.setattr(SqlStore, "commit", copied)
    return found


async def left_at(store: Path) -> tuple[int, Counter[str]]:
    """The time of the last record in a copy, and the calls whose outcome is in it."""
    settled: Counter[str] = Counter()
    last_ns = 0
    async with Engine(f"sqlite:///{store}", readonly=True) as engine:

        def ask(reads: Any) -> None:
            nonlocal last_ns
            for row in reads.runs(limit=1000):
                opened: dict[str, str] = {}
                for stored in reads.journal(row.no):
                    record = stored.record()
                    last_ns = max(last_ns, record["at"])
                    for intent in record.get("opened", ()):
                        if (call := _call(intent)) is not None:
                            opened[intent["id"]] = call
                    if record["kind"] == "receipt" and record["event"]["intent"] in opened:
                        settled[opened[record["event"]["intent"]]] += 1

        await engine.read(ask)
    return last_ns, settled


def _call(intent: dict[str, Any]) -> str | None:
    params = intent["params"]
    if intent["kind"] == "step" and "step" in params and "args" in params:
        return f"{params['step'].removeprefix('six.')} {params['args']['what']} {params.get('attempt', 1)}"
    return None


@pytest.mark.parametrize("name", six.CASES)
async def test_a_crash_at_any_commit_changes_nothing(name: str, tmp_path: Path, copies: list[Path]) -> None:
    played = Played(tmp_path, name)
    calm = await played.go(tmp_path / "calm.db")
    assert calm.seen["status"] == ("failed" if name == "saga" else "completed"), calm.seen["error"]
    assert len(copies) > 5
    for number, copy in enumerate(copies):
        last_ns, settled = await left_at(copy)
        if not last_ns:
            continue  # nothing was there yet but the definitions
        again = await played.go(copy, at_ns=last_ns)
        assert again.seen == calm.seen, f"after commit {number}"
        repeated = {
            call: count
            for call, count in again.calls.items()
            if not call.startswith("tool") and count > calm.calls[call] - settled[call]
        }
        assert not repeated, f"after commit {number}: called again, though recorded"
        missing = {call for call in calm.calls if again.calls[call] + settled[call] < calm.calls[call]}
        assert not missing - {call for call in missing if call.startswith("tool")}
