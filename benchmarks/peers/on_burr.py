"""Burr with its SQLite persister: a state machine whose state is written after each action."""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path
from typing import Any

from burr.core import Application, ApplicationBuilder, State, action, expr
from burr.core.parallelism import MapStates, RunnableGraph
from burr.core.persistence import SQLitePersister

from peers import work
from peers.peer import version

_numbers = itertools.count()


@action(reads=["n"], writes=["n"])
def count(state: State) -> State:
    return state.update(n=work.count(state["n"]))


@action(reads=["n"], writes=["n"])
def ready(state: State) -> State:
    return state


@action(reads=["n"], writes=["n"])
def take(state: State, sent: int) -> State:
    return state.update(n=sent)


@action(reads=["run", "tokens"], writes=["tokens"])
async def slow(state: State) -> State:
    return state.append(tokens=await work.slow(state["run"], len(state["tokens"])))


@action(reads=[], writes=[])
def end(state: State) -> State:
    return state


class Fan(MapStates):
    """Each state is an application of its own, one action long, saved like its parent."""

    def action(self, state: State, inputs: dict[str, Any]) -> Any:
        return RunnableGraph.create(count)

    def states(self, state: State, context: Any, inputs: dict[str, Any]) -> Any:
        for _ in range(state["width"]):
            yield state.update(n=0)

    def reduce(self, state: State, states: Any) -> State:
        return state.update(n=sum(each["n"] for each in states))

    @property
    def reads(self) -> list[str]:
        return ["width"]

    @property
    def writes(self) -> list[str]:
        return ["n"]


class Peer:
    cannot = {  # noqa: RUF012
        "W2children": "it has no children apart from its parallel actions, which are W2 with steps",
        "W8": "no model of its own: it would be W1 again",
        "W9": "a library: it has no server that takes starts over HTTP",
    }

    @property
    def about(self) -> dict[str, str]:
        return {
            "version": version("burr"),
            "durability": "SQLite, WAL, synchronous=FULL (set here; its default is a rollback journal), a commit an action;"
            " checkpoints of state only, no journal of work",
            "recovery": "by the caller, who has to know the ids",
        }

    async def open(self, folder: Path, program: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(folder / "burr.db", check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        options = {
            "check_same_thread": False,
            "timeout": 60,
        }  # parallel actions open connections of their own
        path = str(folder / "burr.db")
        self._persister = SQLitePersister(path, connect_kwargs=options, connection=connection)
        self._persister.initialize()

    async def close(self) -> None:
        self._persister.connection.close()

    def _builder(self, run: str, entry: str, state: dict[str, Any]) -> ApplicationBuilder:
        return (
            ApplicationBuilder()
            .with_identifiers(app_id=run)
            .with_state_persister(self._persister)
            .initialize_from(
                self._persister, resume_at_next_action=True, default_state=state, default_entrypoint=entry
            )
        )

    async def chain(self, steps: int) -> int:
        """Blocks the loop: one run after the other on one thread is the fastest that it can do."""
        app = (
            self._builder(f"chain-{next(_numbers)}", "count", {"n": 0})
            .with_actions(count, end)
            .with_transitions(("count", "count", expr(f"n < {steps}")), ("count", "end"))
            .build()
        )
        _, _, state = app.run(halt_before=["end"])
        return int(state["n"])

    async def fan(self, width: int) -> int:
        app = (
            self._builder(f"fan-{next(_numbers)}", "fan", {"n": 0, "width": width})
            .with_actions(end, fan=Fan())
            .with_transitions(("fan", "end"))
            .build()
        )
        _, _, state = app.run(halt_before=["end"])
        return int(state["n"])

    def _waiting(self, run: str) -> Application:
        return (
            self._builder(run, "ready", {"n": 0})
            .with_actions(ready, take, end)
            .with_transitions(("ready", "take"), ("take", "end"))
            .build()
        )

    async def wait(self, run: str) -> None:
        self._waiting(run).run(halt_before=["take"])

    async def wake(self, run: str) -> None:
        self._waiting(run).run(halt_after=["take"], inputs={"sent": 7})

    async def woken(self, run: str) -> int:
        saved = self._persister.load(None, run)
        assert saved is not None
        return int(saved["state"]["n"])

    async def slow(self, run: str, steps: int) -> None:
        await self.slow_result(run, steps)

    async def slow_result(self, run: str, steps: int) -> list[str]:
        app = (
            self._builder(run, "slow", {"run": run, "tokens": [], "most": steps + 1})
            .with_actions(slow, end)
            .with_transitions(("slow", "slow", expr("len(tokens) < most")), ("slow", "end"))
            .build()
        )
        _, _, state = await app.arun(halt_before=["end"])
        return list(state["tokens"])
