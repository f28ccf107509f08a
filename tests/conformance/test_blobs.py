"""Large payloads in the table, in files and in an S3 server, with the same promises."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from treadle import Engine
from treadle.kernel.errors import BlobCorrupt, BlobMissing, StoreUnavailable, Unsupported
from treadle.kernel.values import digest_bytes
from treadle.store.blobs import BlobFiles, blobs_at
from treadle.store.open import open_sqlite, open_store
from treadle.store.rows import Batch
from treadle.testing.rows import run_row

if TYPE_CHECKING:
    from treadle.store.blobs import BlobPlace


BODY = b"x" * 100_000
DIGEST = digest_bytes(BODY)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server of this module, with one bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{port}"
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="payloads")
    yield url
    server.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL": s3,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return "s3://payloads/treadle"


@pytest.fixture(params=["files", "objects"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobPlace:
    place = str(tmp_path) if request.param == "files" else request.getfixturevalue("bucket")
    found = blobs_at(place, None)
    assert found is not None
    return found


def test_what_was_written_is_read_whole_and_checked(blobs: BlobPlace) -> None:
    blobs.write(DIGEST, BODY)
    blobs.write(DIGEST, BODY)
    assert blobs.read(DIGEST, len(BODY)) == BODY
    blobs.check(DIGEST, len(BODY))
    assert DIGEST in list(blobs.digests())
    with pytest.raises(BlobCorrupt):
        blobs.read(DIGEST, len(BODY) - 1)
    with pytest.raises(BlobCorrupt):
        blobs.check(DIGEST, 1)
    blobs.remove(DIGEST)
    blobs.remove(DIGEST)
    for ask in (blobs.read, blobs.check):
        with pytest.raises(BlobMissing):
            ask(DIGEST, len(BODY))
    assert DIGEST not in list(blobs.digests())


def test_bytes_that_are_not_those_of_the_digest_are_an_error(blobs: BlobPlace) -> None:
    blobs.write(DIGEST, b"y" * len(BODY))
    with pytest.raises(BlobCorrupt):
        blobs.read(DIGEST, len(BODY))
    blobs.remove(DIGEST)


def test_a_place_that_is_away_or_wrong_says_so(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = blobs_at("s3://nobody-made-this/x", None)
    assert missing is not None
    with pytest.raises(StoreUnavailable):
        missing.write(DIGEST, BODY)
    with pytest.raises(Unsupported):
        blobs_at("s3://", None)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_an_engine_keeps_its_large_payloads_in_a_bucket(
    store: str, tmp_path: Path, pg_store: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_BLOBS", f"{bucket}/{store}")
    url = f"sqlite:///{tmp_path}/t.db" if store == "sqlite" else pg_store
    flow = 'metadata: {name: big, version: "1"}\nworkflow: [{step: a, tool: {kind: python, code: "result = \'x\' * 200000"}}]\n'
    (tmp_path / "big.yaml").write_text(flow)
    async with Engine(url) as engine:
        engine.deploy(str(tmp_path / "big.yaml"))
        run = await engine.start("big", id="b")
        await run.result(60)
        held = await engine.read(lambda reads: reads.payloads("", 10))
        (digest,) = [digest for digest, size in held if size > 100_000]
        assert (await engine.replay("b"))["equal"]
    there = blobs_at(f"{bucket}/{store}", None)
    assert there is not None
    assert digest in list(there.digests())
    monkeypatch.delenv("TREADLE_BLOBS")
    if store == "postgres":
        async with Engine(url, work=False) as engine:
            with pytest.raises(BlobMissing, match="TREADLE_BLOBS"):
                await engine.read(lambda reads: reads.blob(digest))


def test_the_folders_of_the_first_payload_are_as_durable_as_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is lost with the power takes all of its files with it."""
    synced: list[Path] = []
    monkeypatch.setattr(BlobFiles, "_sync", staticmethod(synced.append))
    found = BlobFiles(tmp_path / "t.db")
    found.write(DIGEST, BODY)
    folder = found.path(DIGEST).parent
    assert synced == [tmp_path, folder.parent, folder]
    found.write(DIGEST, BODY)
    assert synced[3:] == [folder], "whoever wrote it may have died before its name was durable"


def test_two_who_write_the_same_payload_at_once_do_not_meet(
    blobs: BlobPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where both have the same number, as the first process of every container has."""
    sync, left = os.fsync, [lambda: blobs.write(DIGEST, BODY)]

    def meanwhile(file: int) -> None:
        if left and stat.S_ISREG(os.fstat(file).st_mode):
            left.pop()()
        sync(file)

    monkeypatch.setattr(os, "fsync", meanwhile)
    blobs.write(DIGEST, BODY)
    assert blobs.read(DIGEST, len(BODY)) == BODY


def test_a_file_that_another_member_removes_while_a_commit_refers_to_it_is_written_again(
    pg_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody refers to may be what somebody is about to refer to."""
    monkeypatch.setenv("TREADLE_BLOBS", str(tmp_path))
    with closing(open_store(pg_store)) as member, closing(open_store(pg_store)) as other:
        member.own()
        check = member._check_epoch

        def late(tx: Any, shards: Iterable[int]) -> None:
            other.remove_files([DIGEST])
            check(tx, shards)

        monkeypatch.setattr(member, "_check_epoch", late)
        refers = Batch(runs_new={1: run_row(1)}, blobs={DIGEST: BODY}, blob_refs=[(1, DIGEST)])
        member.commit(refers)
        assert member.blob(DIGEST) == BODY


def test_what_a_killed_process_has_half_written_goes_with_the_next_collection(tmp_path: Path) -> None:
    with closing(open_sqlite(tmp_path / "t.db")) as store:
        store.own()
        place = BlobFiles(tmp_path / "t.db")
        place.write(DIGEST, BODY)
        half = place.path(DIGEST).with_suffix(".0011.tmp")
        half.write_bytes(BODY[:7])
        store.sweep()
        assert half.exists(), "it may be written just now"
        for file in (half, place.path(DIGEST)):
            os.utime(file, (1, 1))
        store.sweep()
        assert not half.exists()
        assert list(place.digests()) == []
