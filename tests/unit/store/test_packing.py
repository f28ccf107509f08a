"""Records on disk are compressed, and nothing that is promised of them changes."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Engine
from treadle.dialects import INSTALLED
from treadle.kernel.errors import TreadleError
from treadle.store import packing
from treadle.store.open import open_store
from treadle.store.packing import bared, pack, unpack
from treadle.store.rows import Batch
from treadle.store.sql import LONE_BYTES_MIN, PLAIN_RECORDS
from treadle.testing import toy
from treadle.testing.toy import TOY

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SHIPPED = {
    "1.zdict": "99dcf14e15f344e667152b05e75fe826cd6c768bf581b00c39e59c0c8a8732d0",
    "2-process.zdict": "c29891802d5bf3442c35e0009dd2caec2ef503aa1a90c84149b348bcb3688add",
    "3-playbook.zdict": "8ac6e71db7154b387d6243ebd39edb85f10b895eaaef6567e7ff5ae4db55897b",
    "4-function.zdict": "30e620531951c6ecbe4fad2726f1d2124f029062953bb1651df95ea2450d45a6",
    "5-agent.zdict": "5b9de90efe37c58cab053a772259508b8e4af3c0e288a5ad95d7fa7bbdafc23f",
    "6-reactive.zdict": "2dea0118e426e2ae8ce3df5f76161feb0b2aab113b915471e2ed8d55811b1c3a",
}


IDS = st.lists(st.binary(min_size=16, max_size=16), max_size=4)
# Pieces of records, and of what stands for an id in a packed one.
PIECES = st.one_of(
    st.binary(max_size=40), st.sampled_from([b"\xfd", b"\xfd\x00", b"\xfd\x01", b"x ", b"\x00"])
)


@given(st.lists(PIECES, max_size=20), IDS, IDS, st.sampled_from(["", "process", "nobody's"]), st.randoms())
def test_ids_that_stand_in_the_row_are_left_out_and_put_in_again(pieces, opened, closed, dialect, random):
    spelled = [b"x " + id.hex().encode() for id in (*opened, *closed)]
    parts = [*pieces, *spelled, *spelled]
    random.shuffle(parts)
    record = b"\xa1" + b"".join(parts)
    opens, closes = b"".join(opened) or None, b"".join(closed) or None
    for stored in (pack(record, dialect, opens, closes), bared(record, opens, closes)):
        assert unpack(stored, opens, closes) == record
        assert len(stored) <= len(record)


@given(st.binary(max_size=2_000))
def test_what_is_packed_is_the_same_when_it_is_read(body):
    # Plain records are mappings: none of them begins with the byte that marks a packed one.
    record = b"\xa1" + body
    assert unpack(pack(record), None, None) == record
    assert len(pack(record)) <= len(record)


@given(st.binary(max_size=200))
def test_what_is_damaged_comes_back_as_it_is(noise):
    for form in (0x1D, 0x1E, 0x1F):
        for dictionary in (1, 2, 250):
            assert isinstance(unpack(bytes((form, dictionary)) + noise, None, None), bytes)


def test_a_record_of_an_earlier_version_of_the_packing_is_read():
    """The whole frame, with the first dictionary: as it was written before ids were left out."""
    stored = bytes.fromhex("1f01") + packing._packer("").codec.compress(
        b"\xa1" + b"a" * 500, packing._packer("").codec.FLUSH_FRAME
    )
    assert unpack(stored, b"i" * 16, b"j" * 16) == b"\xa1" + b"a" * 500


def test_a_dictionary_that_has_shipped_is_never_changed():
    folder = Path(packing.__file__).parent / "dictionaries"
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    assert found == SHIPPED


def test_each_dialect_has_a_dictionary_and_a_record_names_its_own():
    record = b"\xa1" + b"a" * 500
    for dialect in INSTALLED:
        packed = pack(record, dialect)
        assert SHIPPED.keys() & {f"{packed[1]}-{dialect}.zdict"}, dialect
        assert unpack(packed, None, None) == record
    assert pack(record, "of a plug-in")[1] == 1


@pytest.mark.parametrize("subject", ["on_treadle_process", "on_treadle_playbook", "on_treadle_functions"])
async def test_a_step_takes_less_than_200_bytes_on_disk(subject, tmp_path, monkeypatch):
    """Ten steps a run, all that a store has for them: rows, indexes, pages (W6)."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    driver, sizes = import_module("peers.driver"), import_module("workloads").Sizes(disk_runs=60, at_once=20)
    found = await driver.w6(import_module(f"peers.{subject}").Peer(), sizes, tmp_path)
    assert found["bytes_per_step"] < 200


async def test_records_are_packed_on_disk_and_their_digests_are_over_what_they_say(tmp_path):
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    toy.install(engine)
    async with engine:
        run = await engine.start(TOY, {"do": [["work", 5], [f"work:{'x' * 100}", 20]], "keep": False})
        await run.result(60)
        journal = await run.journal()
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        rows = db.execute("SELECT body, opens, closes, digest FROM journal ORDER BY seq").fetchall()
    assert len(rows) == len(journal)
    chain, others = bytes(32), 0
    for number, (body, opens, closes, digest) in enumerate(rows):
        record = unpack(body, opens, closes)
        if number in range(1, 5):
            assert len(record) < LONE_BYTES_MIN
            assert body[0] == 0x1D, "short, and alone in its commit"
            assert len(body) < len(record) - 60
        elif (others := others + 1) <= PLAIN_RECORDS:
            assert body == record, "the first ones are written before the codec is loaded"
        else:
            assert body[0] == 0x1E
            assert len(body) < len(record)
        chain = hashlib.sha256(chain + record).digest()
        assert chain == digest
    assert others > 2 * PLAIN_RECORDS


def test_a_short_record_without_ids_is_compressed_also_where_it_is_alone(tmp_path):
    """As of a cell's events: nothing else makes it smaller."""
    body = b"\xa1" + b"a" * (LONE_BYTES_MIN - 100)
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    store.own()
    for seq in range(PLAIN_RECORDS + 2):
        store.commit(Batch(records=[(1, seq, seq, None, None, bytes(32), body)]))
    store.close()
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        last = db.execute("SELECT body FROM journal ORDER BY seq DESC").fetchone()[0]
    assert last[0] == 0x1E
    assert len(last) < len(body)


def test_a_store_holds_plain_and_packed_records_side_by_side(tmp_path, monkeypatch):
    """As 0.1.0 left it, and a Python without zstd."""
    body, many = b"\xa1" + b"a" * 500, PLAIN_RECORDS + 1
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    store.own()
    with monkeypatch.context() as without:
        without.setattr(packing, "_packer", lambda dialect: None)
        store.commit(Batch(records=[(1, seq, seq, None, None, bytes(32), body) for seq in range(many)]))
    store.commit(Batch(records=[(2, seq, seq, None, None, bytes(32), body) for seq in range(many)]))
    assert [stored.body for run in (1, 2) for stored in store.journal(run, after_seq=-1)] == [body] * 2 * many
    store.close()
    with closing(sqlite3.connect(tmp_path / "t.db")) as db:
        sizes = [size for (size,) in db.execute("SELECT length(body) FROM journal ORDER BY run, seq")]
    assert set(sizes[:many]) == {len(body)}
    assert max(sizes[many:]) < len(body)


def test_a_python_without_zstd_says_what_it_needs_to_read_a_packed_record(monkeypatch):
    packed = pack(b"\xa1" + b"a" * 500)
    monkeypatch.setattr(packing, "_zstd", lambda: None)
    with pytest.raises(TreadleError, match="are compressed"):
        unpack(packed, None, None)
