"""Callers that meet at what a house keeps besides runs: schedules, limits and who is in line, hooks, tokens, secrets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.backdoor import change
from tests.probes.racing import DEADLINE_S, Door, House, Subject, compiled, meet, meetings, opened

from treadle import Engine, TreadleError
from treadle.kernel.model import TERMINAL
from treadle.runtime import document
from treadle.runtime.desk import Desk

FLOWS = {"waits": "steps: [{await: {signal: go}}]", "ends": "steps: [{complete: 1}]"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with opened(tmp_path_factory.mktemp("races"), FLOWS) as found:
        yield found


async def _nothing(engine: Engine, name: str) -> None:
    """There is nothing of this name."""


async def _runs(engine: Engine, name: str) -> Any:
    return sorted([row["id"], row["status"]] for row in await engine.list(workflow=name))


# --- a schedule ---


async def _scheduled(engine: Engine, name: str) -> None:
    await engine.schedule_add(name, workflow="ends", every="1000h")


async def _trigger(engine: Engine, name: str) -> Any:
    run = await engine.run(await engine.schedule_trigger(name))
    return (await run.show())["workflow"]


async def _schedules(engine: Engine, name: str) -> Any:
    rows = [row for row in await engine.schedules() if row["name"] == name]
    runs = await engine.list(search=f"{name}@")
    return [[(row["every"], row["workflow"], row["paused"]) for row in rows], len(runs)]


SCHEDULE: dict[str, Door] = {
    "add": lambda e, n: e.schedule_add(n, workflow="ends", every="1000h"),
    "add otherwise": lambda e, n: e.schedule_add(n, workflow="waits", every="1000h"),
    "change": lambda e, n: e.schedule_change(n, every="2000h"),
    "change otherwise": lambda e, n: e.schedule_change(n, workflow="waits"),
    "pause": lambda e, n: e.schedule_pause(n),
    "resume": lambda e, n: e.schedule_resume(n),
    "remove": lambda e, n: e.schedule_remove(n),
    "trigger": _trigger,
    "look": lambda e, n: e.schedule(n),
}


# --- limits, and a line ---


async def _limited(engine: Engine, name: str) -> None:
    await engine.limit_set(name, concurrency=1)


LIMIT: dict[str, Door] = {
    "set 1": lambda e, n: e.limit_set(n, concurrency=1),
    "set 2": lambda e, n: e.limit_set(n, concurrency=2),
    "remove": lambda e, n: e.limit_remove(n),
    "look": lambda e, n: e.limit(n),
}


async def _line(engine: Engine, name: str) -> None:
    """One has the only place, and one waits for it."""
    flow = f"dialect: process\nname: {name}\nversion: '1'\nlimits: {{concurrency: 1}}\nsteps: [{{await: {{signal: go}}}}]\n"
    await asyncio.to_thread(engine.deploy, compiled(flow))
    for number in (1, 2):
        await engine.start(name, None, id=f"{name}-{number}")


async def _crowd(engine: Engine, name: str) -> Any:
    async with asyncio.timeout(DEADLINE_S):
        with engine.watch("") as watch:
            while True:
                limit, runs = await engine.limit(name), await _runs(engine, name)
                # Who was given a place begins with the next commit, and who ended gives its own back with the next.
                queued = sum(status == "queued" for _, status in runs)
                going = sum(status not in TERMINAL for _, status in runs) - queued
                if (limit["running"], limit["queued"]) == (going, queued):
                    if await _nothing_on_the_way(engine, runs):
                        return [runs, limit["limits"], limit["running"], limit["queued"]]
                    continue
                await watch.changed()


async def _nothing_on_the_way(engine: Engine, runs: Any) -> bool:
    """Who was told something in line hears it after it began, and before what is told it now."""
    there = [[run, status] for run, status in runs if status not in TERMINAL]
    try:
        return there == [[run, (await engine.signal(run, "look"))["status"]] for run, _ in there]
    except TreadleError:
        return False  # one has ended by now


async def _limits(engine: Engine, name: str, **limits: int) -> Any:
    """What was set; who is in line by then is another matter."""
    return (await engine.limit_set(name, **limits))["limits"]


async def _deleted(engine: Engine, run: str) -> Any:
    """Who has not ended is refused, in line or past it: the line moves on in its own time."""
    try:
        return await engine.delete(run)
    except TreadleError as error:
        return error.code


LINE: dict[str, Door] = {
    "the first ends": lambda e, n: e.signal(f"{n}-1", "go"),
    "the first is cancelled": lambda e, n: e.cancel(f"{n}-1"),
    "the second is told": lambda e, n: e.signal(f"{n}-2", "go"),
    "the second is cancelled": lambda e, n: e.cancel(f"{n}-2"),
    "the second is deleted": lambda e, n: _deleted(e, f"{n}-2"),
    "the second is forked": lambda e, n: e.fork(f"{n}-2", new_id=f"{n}-f"),
    "a third comes": lambda e, n: e.start(n, None, id=f"{n}-3"),
    "an urgent one comes": lambda e, n: e.start(n, None, id=f"{n}-3", priority=9),
    "two may go on": lambda e, n: _limits(e, n, concurrency=2),
    "nobody waits": lambda e, n: _limits(e, n, concurrency=1, queue=0),
}


# --- hooks, tokens, secrets ---


async def _hooked(engine: Engine, name: str) -> None:
    await engine.hook_set(name, {"secret": "s", "workflow": "ends"})


async def _hooks(engine: Engine, name: str) -> Any:
    return [row for row in await engine.hook_list() if row["name"] == name]


HOOK: dict[str, Door] = {
    "set": lambda e, n: e.hook_set(n, {"secret": "s", "workflow": "ends"}),
    "set otherwise": lambda e, n: e.hook_set(n, {"secret": "s", "workflow": "waits"}),
    "remove": lambda e, n: e.hook_remove(n),
}
TOKENS: dict[str, str] = {}


async def _token(engine: Engine, name: str) -> None:
    TOKENS[name] = (await engine.token_create(name, ["viewer"]))["id"]


async def _tokens(engine: Engine, name: str) -> Any:
    return [row["status"] for row in await engine.token_list() if row["user"] == name]


TOKEN: dict[str, Door] = {
    "revoke": lambda e, n: e.token_revoke(TOKENS[n]),
    "another": lambda e, n: _another(e, n),
    "look": _tokens,
}


async def _another(engine: Engine, name: str) -> str:
    return str((await engine.token_create(name, ["viewer"]))["user"])


async def _secret(engine: Engine, name: str) -> None:
    await engine.secret_set(name, "old")


async def _secrets(engine: Engine, name: str) -> Any:
    there = name in await engine.secret_list()
    return [there, await engine.secrets.resolve(name) if there else None]


SECRET: dict[str, Door] = {
    "set": lambda e, n: e.secret_set(n, "one"),
    "set otherwise": lambda e, n: e.secret_set(n, "two"),
    "remove": lambda e, n: e.secret_remove(n),
}
RETENTION: dict[str, Door] = {
    "set": lambda e, n: e.retention_set(n, "30d"),
    "set otherwise": lambda e, n: e.retention_set(n, "forever"),
    "remove": lambda e, n: e.retention_remove(n),
}


async def _retentions(engine: Engine, name: str) -> Any:
    return [row for row in await engine.retentions() if row["workflow"] == name]


# --- dead letters ---


async def _letter(engine: Engine, name: str) -> None:
    """A letter about work that is open."""
    run = await engine.start("waits", None, id=name)
    await run.settled(timeout=DEADLINE_S)

    def intent(desk: Desk) -> str:
        state, _ = document.state_at(desk.store, desk.registry, name)
        return next(iter(state.open))

    about = {"run": name, "intent": await change(engine, intent), "reason": "too large", "worker": "w"}
    await engine.operate("deadletter", {"op": "keep", "id": name, "row": about}, home=name)


async def _letters(engine: Engine, name: str) -> Any:
    row = await (await engine.run(name)).settled(timeout=DEADLINE_S)
    return [row["status"], [letter["id"] for letter in await engine.dead_letters() if letter["id"] == name]]


LETTER: dict[str, Door] = {
    "replay": lambda e, n: e.dead_letter_replay(n),
    "discard": lambda e, n: e.dead_letter_discard(n),
    "its run is told": lambda e, n: e.signal(n, "go"),
    "its run is cancelled": lambda e, n: e.cancel(n),
}


SUBJECTS = {
    "a dead letter": Subject(_letter, LETTER, _letters),
    "no schedule": Subject(_nothing, SCHEDULE, _schedules),
    "a schedule": Subject(_scheduled, SCHEDULE, _schedules),
    "no limit": Subject(_nothing, LIMIT, lambda e, n: e.limit(n)),
    "a limit": Subject(_limited, LIMIT, lambda e, n: e.limit(n)),
    "a line": Subject(_line, LINE, _crowd),
    "a hook": Subject(_hooked, HOOK, _hooks),
    "a token": Subject(_token, TOKEN, _tokens),
    "no secret": Subject(_nothing, SECRET, _secrets),
    "a secret": Subject(_secret, SECRET, _secrets),
    "a retention": Subject(_nothing, RETENTION, _retentions),
}
TABLE: dict[str, dict[str, tuple[str, ...]]] = {
    "no schedule": {"add": ("add", "add otherwise", "change", "trigger"), "trigger": ("add",)},
    "a schedule": {
        "trigger": ("trigger", "remove", "change otherwise", "pause"),
        "change": ("change otherwise", "remove", "pause"),
        "pause": ("resume", "trigger"),
    },
    "no limit": {"set 1": ("set 2", "remove")},
    "a limit": {"set 2": ("set 1", "remove"), "remove": ("remove", "look")},
    "a line": {
        "the first ends": ("the second is told", "the second is cancelled", "two may go on", "a third comes"),
        "the second is cancelled": (
            "the first is cancelled",
            "the second is deleted",
            "the second is forked",
        ),
        "the second is deleted": ("the first ends", "the second is cancelled"),
        "a third comes": ("an urgent one comes", "nobody waits", "two may go on"),
    },
    "a dead letter": {"replay": ("replay", "discard", "its run is told", "its run is cancelled")},
    "a hook": {"set otherwise": ("set", "remove"), "remove": ("remove",)},
    "a token": {"revoke": ("revoke", "another", "look")},
    "no secret": {"set": ("set otherwise", "remove")},
    "a secret": {"set": ("set otherwise", "remove"), "remove": ("remove",)},
    "a retention": {"set": ("set otherwise", "remove")},
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("of", "first", "others"), meetings(SUBJECTS, TABLE), ids=str)
async def test_two_who_meet_are_told_what_one_after_the_other_would_be(
    house: House, of: str, first: str, others: tuple[str, ...]
) -> None:
    await meet(house, SUBJECTS[of], first, others)
