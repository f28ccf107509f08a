"""Records on disk are compressed, and nothing that is promised of them changes."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Engine
from treadle.kernel.errors import TreadleError
from treadle.store import packing
from treadle.store.open import open_store
from treadle.store.packing import pack, unpack
from treadle.store.protocol import Batch
from treadle.testing import toy
from treadle.testing.toy import TOY

DICTIONARY_1 = "99dcf14e15f344e667152b05e75fe826cd6c768bf581b00c39e59c0c8a8732d0"


@given(st.binary(max_size=2_000))
def test_what_is_packed_is_the_same_when_it_is_read(body):
    # Plain records are mappings: none of them begins with the byte that marks a packed one.
    record = b"\xa1" + body
    assert unpack(pack(record)) == record
    assert len(pack(record)) <= len(record)


@given(st.binary(max_size=200))
def test_what_is_damaged_comes_back_as_it_is(noise):
    damaged = bytes((0x1F, 1)) + noise
    assert isinstance(unpack(damaged), bytes)


def test_a_dictionary_that_has_shipped_is_never_changed():
    folder = Path(packing.__file__).parent / "dictionaries"
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    assert found == {"1.zdict": DICTIONARY_1}


async def test_records_are_packed_on_disk_and_their_digests_are_over_what_they_say(tmp_path):
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    toy.install(engine)
    async with engine:
        run = await engine.start(TOY, {"do": [["timer", 2]], "keep": False})
        await engine.cancel(run.id)
        journal = await run.journal()
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        rows = db.execute("SELECT body, digest FROM journal ORDER BY seq").fetchall()
    assert len(rows) == len(journal) >= 2
    chain = bytes(32)
    for body, digest in rows:
        assert body[0] == 0x1F
        assert len(body) < len(unpack(body))
        chain = hashlib.sha256(chain + unpack(body)).digest()
        assert chain == digest


def test_a_store_holds_plain_and_packed_records_side_by_side(tmp_path, monkeypatch):
    """As 0.1.0 left it, and a Python without zstd."""
    body = b"\xa1" + b"a" * 500
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    store.own()
    with monkeypatch.context() as without:
        without.setattr(packing, "_packer", lambda: None)
        store.commit(Batch(records=[(1, 1, 1, None, None, bytes(32), body)]))
    store.commit(Batch(records=[(1, 2, 2, None, None, bytes(32), body)]))
    assert [stored.body for stored in store.journal(1)] == [body, body]
    store.close()
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        sizes = [size for (size,) in db.execute("SELECT length(body) FROM journal ORDER BY seq")]
    assert sizes[0] == len(body) > sizes[1]


def test_a_python_without_zstd_says_what_it_needs_to_read_a_packed_record(monkeypatch):
    packed = pack(b"\xa1" + b"a" * 500)
    monkeypatch.setattr(packing, "_zstd", lambda: None)
    with pytest.raises(TreadleError, match="are compressed"):
        unpack(packed)
