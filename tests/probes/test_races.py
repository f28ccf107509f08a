"""Callers that meet at one run, one task, one name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from tests.backdoor import change
from tests.probes.racing import DEADLINE_S, Door, House, Subject, compiled, meet, meetings, opened

from treadle import Engine
from treadle.kernel.errors import RunNotFound, TreadleError
from treadle.kernel.model import TERMINAL
from treadle.lang.definition import Definition
from treadle.runtime import document, tasks, timers
from treadle.runtime.desk import Desk
from treadle.runtime.registry import Registry
from treadle.store.protocol import Reads
from treadle.store.rows import TaskRow

FLOWS = {
    "waits": "steps: [{await: {signal: go, into: a}}, {complete: [{$: result.a}, {$: start.n}, {$: state.p}]}]",
    "ends": "steps: [{complete: {$: start.n}}]",
    "fails": "steps: [{fail: no}]",
    "parent": "steps: [{child: {workflow: ends}}, {child: {workflow: waits}}, {complete: done}]",
    "asks_once": "tasks: {t: {roles: [clerk], timeout: 1000h}}\nsteps: [{task: t}, {complete: {$: payload}}]",
    "asks": "tasks: {t: {roles: [clerk]}}\nsteps: [{task: t}, {complete: {$: payload}}]",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with opened(tmp_path_factory.mktemp("races"), FLOWS) as found:
        yield found


def _started(flow: str) -> Door:
    async def make(engine: Engine, name: str) -> None:
        await (await engine.start(flow, {"n": 1}, id=name, reference=f"ref-{name}")).settled(
            timeout=DEADLINE_S
        )

    return make


async def _stalled(engine: Engine, name: str) -> None:
    """A parent whose second child was cancelled; when it is retried, it waits for another."""
    parent = await engine.start("parent", {"n": 1}, id=name, reference=f"ref-{name}")
    await parent.settled(timeout=DEADLINE_S)
    (child,) = await engine.list(parent=name, status="waiting")
    await engine.cancel(child["id"])
    assert (await parent.settled(timeout=DEADLINE_S))["status"] == "stalled"


async def _nothing(engine: Engine, name: str) -> None:
    """There is nothing of this name."""


async def _look(engine: Engine, name: str) -> Any:
    """All that there is under a name and the names made of it."""
    for end in ("", "-f"):
        with suppress(RunNotFound):
            found = await (await engine.run(name + end)).settled(timeout=DEADLINE_S)
            if found["status"] in TERMINAL:
                await _children_ended(engine, name + end)
    return await engine.read(lambda reads: _there(reads, engine.library.registry(reads), name))


async def _children_ended(engine: Engine, name: str) -> None:
    """Who ended tells its children with the next commit."""
    for child in await engine.list(parent=name):
        with suppress(TreadleError):
            await (await engine.run(child["id"])).result(timeout=DEADLINE_S)


def _there(reads: Reads, registry: Registry, name: str) -> list[Any]:
    rows = [row for end in ("", "-f", "-r") if (row := reads.run(name + end)) is not None]
    rows += [child for row in list(rows) for child in reads.runs(parent=row.id, limit=10)]
    found = []
    for row in rows:
        shown = document.show(reads, registry, row.id)
        found.append(
            [
                "child" if "." in row.id else row.id,
                *(shown[key] for key in ("status", "version", "result", "reference", "state")),
                (shown["error"] or {}).get("code"),
                [wait["name"] for wait in shown["waiting_for"]],
                [record.record()["kind"] for record in reads.journal(row.no)],
                *[
                    _task(task)
                    for task in reads.tasks(run=row.id, status=tasks.STATUSES, after_no=0, limit=9)
                ],
            ]
        )
    return sorted(found, key=str)


def _task(task: TaskRow) -> list[Any]:
    return [
        task.status,
        task.assignee,
        [entry["event"] for entry in task.history],
        task.history[-1].get("answer"),
    ]


async def _result(engine: Engine, name: str) -> Any:
    return await (await engine.run(name)).result(timeout=0)


RUN: dict[str, Door] = {
    "start": lambda e, n: e.start("waits", {"n": 1}, id=n),
    "start with other input": lambda e, n: e.start("waits", {"n": 2}, id=n),
    "start another": lambda e, n: e.start("ends", {"n": 1}, id=n),
    "signal": lambda e, n: e.signal(n, "go", 1),
    "signal K": lambda e, n: e.signal(n, "go", 2, key="K"),
    "signal K otherwise": lambda e, n: e.signal(n, "go", 3, key="K"),
    "signal at version 1": lambda e, n: e.signal(n, "go", 4, expected_version=1),
    "signal by reference": lambda e, n: e.signal_reference(f"ref-{n}", "go", 5),
    "cancel": lambda e, n: e.cancel(n, "enough"),
    "patch": lambda e, n: e.patch(n, {"p": 1}),
    "patch otherwise": lambda e, n: e.patch(n, {"p": 2}),
    "retry": lambda e, n: e.retry(n),
    "skip": lambda e, n: e.retry(n, skip=True),
    "give up": lambda e, n: e.retry(n, fail="no more"),
    "fork": lambda e, n: e.fork(n, new_id=f"{n}-f"),
    "delete": lambda e, n: e.delete(n),
    "result": _result,
}
SUBJECTS = {
    "nothing": Subject(_nothing, RUN, _look),
    "a run that waits": Subject(_started("waits"), RUN, _look),
    "a run that has ended": Subject(_started("ends"), RUN, _look),
    "a run that has failed": Subject(_started("fails"), RUN, _look),
    "a run that is stalled": Subject(_stalled, RUN, _look),
}


# --- a task ---


def _of_task(do: Callable[[Engine, str], Awaitable[Any]]) -> Door:
    """A door of the one task of the run."""

    async def ask(engine: Engine, name: str) -> Any:
        return await do(engine, TASKS[name])

    return ask


async def _asked(engine: Engine, name: str) -> None:
    await engine.start("asks", None, id=name)
    TASKS[name] = (await engine.tasks(run=name))[0]["id"]


async def _asked_once(engine: Engine, name: str) -> None:
    await engine.start("asks_once", None, id=name)
    TASKS[name] = (await engine.tasks(run=name))[0]["id"]
    DECIDES[name] = engine


async def _time_is_up(engine: Engine, name: str) -> None:
    """What the clock does, on the core's thread of whoever decides; if there is still something to be late for."""

    def fire(desk: Desk) -> None:
        for row in desk.store.timers_of(document.row_of(desk.store, name).no):
            desk.post(timers.deadline(row))

    await change(DECIDES[name], fire)


