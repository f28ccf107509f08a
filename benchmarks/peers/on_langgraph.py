"""LangGraph with its SQLite checkpointer and durability="sync": graphs of nodes."""

from __future__ import annotations

import itertools
import operator
import sqlite3
from pathlib import Path
from typing import Annotated, Any, TypedDict

import aiosqlite
from langchain_core.language_models import FakeListChatModel
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from peers import work
from peers.peer import version

_numbers = itertools.count()


class Chain(TypedDict):
    n: int
    steps: int


class Fan(TypedDict):
    width: int
    n: Annotated[int, operator.add]


class Slow(TypedDict):
    run: str
    steps: int
    tokens: Annotated[list[str], operator.add]


class Wait(TypedDict):
    n: int


class Talk(TypedDict):
    answers: Annotated[list[str], operator.add]


def count(state: Chain) -> dict[str, int]:
    return {"n": work.count(state["n"])}


def one(state: Any) -> dict[str, int]:
    return {"n": work.count(0)}


def hold(state: Wait) -> dict[str, int]:
    return {"n": interrupt("go")}


async def slow(state: Slow) -> dict[str, list[str]]:
    return {"tokens": [await work.slow(state["run"], len(state["tokens"]))]}


def chained() -> StateGraph[Any]:
    graph = StateGraph(Chain)
    graph.add_node("count", count)
    graph.add_edge(START, "count")
    graph.add_conditional_edges("count", lambda state: END if state["n"] >= state["steps"] else "count")
    return graph


def fanned(node: Any) -> StateGraph[Any]:
    graph = StateGraph(Fan)
    graph.add_node("one", node)
    graph.add_conditional_edges(START, lambda state: [Send("one", {"n": 0})] * state["width"], ["one"])
    return graph


def waiting() -> StateGraph[Any]:
    graph = StateGraph(Wait)
    graph.add_node("hold", hold)
    graph.add_edge(START, "hold")
    return graph


def slowed() -> StateGraph[Any]:
    graph = StateGraph(Slow)
    graph.add_node("slow", slow)
    graph.add_edge(START, "slow")
    graph.add_conditional_edges(
        "slow", lambda state: END if len(state["tokens"]) > state["steps"] else "slow"
    )
    return graph


def talked(count: int) -> StateGraph[Any]:
    model = FakeListChatModel(responses=["ok"])
    graph = StateGraph(Talk)
    names = [f"n{number}" for number in range(count)]
    for name in names:

        def node(state: Talk, name: str = name) -> dict[str, list[str]]:
            return {"answers": [str(model.invoke(f"Do {name}.").content)]}

        graph.add_node(name, node)
    for before, after in itertools.pairwise([START, *names]):
        graph.add_edge(before, after)
    return graph


class Peer:
    cannot = {  # noqa: RUF012
        "W2children": "a subgraph is part of its parent's run; there are no runs as children",
        "W9": "its server is a product of its own, not in the package",
    }

    @property
    def about(self) -> dict[str, str]:
        return {
            "version": version("langgraph"),
            "durability": "SQLite, WAL, synchronous=FULL, durability=sync: a commit or two a node; checkpoints of state",
            "recovery": "by the caller, who has to know the ids",
        }

    async def open(self, folder: Path, program: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if program == "slow":
            others = await aiosqlite.connect(folder / "langgraph.db")
            await others.execute("PRAGMA synchronous=FULL")
            self._slow = slowed().compile(checkpointer=AsyncSqliteSaver(others))
            self._others: aiosqlite.Connection | None = others
            return
        self._others = None
        self._connection = sqlite3.connect(folder / "langgraph.db", check_same_thread=False)
        self._connection.execute("PRAGMA synchronous=FULL")
        self._saver = SqliteSaver(self._connection)
        make = {"chain": chained, "fan": lambda: fanned(one), "wait": waiting}.get(program)
        if make is not None:
            self._graph = make().compile(checkpointer=self._saver)
        self._talks: dict[int, Any] = {}

    async def close(self) -> None:
        if self._others is not None:
            await self._others.close()
        else:
            self._connection.close()

    def _run(self, graph: Any, given: Any, run: str, most: int = 100) -> Any:
        config = {"configurable": {"thread_id": run}, "recursion_limit": most + 10}
        return graph.invoke(given, config, durability="sync")

    async def chain(self, steps: int) -> int:
        """Blocks the loop: threads that share its one connection are no faster."""
        given = {"n": 0, "steps": steps}
        return int(self._run(self._graph, given, f"chain-{next(_numbers)}", steps)["n"])

    async def fan(self, width: int) -> int:
        return int(self._run(self._graph, {"n": 0, "width": width}, f"fan-{next(_numbers)}")["n"])

    async def wait(self, run: str) -> None:
        self._run(self._graph, {"n": 0}, run)

    async def wake(self, run: str) -> None:
        self._run(self._graph, Command(resume=7), run)

    async def woken(self, run: str) -> int:
        config: Any = {"configurable": {"thread_id": run}}
        return int(self._graph.get_state(config).values["n"])

    async def slow(self, run: str, steps: int) -> None:
        await self._slowly(run, steps, {"run": run, "steps": steps, "tokens": []})

    async def slow_result(self, run: str, steps: int) -> list[str]:
        return await self._slowly(run, steps, None)

    async def _slowly(self, run: str, steps: int, given: Any) -> list[str]:
        config: Any = {"configurable": {"thread_id": run}, "recursion_limit": steps + 10}
        found = await self._slow.ainvoke(given, config, durability="sync")
        return list(found["tokens"])

    async def nodes(self, count: int) -> int:
        if count not in self._talks:
            self._talks[count] = talked(count).compile(checkpointer=self._saver)
        return len(self._run(self._talks[count], {"answers": []}, f"talk-{next(_numbers)}", count)["answers"])
