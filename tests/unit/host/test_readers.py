"""Who reads beside the core: what one question meets is not held against the next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from treadle.host.readers import SHORT_THREADS, Readers
from treadle.kernel.errors import ConnectionLost, StoreUnavailable
from treadle.store.open import Place
from treadle.store.protocol import Reads

TIMEOUT_S = 60


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place.of(f"sqlite:///{tmp_path / 't.db'}")
    found.open().close()
    return found


@pytest.fixture
def readers(place: Place) -> Iterator[Readers]:
    found = Readers(place, onlooker=False)
    yield found
    found.close()


def _refused(reads: Reads) -> None:
    raise StoreUnavailable("this question is too complex")


def _away(reads: Reads) -> None:
    raise ConnectionLost("the store does not answer")


def test_what_a_store_refuses_to_one_reader_is_not_told_to_the_next(readers: Readers) -> None:
    with pytest.raises(StoreUnavailable, match="too complex"):
        readers.submit(_refused).result(TIMEOUT_S)
    assert readers.submit(lambda reads: reads.runs()).result(TIMEOUT_S) == []


def test_a_store_that_did_not_answer_is_not_asked_again_at_once(
    place: Place,
) -> None:
    with closing(Readers(place, onlooker=False, away_s=600.0)) as readers:
        with pytest.raises(ConnectionLost):
            readers.submit(_away).result(TIMEOUT_S)
        with pytest.raises(ConnectionLost):
            readers.submit(lambda reads: reads.runs()).result(TIMEOUT_S)


async def test_everybody_who_asks_at_once_gets_their_own_answer(readers: Readers) -> None:
    asked = [readers.ask(lambda reads, number=number: (number, len(reads.runs()))) for number in range(500)]  # type: ignore[misc]  # mypy cannot type a lambda with a default
    refused = [readers.ask(_refused) for _ in range(5)]
    async with asyncio.timeout(TIMEOUT_S):
        assert await asyncio.gather(*asked) == [(number, 0) for number in range(500)]
        for answer in refused:
            with pytest.raises(StoreUnavailable, match="too complex"):
                await answer
        assert await readers.ask(lambda reads: reads.runs()) == []


async def test_a_question_whose_asker_has_left_is_not_asked_and_holds_nobody_up(readers: Readers) -> None:
    go_on = threading.Event()
    busy = [readers.ask(lambda reads: go_on.wait(TIMEOUT_S)) for _ in range(SHORT_THREADS)]
    seen: list[str] = []
    left = readers.ask(lambda reads: seen.append("left"))
    stays = readers.ask(lambda reads: seen.append("stays"))
    left.cancel()
    go_on.set()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*busy, stays)
    assert seen == ["stays"]
