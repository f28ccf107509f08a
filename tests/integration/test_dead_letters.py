"""Two who deal with the same dead letter: one does, and the other is told what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.backdoor import change

from treadle import Engine
from treadle.kernel.errors import InputInvalid
from treadle.kernel.model import shard_of
from treadle.runtime import dead_letters, document
from treadle.runtime.desk import Desk

WAITS = """
dialect: process
name: waits
version: "1"
steps:
  - await: go
"""
LETTERS = 24
GONE = "DEAD_LETTER_NOT_FOUND"
Deals = Callable[[Engine, str], Awaitable[dict[str, Any]]]
REPLAY: Deals = Engine.dead_letter_replay
DISCARD: Deals = Engine.dead_letter_discard


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "waits.yaml").write_text(WAITS)
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/t.db"
    found: str = request.getfixturevalue("pg_store")
    return found


async def left(engine: Engine, id: str) -> None:
    """A letter about work of a run that is open."""
    await (await engine.start("waits", None, id=id)).settled()

    def intent(desk: Desk) -> str:
        state, _ = document.state_at(desk.store, desk.registry, id)
        return next(iter(state.open))

    about = {"run": id, "intent": await change(engine, intent), "reason": "too large", "worker": "w"}
    await engine.operate("deadletter", {"op": "keep", "id": id, "row": about}, home=id)


async def told(call: Awaitable[dict[str, Any]]) -> str:
    try:
        done = await call
    except InputInvalid as refused:
        return f"{refused.code}: {refused.message}"
    return "replayed" if done.get("replayed") else "discarded"


@pytest.mark.parametrize(
    ("first", "second"), [(REPLAY, DISCARD), (DISCARD, REPLAY), (DISCARD, DISCARD), (REPLAY, REPLAY)]
)
async def test_of_two_who_deal_with_a_letter_one_is_told_what_the_other_did(
    url: str, tmp_path: Path, first: Deals, second: Deals
) -> None:
    async with Engine(url) as one, Engine(url) as two:
        await asyncio.to_thread(one.deploy, str(tmp_path / "waits.yaml"))
        async with asyncio.timeout(30):
            while two.shards["held"] == 0 and not url.startswith("sqlite"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        ids = [f"letter-{n}" for n in range(LETTERS)]
        assert len({shard_of(id, 64) for id in ids}) > 8, "in many places"
        for id in ids:
            await left(one, id)
        for id in ids:
            answers = await asyncio.gather(told(first(one, id)), told(second(two, id)))
            done = [answer for answer in answers if answer in ("replayed", "discarded")]
            assert len(done) == 1, answers
            (refused,) = [answer for answer in answers if answer not in done]
            assert refused == f"{GONE}: the dead letter {id!r} was {done[0]} already"
        assert await one.dead_letters() == []


async def test_what_became_of_a_letter_is_forgotten_in_the_end(url: str, tmp_path: Path) -> None:
    async with Engine(url) as engine:
        await asyncio.to_thread(engine.deploy, str(tmp_path / "waits.yaml"))
        for id in ("one", "two"):
            await left(engine, id)
        await engine.dead_letter_discard("one")
        await engine.gc()
        assert await told(engine.dead_letter("one")) == f"{GONE}: the dead letter 'one' was discarded already"
        await change(engine, lambda desk: _long_ago(desk, "one"))
        await engine.gc()
        assert await told(engine.dead_letter("one")) == f"{GONE}: there is no dead letter 'one'"
        assert [letter["id"] for letter in await engine.dead_letters()] == ["two"]


def _long_ago(desk: Desk, id: str) -> None:
    """As if it had been done when it is forgotten now."""
    desk.batch.documents.append(
        (dead_letters.DONE, id, desk.clock.now_ns() - dead_letters.KEPT_NS - 1, b"\xa9discarded")
    )
