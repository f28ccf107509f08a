"""Odd names and numbers through every door of an engine, as its owner and as a guest beside it.

Whatever is handed in, a call is answered or refused with an error of ours, the same by whoever asks; nothing of the
machine is in what it says; nobody's odd name stops the engine for the others; and what was recorded decides the same
again.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.backdoor import change

from treadle import Engine
from treadle.kernel.errors import RunExists, TreadleError, ValueRefused
from treadle.kernel.model import Signal
from treadle.kernel.showing import shown
from treadle.runtime.commands import Deliver
from treadle.testing import assert_replays

DEADLINE_S = 60.0
# By the names they are deployed under: one that ends, one that waits, one that fails, one that asks.
FLOWS = {
    "ends": "metadata: {name: ends, version: '1'}\nworkflow: [{step: a, tool: {kind: noop}}]\n",
    "fails": "metadata: {name: fails, version: '1'}\nworkflow: [{step: a, tool: {kind: noop, result: '{{ 1 / 0 }}'}}]\n",
    "waits": "dialect: process\nname: waits\nsteps: [{await: {signal: go}}]\n",
    "asks": "dialect: process\nname: asks\ntasks: {t: {roles: [boss]}}\nsteps: [{task: t}]\n",
}


def _nested(levels: int, around: Callable[[Any], Any]) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = around(found)
    return found


NAMES: dict[str, Any] = {
    "half a character": "\ud800",
    "a name of the engine's own": "treadle:x",
    "too long": "x" * 100_000,
    "a character of no width": "a\0b",
    "a number": 7,
    "a list": ["a"],
    "a mapping": {},
    "bytes": b"x",
    "nothing": "",
    "a number that Python does not write out": 10**10_000,
    "a list without a bottom": _nested(100_000, lambda inner: [inner]),
    "a list that is far more than it looks": _nested(60, lambda inner: [inner, inner]),
}
NUMBERS: dict[str, Any] = {
    "above 64 bits": 2**64,
    "below 64 bits": -(2**63) - 1,
    "a fraction": 1.5,
    "not a number": math.nan,
    "a text": "3",
    "a list": [1],
    "a truth": True,
    "one that Python does not write out": 10**10_000,
    "one below that": -(10**10_000),
}
Door = Callable[[Engine, str, Any], Awaitable[Any]]


async def _journal(engine: Engine, mine: str, **how: Any) -> int:
    return len(await (await engine.run(f"{mine}ends")).journal(**how))


BY_NAME: dict[str, Door] = {
    "start id": lambda e, mine, v: e.start("ends", None, id=mine + v if isinstance(v, str) and v else v),
    "start key": lambda e, mine, v: e.start("ends", None, id=f"{mine}k", key=v),
    "start reference": lambda e, mine, v: e.start("ends", None, id=f"{mine}r", reference=v),
    "start workflow": lambda e, mine, v: e.start(v, None, id=f"{mine}w"),
    "signal run": lambda e, mine, v: e.signal(v, "other"),
    "signal name": lambda e, mine, v: e.signal(f"{mine}waits", v),
    "signal key": lambda e, mine, v: e.signal(f"{mine}waits", "other", key=v),
    "signal by": lambda e, mine, v: e.signal(f"{mine}waits", "other", by=v),
    "signal reference": lambda e, mine, v: e.signal_reference(v or "none", "go"),
    "cancel run": lambda e, mine, v: e.cancel(v),
    "cancel reason": lambda e, mine, v: e.cancel(f"{mine}ends", v),
    "cancel by": lambda e, mine, v: e.cancel(f"{mine}ends", by=v),
    "patch run": lambda e, mine, v: e.patch(v, {"a": 1}),
    "patch data": lambda e, mine, v: e.patch(f"{mine}ends", v),
    "retry from": lambda e, mine, v: e.retry(f"{mine}fails", from_=v),
    "retry by": lambda e, mine, v: e.retry(f"{mine}ends", by=v),
    "fork into": lambda e, mine, v: e.fork(
        f"{mine}ends", new_id=mine + v if isinstance(v, str) and v else v or f"{mine}f"
    ),
    "fork by": lambda e, mine, v: e.fork(f"{mine}ends", new_id=f"{mine}fb{len(shown(v))}", by=v),
    "delete": lambda e, mine, v: e.delete(v),
    "task": lambda e, mine, v: e.task_claim(v, user="u", roles=["boss"]),
    "task user": lambda e, mine, v: e.task_comment(TASKS[mine], text="x", user=v, roles=["admin"]),
    "task roles": lambda e, mine, v: e.task_claim(TASKS[mine], user="u", roles=v),
    "task to": lambda e, mine, v: e.task_assign(TASKS[mine], to=v, user="root", roles=["admin"]),
    "list workflow": lambda e, mine, v: e.list(workflow=v),
    "list search": lambda e, mine, v: e.list(search=v),
    "list status": lambda e, mine, v: e.list(status=v),
    "run": lambda e, mine, v: e.run(v),
    "schedule": lambda e, mine, v: e.schedule_add(
        mine + v if isinstance(v, str) and v else v, workflow="ends", every="1h"
    ),
    "schedule cron": lambda e, mine, v: e.schedule_add(f"{mine}s", workflow="ends", cron=v),
    "hook": lambda e, mine, v: e.hook_set(v, {"workflow": "ends"}),
    "token": lambda e, mine, v: e.token_revoke(v),
    "dead letter": lambda e, mine, v: e.dead_letter(v),
    "limit": lambda e, mine, v: e.limit_set(v, concurrency=1),
}
BY_NUMBER: dict[str, Door] = {
    "expected version": lambda e, mine, v: e.signal(f"{mine}waits", "other", expected_version=v),
    "priority": lambda e, mine, v: e.start("ends", None, id=f"{mine}p", priority=v),
    "fork at": lambda e, mine, v: e.fork(f"{mine}ends", at=v, new_id=f"{mine}at{shown(v)}"),
    "list limit": lambda e, mine, v: e.list(limit=v),
    "list since": lambda e, mine, v: e.list(since_ns=v),
    "state at": lambda e, mine, v: _state(e, mine, v),
    "journal after": lambda e, mine, v: _journal(e, mine, after=v),
    "journal limit": lambda e, mine, v: _journal(e, mine, limit=v),
    "audit limit": lambda e, mine, v: e.audit(limit=v),
    "limit": lambda e, mine, v: e.limit_set(f"{mine}ends", concurrency=v),
}
TASKS: dict[str, str] = {}


async def _state(engine: Engine, mine: str, at: Any) -> Any:
    return await (await engine.run(f"{mine}ends")).state(at=at)


class Two:
    """An owner and a guest of one store, each with runs of its own."""

    def __init__(self, owner: Engine, guest: Engine) -> None:
        self.owner, self.guest = owner, guest

    async def answers(self, door: Door, value: Any) -> list[tuple[str, str]]:
        return [
            await _answer(door, engine, mine, value)
            for engine, mine in ((self.owner, "o-"), (self.guest, "g-"))
        ]


async def _answer(door: Door, engine: Engine, mine: str, value: Any) -> tuple[str, str]:
    try:
        async with asyncio.timeout(DEADLINE_S):
            found = await door(engine, mine, value)
    except TreadleError as error:
        told = json.dumps(error.to_value()).replace(TASKS[mine], "TASK")
        return "refused", re.sub(r"\b[og]-", "", told)
    return "answered", "rows" if isinstance(found, list) else type(found).__name__


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Two]:
    folder = tmp_path_factory.mktemp("doors")
    owner, guest = (Engine(f"sqlite:///{folder / 't.db'}") for _ in range(2))
    for name, text in FLOWS.items():
        (folder / f"{name}.yaml").write_text(text)
        owner.deploy(folder / f"{name}.yaml")
    async with owner, guest:
        assert owner.owns
        assert not guest.owns
        for mine in ("o-", "g-"):
            for name in FLOWS:
                await (await owner.start(name, None, id=f"{mine}{name}")).settled(timeout=DEADLINE_S)
            TASKS[mine] = (await owner.tasks(run=f"{mine}asks"))[0]["id"]
        yield Two(owner, guest)
        await assert_replays(owner)
        assert (await owner.doctor(deep=True))["ok"]


async def _same_and_clean(two: Two, door: Door, values: dict[str, Any]) -> None:
    for what, value in values.items():
        by_owner, by_guest = await two.answers(door, value)
        assert by_owner == by_guest, what
        for mark in (" at 0x", "INTERNAL", "MACHINE_ERROR", "bug in Treadle"):
            assert mark not in by_owner[1], what


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("door", BY_NAME)
async def test_an_odd_name_is_answered_or_refused_alike_by_owner_and_guest(two: Two, door: str) -> None:
    await _same_and_clean(two, BY_NAME[door], NAMES)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("door", BY_NUMBER)
async def test_an_odd_number_is_answered_or_refused_alike_by_owner_and_guest(two: Two, door: str) -> None:
    await _same_and_clean(two, BY_NUMBER[door], NUMBERS)


@pytest.mark.asyncio(loop_scope="module")
async def test_who_does_not_wait_for_a_result_that_is_there_gets_it(two: Two) -> None:
    run = await two.owner.run("o-ends")
    assert await run.result(timeout=0) == await run.result(timeout=DEADLINE_S)
    with pytest.raises(TimeoutError, match="waits"):
        await (await two.owner.run("o-waits")).result(timeout=0)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_id_of_a_fork_is_taken_for_a_start(two: Two) -> None:
    for engine, mine in ((two.owner, "o-"), (two.guest, "g-")):
        await engine.fork(f"{mine}ends", new_id=f"{mine}forked")
        with pytest.raises(RunExists, match=f"a fork of {mine}ends"):
            await engine.start("ends", None, id=f"{mine}forked")


async def test_a_name_that_no_store_can_hold_is_refused_and_the_engine_goes_on(tmp_path: Path) -> None:
    """Doors refuse it; what comes past them is refused by the core, and who it was is told as far as it can be."""
    flow = tmp_path / "waits.yaml"
    flow.write_text(FLOWS["waits"])
    async with Engine(f"sqlite:///{tmp_path / 't.db'}") as engine:
        run = await engine.start(flow, None, id="r")
        for event in (Signal(name="go", by="ann\ud800\0"), Signal(name="\ud800", by="bob")):
            with pytest.raises(ValueRefused):
                await engine.ask(lambda ack, event=event: Deliver("r", event, ack=ack))
        told = [(row["user"], row["status"]) for row in await engine.audit(action="run.signal")]
        assert told == [("bob", "refused"), ("ann?\ufffd", "refused")]
        await engine.signal("r", "go")
        await run.result(timeout=DEADLINE_S)
        await assert_replays(engine)


async def test_a_row_that_no_store_can_hold_costs_its_own_command_only(tmp_path: Path) -> None:
    """Whatever a change puts into the commit at hand, the refusal of it is a commit of its own."""
    flow = tmp_path / "ends.yaml"
    flow.write_text(FLOWS["ends"])
    async with Engine(f"sqlite:///{tmp_path / 't.db'}") as engine:
        for row in (("\ud800", 1, "code", b""), ("run", 2**70, "code", b"")):
            with pytest.raises(ValueRefused):
                await change(engine, lambda desk, row=row: desk.batch.diagnostics.append(row))
        await (await engine.start(flow, None)).result(timeout=DEADLINE_S)
        await assert_replays(engine)