async def _claimed(engine: Engine, name: str) -> None:
    await _asked(engine, name)
    await engine.task_claim(TASKS[name], user="ann", roles=["clerk"])


TASKS: dict[str, str] = {}
# Who made it: the owner of the store.
DECIDES: dict[str, Engine] = {}
ANN: dict[str, Any] = {"user": "ann", "roles": ["clerk"]}
BOB: dict[str, Any] = {"user": "bob", "roles": ["clerk"]}
ROOT: dict[str, Any] = {"user": "root", "roles": ["admin"]}
TASK: dict[str, Door] = {
    "ann claims": _of_task(lambda e, t: e.task_claim(t, **ANN)),
    "bob claims": _of_task(lambda e, t: e.task_claim(t, **BOB)),
    "ann releases": _of_task(lambda e, t: e.task_release(t, **ANN)),
    "ann gives it to bob": _of_task(lambda e, t: e.task_assign(t, to="bob", **ANN)),
    "ann completes": _of_task(lambda e, t: e.task_complete(t, "by ann", **ANN)),
    "bob completes": _of_task(lambda e, t: e.task_complete(t, "by bob", **BOB)),
    "root completes": _of_task(lambda e, t: e.task_complete(t, "by root", **ROOT)),
    "root completes version 1": _of_task(lambda e, t: e.task_complete(t, 1, expected_version=1, **ROOT)),
    "bob comments": _of_task(lambda e, t: e.task_comment(t, text="hm", **BOB)),
    "cancel": lambda e, n: e.cancel(n),
    "fork": lambda e, n: e.fork(n, new_id=f"{n}-f"),
    "look": lambda e, n: e.tasks(run=n),
}
SUBJECTS["a task"] = Subject(_asked, TASK, _look)
SUBJECTS["a task with a time"] = Subject(_asked_once, {**TASK, "its time is up": _time_is_up}, _look)
SUBJECTS["a task of ann"] = Subject(_claimed, TASK, _look)


