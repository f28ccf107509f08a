"""Crash at every event boundary, on the engine and its store: the examples and ten more workflows.

After each commit the files of the store are copied as they lie there, write-ahead log and all: that
is what SIGKILL leaves at that instant (events are visible only after their commit, so no boundary is
between two copies). Every copy is given to a fresh engine, which knows nothing else. (Processes that
are really killed are in test_engine.py.)
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine
from treadle.store.sql import SqlStore
from treadle.testing.scripted import ScriptedModel

from .workflows import CASES, EXAMPLE_NAMES, EXAMPLES, notes

pytestmark = pytest.mark.at_home("copies the file of the store after each commit")

ASKED = ("model", "route", "ask")


@dataclass
class Outcome:
    document: dict[str, Any]
    events: list[dict[str, Any]]
    asked: Counter[str]
    journal: list[dict[str, Any]]


class Crashed:
    """One workflow; every engine on it has a model of its own, which remembers only its own questions."""

    def __init__(self, flow: Path, script: dict[str, Any]) -> None:
        self.flow, self.script = flow, script

    async def go(self, store: Path, *, resume: bool = False) -> Outcome:
        engine = Engine(f"sqlite:///{store}")
        model = engine.models["fake"] = ScriptedModel(self.script)
        engine.register(notes())
        before, told = await events_of(store) if resume else 0, list[int]()
        engine.observe(lambda event: told.append(event["seq"]), after=before)
        async with engine:
            if resume:
                run = await engine.run("r")
            else:
                run = await engine.start(engine.deploy(str(self.flow))[0].name, id="r", model="fake")
            while (shown := await run.settled(timeout=30))["status"] == "waiting":
                (task,) = await engine.tasks(run="r")
                await engine.task_complete(task["id"], {"approved": True}, user="ann", roles=["admin"])
            events = await engine.events_after("r", 0)
            journal = await run.journal()
            assert (await engine.replay("r"))["equal"]
        assert [*range(1, before + 1), *told] == [event["seq"] for event in events], (
            "each event once, in order"
        )
        return Outcome(shown, events, Counter(map(request, model.calls)), journal)


async def events_of(store: Path) -> int:
    """How many events an observer of the process that crashed could have seen."""
    async with Engine(f"sqlite:///{store}", readonly=True) as engine:
        return len(await engine.events_after("r", 0))


def request(call: dict[str, Any]) -> str:
    """What was asked, whole: the same question in the same place has the same text."""
    return json.dumps(call, sort_keys=True)


def visible(outcome: Outcome) -> Any:
    """What readers and observers see, in an order that does not depend on which of two parallel
    branches was quicker. Progress may be repeated, nothing else may."""
    told = [
        {key: value for key, value in event.items() if key not in ("seq", "at", "record")}
        for event in outcome.events
        if event["type"] != "node:progress"
    ]
    of_node = [(str(event.get("node") or event.get("from") or ""), event) for event in told]
    state = outcome.document["state"]
    trace = {
        **state["trace"],
        "steps": _sorted(state["trace"]["steps"]),
        "edges": _sorted(state["trace"]["edges"]),
    }
    return {
        "events": sorted(of_node, key=lambda pair: pair[0]),
        "first and last": (told[0]["type"], told[1]["type"], told[-1]["type"]),
        "results": state["results"],
        "trace": trace,
        "status": outcome.document["status"],
        "error": outcome.document["error"],
    }


def _sorted(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


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


def recorded(store: Path) -> int:
    """The last record of the run in a store that nobody has opened since the crash."""
    with closing(sqlite3.connect(store)) as db:
        (seq,) = db.execute(
            "SELECT max(seq) FROM journal WHERE run = (SELECT no FROM runs WHERE id = 'r')"
        ).fetchone()
    return seq or 0


def answered(outcome: Outcome, seq: int) -> int:
    """How many questions to the model had their answer in the first `seq` records."""
    journal = outcome.journal[:seq]
    opened = {intent["id"]: intent["kind"] for record in journal for intent in record.get("opened", [])}
    receipts = [record["event"]["intent"] for record in journal if "intent" in record["event"]]
    return sum(opened[intent] in ASKED for intent in receipts)


async def check(crashed: Crashed, copies: list[Path], tmp_path: Path) -> None:
    calm = await crashed.go(tmp_path / "calm.db")
    crashes = [(store, seq) for store in list(copies) if (seq := recorded(store))]
    assert crashes[-1][1] == len(calm.journal), "the last boundary is the end"
    for store, seq in crashes:
        again = await crashed.go(store, resume=True)
        assert visible(again) == visible(calm), f"crash after record {seq}"
        assert again.asked <= calm.asked, "something was asked that an undisturbed run does not ask"
        asked_before = (calm.asked - again.asked).total()
        assert asked_before == answered(again, seq), "what was answered is not asked again"


@pytest.mark.parametrize("name", CASES)
async def test_a_crash_at_any_boundary_changes_nothing(tmp_path, flow, copies, name):
    nodes, edges, script, more = CASES[name]
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(flow(nodes, *edges, **more)))
    await check(Crashed(file, script), copies, tmp_path)


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
async def test_a_crash_at_any_boundary_of_an_example_changes_nothing(tmp_path, copies, name):
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("out"))
    script = json.loads((folder / "script.json").read_text())
    await check(Crashed(folder / "flow.yaml", script), copies, tmp_path)
