"""Callers in processes of their own, at one store: the owner of a file and its guest, two members on PostgreSQL.

Here nobody is let in by steps: two processes are told to ask in the same instant, again and again, and what they were told and
what is there then is what one after the other would have given. `make races` asks more often, and on PostgreSQL too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from tests import nursery
from tests.probes import test_races, test_races_house
from tests.probes.racing import ALL, House, Subject, one_after_the_other, plain, text

from treadle import Engine
from treadle.testing import assert_replays

ROOT = Path(__file__).resolve().parents[2]
TIMES = 20 if ALL else 1
# Of what, and who meet.
PAIRS: list[tuple[str, str, str, str]] = [
    ("races", "nothing", "start", "start"),
    ("races", "nothing", "start", "start another"),
    ("races", "a run that waits", "signal", "cancel"),
    ("races", "a run that waits", "signal K", "signal K otherwise"),
    ("races", "a run that waits", "cancel", "cancel"),
    ("races", "a run that is stalled", "retry", "cancel"),
    ("races", "a run that has ended", "delete", "result"),
    ("races", "a run that has ended", "delete", "signal K"),
    ("races", "a task", "root completes", "root completes"),
    ("races", "a name", "deploy 2", "start"),
    ("races_house", "a schedule", "pause", "resume"),
]
MODULES = {"races": test_races, "races_house": test_races_house}


class Caller:
    """A process that asks."""

    def __init__(self, store: str) -> None:
        words = ["-m", "tests.probes.racer", store]
        self.process = nursery.Process(words, stdin=nursery.PIPE, stdout=nursery.PIPE, cwd=ROOT)
        assert self._answer() == "ready\n", "the caller did not start"

    def ask(self, module: str, of: str, door: str, name: str) -> None:
        asked = {
            "module": f"tests.probes.test_{module}",
            "of": of,
            "door": door,
            "name": name,
            "task": test_races.TASKS.get(name, ""),
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def told(self) -> str:
        answer: str = json.loads(self._answer())
        return answer

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def callers(store: str) -> Iterator[list[Caller]]:
    found: list[Caller] = []
    try:
        found += [Caller(store) for _ in range(2)]
        yield found
    finally:
        for caller in found:
            caller.process.kill()
            caller.process.communicate(timeout=60)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["sqlite", *(["postgres"] if ALL else [])]
)
async def meeting(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[House, list[Caller]]]:
    """Who makes what they meet at, and looks; and the two."""
    folder = tmp_path_factory.mktemp("races")
    store = f"sqlite:///{folder / 't.db'}"
    if request.param == "postgres":
        database = request.getfixturevalue("pg_uri")
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA races")
        store = f"{database}&options=-csearch_path%3Draces"
    with callers(store) as found:
        async with Engine(store) as engine:
            for name, flow in {**test_races.FLOWS, **test_races_house.FLOWS}.items():
                (folder / f"{name}.yaml").write_text(
                    f"dialect: process\nname: {name}\nversion: '1'\n{flow}\n"
                )
                engine.deploy(folder / f"{name}.yaml")
            yield House(engine, engine), found
            await assert_replays(engine)
            health = await engine.doctor(deep=True)
            assert health["ok"], health


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("module", "of", "first", "second"), PAIRS, ids=str)
async def test_two_processes_that_meet_are_told_what_one_after_the_other_would_be(
    meeting: tuple[House, list[Caller]], module: str, of: str, first: str, second: str
) -> None:
    house, (one, other) = meeting
    subject: Subject = MODULES[module].SUBJECTS[of]
    after = await one_after_the_other(house, subject, first, second)
    before = await one_after_the_other(house, subject, second, first)
    allowed: list[Any] = [after, (before[1], before[0], before[2])]
    for turn in range(2 * TIMES):
        name = house.fresh()
        await subject.make(house.owner, name)
        asks, comes = (one, other) if turn % 2 else (other, one)
        asks.ask(module, of, first, name)
        comes.ask(module, of, second, name)
        told = asks.told(), comes.told()
        looked = text(await subject.look(house.owner, name))
        found = (*(plain(name, one) for one in told), plain(name, looked))
        assert found in allowed, f"no order of {first} and {second} gives this"
