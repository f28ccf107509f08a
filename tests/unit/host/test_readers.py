"""Who reads beside the core: what one question meets is not held against the next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.host.readers import Readers
from treadle.kernel.errors import ConnectionLost, StoreUnavailable
from treadle.store.open import Place
from treadle.store.protocol import Reads

TIMEOUT_S = 60


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[Readers]:
    place = Place.of(f"sqlite:///{tmp_path / 't.db'}")
    place.open().close()
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
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.host.readers.AWAY_S", 600.0)
    with pytest.raises(ConnectionLost):
        readers.submit(_away).result(TIMEOUT_S)
    with pytest.raises(ConnectionLost):
        readers.submit(lambda reads: reads.runs()).result(TIMEOUT_S)