# --- a name ---


def _flow(name: str, version: str, value: str) -> Definition:
    return compiled(f"dialect: process\nname: {name}\nversion: '{version}'\nsteps: [{{complete: {value}}}]\n")


async def _deploy(engine: Engine, name: str, version: str, value: str) -> list[str]:
    found = await asyncio.to_thread(engine.deploy, _flow(name, version, value))
    return [f"{one.name}@{one.version}" for one in found]


async def _deploy_and_start(engine: Engine, name: str) -> Any:
    await _deploy(engine, name, "2", "two")
    return await _start(engine, name, name)


async def _start(engine: Engine, name: str, workflow: str) -> Any:
    run = await engine.start(workflow, None, id=f"{name}-r")
    return [run.id, await run.result(timeout=DEADLINE_S)]


async def _versions(engine: Engine, name: str) -> Any:
    found = [row for row in await engine.definitions() if row["name"] == name]
    return [[(row["version"], row["status"]) for row in found], await _look(engine, name)]


NAME: dict[str, Door] = {
    "deploy 1 again": lambda e, n: _deploy(e, n, "1", "one"),
    "deploy 1 otherwise": lambda e, n: _deploy(e, n, "1", "other"),
    "deploy 2": lambda e, n: _deploy(e, n, "2", "two"),
    "deploy 2 otherwise": lambda e, n: _deploy(e, n, "2", "other"),
    "deploy 3": lambda e, n: _deploy(e, n, "3", "three"),
    "deploy 2 and start": _deploy_and_start,
    "start": lambda e, n: _start(e, n, n),
    "start version 1": lambda e, n: _start(e, n, f"{n}@1"),
    "start version 2": lambda e, n: _start(e, n, f"{n}@2"),
}
SUBJECTS["a name"] = Subject(lambda e, n: _deploy(e, n, "1", "one"), NAME, _versions)


TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "nothing": {
        "start": ("start", "start with other input", "start another", "signal K", "cancel", "delete", "fork"),
        "signal K": ("start",),
    },
    "a run that waits": {
        "start": ("cancel", "delete"),
        "signal": ("signal", "signal K", "cancel", "patch", "fork", "delete"),
        "signal K": ("signal K otherwise",),
        "signal at version 1": ("signal at version 1", "patch"),
        "signal by reference": ("signal", "cancel", "patch", "fork", "signal by reference"),
        "cancel": ("cancel", "fork", "delete"),
        "patch": ("patch otherwise", "cancel"),
        "delete": ("signal", "cancel", "fork"),
        "result": ("signal", "cancel"),
    },
    "a run that has ended": {
        "start": ("delete",),
        "delete": ("delete", "start another", "fork", "signal K", "result"),
        "fork": ("fork", "delete"),
        "result": ("delete",),
    },
    "a run that has failed": {"delete": ("retry", "start another"), "retry": ("fork", "delete")},
    "a run that is stalled": {
        "retry": ("retry", "skip", "give up", "cancel", "fork"),
        "delete": ("cancel", "retry"),
    },
    "a task": {
        "ann claims": ("bob claims", "cancel", "root completes"),
        "root completes": ("root completes", "cancel", "fork"),
    },
    "a task with a time": {
        "root completes": ("its time is up",),
        "ann claims": ("its time is up",),
    },
    "a task of ann": {
        "ann completes": ("ann releases", "ann gives it to bob", "root completes", "bob comments", "cancel"),
        "ann releases": ("ann completes", "bob claims"),
        "ann gives it to bob": ("ann completes", "bob completes"),
        "root completes version 1": ("ann completes", "ann releases"),
    },
    "a name": {
        "start": ("deploy 2", "deploy 2 and start", "start version 2"),
        "start version 2": ("deploy 2",),
        "deploy 2": ("deploy 2", "deploy 2 otherwise", "deploy 3", "deploy 2 and start"),
        "deploy 1 otherwise": ("start",),
    },
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("of", "first", "others"), meetings(SUBJECTS, TABLE), ids=str)
async def test_two_who_meet_are_told_what_one_after_the_other_would_be(
    house: House, of: str, first: str, others: tuple[str, ...]
) -> None:
    await meet(house, SUBJECTS[of], first, others)
