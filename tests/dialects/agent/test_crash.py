"""Crash after every record of thirteen workflows: what people see is what an undisturbed run shows.

Each crash loses everything in memory: caches, sessions, the model's counters, and the answers of
all work that was in flight, which had been done all the same. The run is folded from its journal
and goes on. (Killing a real process on a real store is in test_engine.py.)
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from treadle.kernel.history import replay
from treadle.performers.agent.performer import AgentWork
from treadle.performers.agent.skill_finding import Skills
from treadle.performers.agent.skills.built_in import duckdb_skill, files_skill
from treadle.testing.scripted import ScriptedModel

from .workflows import CASES, EXAMPLE_NAMES, examples, notes


def visible(run: Any) -> Any:
    """What observers and readers see; progress may be repeated, nothing else may."""
    told = [event for event in run.events if event["type"] != "node:progress"]
    return {
        "events": told,
        "results": run.results,
        "trace": run.trace,
        "status": run.status,
        "error": run.driver.run.error,
    }


class Crashing:
    """A run that is thrown away and folded anew after a given record."""

    def __init__(self, prepared: Any, wf: Any, script: dict[str, Any], base: str | None = None) -> None:
        self.script = script
        options = {"base": base} if base else {}
        skills = (notes(), files_skill(), duckdb_skill())
        self.run = prepared(wf, script, skills=skills, **options).start()
        self.asked: list[Any] = []

    def go(self) -> Any:
        """To the end; people answer as soon as they are asked."""
        while True:
            self.run.go()
            tasks = self.run.driver.open("task")
            if not tasks:
                return self.run
            self.run.driver.ok(tasks[0], {"approved": True, "note": "ok"}, by="ann")

    def until(self, record: int) -> bool:
        """Plays until `record` is durable; False if the run ends before."""
        while self.run.driver.run.seq < record:
            intent = self.run.next()
            if intent is not None:
                self.run.perform(intent)
            elif tasks := self.run.driver.open("task"):
                self.run.driver.ok(tasks[0], {"approved": True, "note": "ok"}, by="ann")
            else:
                return False
        return self.run.status in ("running", "waiting")

    def crash(self) -> None:
        """Does everything that is open, loses the answers, and comes back with a journal only."""
        run = self.run
        for intent in list(run.driver.open()):
            if intent.kind in ("source", "model", "call", "route", "ask"):
                asyncio.run(run._receipt(intent))
        self.asked += run.model.calls
        run.model = ScriptedModel(self.script)
        registry = Skills(learn=lambda name, value: None)
        for skill in (notes(), files_skill(), duckdb_skill()):
            registry.register(skill)
        old = run.work
        run.work = AgentWork(lambda options: run.model, registry, old.mcp, old.fetch, old.config_of)
        run.driver.run = replay(
            run.driver._fresh(),
            run.driver.machine,
            lambda _: run.driver.definition,
            run.driver.journal,
            blobs=run.driver.blobs.__getitem__,
        )


def check(prepared: Any, wf: Any, script: dict[str, Any], base: str | None = None) -> None:
    expected = Crashing(prepared, wf, script, base).go()
    records = len(expected.driver.journal)
    assert records > 2
    for record in range(1, records + 1):
        again = Crashing(prepared, wf, script, base)
        if not again.until(record):
            break
        answered = {intent.id for intent in again.run.performed}
        again.crash()
        after = again.run.performed = []
        again.go()
        assert visible(again.run) == visible(expected), f"crash after record {record}"
        assert not answered & {intent.id for intent in after}, "something answered was asked again"


@pytest.mark.parametrize("name", CASES)
def test_a_crash_after_any_record_changes_nothing(prepared, flow, name):
    nodes, edges, script, more = CASES[name]
    check(prepared, flow(nodes, *edges, **more), script)


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_a_crash_after_any_record_of_an_example_changes_nothing(prepared, name, monkeypatch, tmp_path):
    wf, script, base = examples()[name]
    # The queries of the research example start processes: two would do, twenty take too long.
    import treadle.performers.agent.skills.duckdb as home

    async def quick(sql: str, root: str, database: Any) -> Any:
        return {"columns": ["total"], "rows": [[240]], "truncated": False}

    monkeypatch.setattr(home, "_query", quick)
    if name == "release-notes":
        script = json.loads(json.dumps(script).replace("out/notes.md", str(tmp_path / "notes.md")))
        monkeypatch.setenv("TREADLE_FILES_ROOT", "/")
        script = json.loads(json.dumps(script).replace("data/changes.txt", f"{base}/data/changes.txt"))
    check(prepared, wf, script, base)


def test_crashing_at_every_record_of_one_run_still_ends_the_same(prepared, flow):
    nodes, edges, script, more = CASES["parallel"]
    wf = flow(nodes, *edges, **more)
    expected = Crashing(prepared, wf, script).go()
    run = Crashing(prepared, wf, script)
    record = 1
    while run.until(record):
        run.crash()
        record = run.run.driver.run.seq + 1
    assert visible(run.run) == visible(expected)
