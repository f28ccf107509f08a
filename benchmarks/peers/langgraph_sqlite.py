"""LangGraph with its SQLite checkpointer, durability="sync": a graph that visits one node again and
again. Runs in the peer's own environment."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

FOLDER, RUNS, STEPS = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


class State(TypedDict):
    n: int
    total: int


def step(state: State) -> dict[str, int]:
    return {"n": state["n"] + 1}


def build(saver: SqliteSaver) -> Any:
    graph = StateGraph(State)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda state: END if state["n"] >= state["total"] else "step")
    return graph.compile(checkpointer=saver)


def run(graph: Any, thread: str, steps: int) -> None:
    config = {"configurable": {"thread_id": thread}, "recursion_limit": steps + 10}
    graph.invoke({"n": 0, "total": steps}, config, durability="sync")


connection = sqlite3.connect(FOLDER / "langgraph.db", check_same_thread=False)
graph = build(SqliteSaver(connection))
run(graph, "warm", 5)
mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
sync = connection.execute("PRAGMA synchronous").fetchone()[0]

begin = time.perf_counter()
run(graph, "one", STEPS * 5)
sequential = STEPS * 5 / (time.perf_counter() - begin)

begin = time.perf_counter()
with ThreadPoolExecutor(RUNS) as pool:
    list(pool.map(lambda number: run(graph, f"many-{number}", STEPS // 10 or 1), range(RUNS)))
concurrent = RUNS * (STEPS // 10 or 1) / (time.perf_counter() - begin)
print(
    json.dumps(
        {
            "sequential": sequential,
            "concurrent": concurrent,
            "version": version("langgraph"),
            "durability": f"SQLite, journal {mode}, synchronous {sync}",
        }
    )
)
