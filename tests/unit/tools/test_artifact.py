from __future__ import annotations

import gzip

import pytest

from treadle.kernel.errors import BlobMissing
from treadle.kernel.model import is_reference, make_reference
from treadle.kernel.values import digest, encode


@pytest.mark.parametrize(
    ("name", "data", "stored"),
    [
        ("a.json", {"x": [1, None]}, b'{"x":[1,null]}'),
        ("a.txt", "plain", b"plain"),
        ("a.bin", b"\xff\x00", b"\xff\x00"),
        ("a.jsonl", [{"n": 1}, {"n": 2}], b'{"n":1}\n{"n":2}\n'),
    ],
)
async def test_put_and_get_a_file(run, tmp_path, name, data, stored):
    put = await run("artifact", {"action": "put", "uri": f"out/{name}", "data": data}, base=str(tmp_path))
    assert put.error is None
    assert (tmp_path / "out" / name).read_bytes() == stored
    assert not is_reference(put.result), "it is in a file, not in the engine's store"
    assert {"store", "key", "checksum", "size", "schema_hint"} <= put.result.keys()
    assert {"store", "key", "checksum", "size", "schema_hint"} <= set(put.result)
    assert put.result["size"] == len(stored)
    by_reference = await run("artifact", {"action": "get", "result_ref": put.result})
    assert by_reference.result["data"] == data
    by_address = await run("artifact", {"action": "get", "uri": f"file://{tmp_path}/out/{name}"})
    assert by_address.result["data"] == data
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name], "nothing else is left there"


async def test_its_fields_may_stand_among_the_arguments(run, tmp_path):
    put = await run("artifact", {"input": {"action": "put", "uri": f"{tmp_path}/a.json", "data": {"a": 1}}})
    assert put.error is None
    got = await run("artifact", {"args": {"result_ref": put.result}, "action": "get"})
    assert got.result["data"] == {"a": 1}


async def test_compressed(run, tmp_path):
    put = await run(
        "artifact", {"action": "put", "uri": f"{tmp_path}/a.json.gz", "data": {"a": 1}, "compress": True}
    )
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == b'{"a":1}'
    assert (await run("artifact", {"action": "get", "result_ref": put.result})).result["data"] == {"a": 1}


async def test_a_changed_file_is_noticed(run, tmp_path):
    put = await run("artifact", {"action": "put", "uri": f"{tmp_path}/a.txt", "data": "before"})
    (tmp_path / "a.txt").write_text("after!")
    outcome = await run("artifact", {"action": "get", "result_ref": put.result})
    assert (outcome.error["kind"], outcome.error["code"]) == ("storage_access", "CHECKSUM_MISMATCH")


async def test_what_is_not_there(run, tmp_path):
    outcome = await run("artifact", {"action": "get", "uri": f"{tmp_path}/none"})
    assert (outcome.error["kind"], outcome.error["code"]) == ("not_found", "REFERENCE_NOT_AVAILABLE")
    (tmp_path / "file").write_text("")
    blocked = await run("artifact", {"action": "put", "uri": f"{tmp_path}/file/x", "data": "y"})
    assert blocked.error["kind"] == "storage_access"
    for config in ({}, {"action": "put"}, {"action": "dance"}, {"uri": "s3://b/k"}):
        assert (await run("artifact", config)).error["kind"] == "schema"
    bad = await run("artifact", {"action": "get", "uri": str(tmp_path / "file"), "format": "json"})
    assert bad.error["kind"] == "schema"


async def test_the_engines_own_store(run):
    blobs: dict[str, object] = {}

    async def store_blob(value, *, schema_hint=None):
        reference = make_reference(checksum=digest(value), size=len(encode(value)), schema_hint=schema_hint)
        blobs[reference["key"]] = value
        return reference

    async def load_blob(reference):
        if reference.get("ref") == "treadle://execution/e1/step/s":
            return "by address"
        if reference["key"] not in blobs:
            raise BlobMissing
        return blobs[reference["key"]]

    call = {"store_blob": store_blob, "load_blob": load_blob}
    put = await run("artifact", {"action": "put", "data": {"big": (1, 2)}, "schema_hint": "t"}, **call)
    assert put.result["schema_hint"] == "t"
    for kind in ("artifact", "result", "resolve"):
        got = await run(kind, {"action": "get", "result_ref": put.result}, **call)
        assert got.result["data"] == {"big": [1, 2]}
    by_address = await run("artifact", {"action": "get", "uri": put.result["ref"]}, **call)
    assert by_address.result["data"] == {"big": [1, 2]}
    for scheme in ("treadle", "noetl"):
        got = await run("artifact", {"action": "get", "uri": f"{scheme}://execution/e1/step/s"}, **call)
        assert (got.result["data"], got.result["ref"]) == ("by address", "treadle://execution/e1/step/s")
    gone = await run(
        "artifact", {"action": "get", "result_ref": make_reference(checksum="sha256:0", size=1)}, **call
    )
    assert gone.error["code"] == "REFERENCE_NOT_AVAILABLE"


@pytest.mark.parametrize("payload", [{"a": 1}, [1, 2], 5])
async def test_a_template_that_resolved_the_reference_already_is_fine(run, payload):
    assert (await run("artifact", {"action": "get", "result_ref": payload})).result["data"] == payload


async def test_without_a_store_the_outcome_says_so(run):
    assert (await run("artifact", {"action": "put", "data": 1})).error["code"] == "REFERENCE_NOT_AVAILABLE"
    assert (await run("artifact", {"uri": "treadle://x"})).error["code"] == "REFERENCE_NOT_AVAILABLE"


async def test_json_that_is_nested_without_end_is_not_json(run, tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    outcome = await run("artifact", {"action": "get", "path": str(tmp_path / "deep.json")})
    assert outcome.error["code"] == "BAD_CONFIG"
    assert "it is nested too deeply" in outcome.error["message"]


@pytest.mark.parametrize("part", [20, 10], ids=["cut", "damaged"])
async def test_a_compressed_file_that_is_cut_or_damaged_is_told_as_such(run, tmp_path, part):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x" * 100)[:part] + b"\xff" * (20 - part))
    got = await run("artifact", {"action": "get", "uri": f"{tmp_path}/a.txt.gz"})
    assert (got.error["kind"], got.error["code"]) == ("schema", "BAD_CONFIG")
    assert "a.txt.gz is not gzip" in got.error["message"]


@pytest.mark.parametrize("wrong", ["file://[", "~nobody-of-this-name/a.json"])
async def test_what_is_no_path_is_told_as_such(run, wrong):
    got = await run("artifact", {"action": "get", "uri": wrong})
    assert (got.error["kind"], got.error["code"]) == ("schema", "BAD_CONFIG")
