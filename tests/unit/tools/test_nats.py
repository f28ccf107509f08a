from __future__ import annotations

import asyncio
import secrets
import socket

import nats
import pytest


@pytest.fixture
def op(run, nats_url):
    """Runs one operation as ann, in a bucket of this test's own."""
    bucket = f"b{secrets.token_hex(6)}"

    async def op(operation, *, call=None, **config):
        base = {"url": nats_url, "user": "ann", "password": "secret-of-ann", "bucket": bucket}
        return await run("nats", {**base, "operation": operation, **config}, **(call or {}))

    return op


async def test_key_value_buckets(op):
    missing = await op("kv_get", key="a")
    assert (missing.error["kind"], missing.error["retryable"]) == ("not_found", False)
    put = await op("kv_put", key="a", value={"n": [1]}, create=True)
    assert put.error is None
    assert put.result["revision"] == 1
    assert (await op("kv_get", key="a")).result["value"] == {"n": [1]}
    assert (await op("kv_keys")).result["keys"] == ["a"]
    await op("kv_put", key="b", value="007")
    assert (await op("kv_get", key="b")).result["value"] == "007", "text stays text"
    assert (await op("kv_get", key="b", format="json")).error["kind"] == "schema"
    await op("kv_put", key="c", value=b"\xff\x00")
    assert (await op("kv_get", key="c")).result["value"] == b"\xff\x00"
    assert (await op("kv_delete", key="a")).result["deleted"] is True
    assert (await op("kv_get", key="a")).error["kind"] == "not_found"
    assert (await op("kv_purge", key="b")).result["purged"] is True
    assert (await op("kv_keys")).result["keys"] == ["c"]


async def test_a_put_may_demand_the_revision_it_has_seen(op):
    await op("kv_put", key="a", value="1", create=True)
    assert (await op("kv_put", key="a", value="2", revision=1)).result["revision"] == 2
    late = await op("kv_put", key="a", value="3", revision=1)
    assert (late.error["kind"], late.error["retryable"]) == ("client_error", False)


async def test_object_buckets(op):
    assert (await op("object_get", key="x")).error["kind"] == "not_found"
    put = await op("object_put", key="x", value="y" * 300_000, create=True)
    assert put.result["size"] == 300_000
    assert put.result["digest"].startswith("SHA-256=")
    assert (await op("object_get", key="x")).result["value"] == "y" * 300_000
    assert (await op("object_info", key="x")).result == put.result
    assert [entry["name"] for entry in (await op("object_list")).result["objects"]] == ["x"]
    assert (await op("object_delete", key="x")).result["deleted"] is True
    assert (await op("object_list")).result["objects"] == []


async def test_a_repeated_publish_is_dropped_by_its_key(op):
    stream = f"s{secrets.token_hex(6)}"
    message = {"stream": stream, "subject": f"{stream}.in", "data": {"n": 1}, "create": True}
    first = await op("js_publish", **message, call={"idempotency_key": "k1"})
    again = await op("js_publish", **message, call={"idempotency_key": "k1", "attempt": 2})
    assert (first.result["seq"], first.result["duplicate"]) == (1, False)
    assert (again.result["seq"], again.result["duplicate"]) == (1, True)
    info = (await op("js_stream_info", stream=stream)).result
    assert (info["messages"], info["subjects"]) == (1, [f"{stream}.in"])
    found = (await op("js_get_msg", stream=stream, seq=1)).result
    assert (found["data"], found["headers"]["Nats-Msg-Id"]) == ({"n": 1}, "k1")
    assert (await op("js_get_msg", stream=stream, subject=f"{stream}.in")).result["seq"] == 1
    assert (await op("js_get_msg", stream=stream, seq=9)).error["kind"] == "not_found"
    assert (await op("js_publish", subject="nobody.listens", data="x")).error["kind"] == "not_found"


async def test_publish_and_request(op, nats_url):
    client = await nats.connect(nats_url, user="ann", password="secret-of-ann")
    subject = f"ask.{secrets.token_hex(4)}"
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(message):
        await heard.put(message.data)
        if message.reply:
            await message.respond(b'{"said": "' + message.data + b'"}')

    await client.subscribe(subject, cb=answer)
    await client.flush()
    assert (await op("publish", subject=subject, data="hi")).result["bytes"] == 2
    assert await asyncio.wait_for(heard.get(), 5) == b"hi"
    assert (await op("request", subject=subject, data="you")).result["data"] == {"said": "you"}
    assert (await op("request", subject="nobody", data="x")).error["kind"] == "not_found"
    await client.close()


async def test_credentials_come_from_the_keychain(run, nats_url):
    async def secret(name):
        return {
            "good": {"nats_url": nats_url, "nats_user": "ann", "nats_password": "secret-of-ann"},
            "bad": "a-token",
        }[name]

    task = {"operation": "publish", "subject": "x", "data": "y"}
    assert (await run("nats", {**task, "auth": "good"}, secret=secret)).error is None
    outcome = await run("nats", {**task, "auth": "bad", "url": nats_url}, secret=secret)
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("auth", False)


async def test_what_can_go_wrong(op, run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        outcome = await run(
            "nats",
            {"operation": "kv_keys", "bucket": "b", "url": f"nats://127.0.0.1:{taken.getsockname()[1]}"},
        )
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("connection", True)
    assert (await op("dance")).error["kind"] == "schema"
    assert (await op("kv_get")).error["kind"] == "schema"
    await op("kv_put", key="a", value="1", create=True)
    assert (await op("kv_put", key="bad key", value="1")).error["kind"] == "schema"
    assert (await op("publish", subject="x", data="z" * 2_000_000)).error["kind"] == "storage_quota"


def test_only_bare_messages_are_not_idempotent(registry):
    assert registry.is_idempotent("nats", {"operation": "kv_put"}) is True
    assert registry.is_idempotent("nats", {"operation": "publish"}) is False


@pytest.mark.parametrize(
    "url", ["nats://u:hunter2-Zq9/pass@127.0.0.1:9", ["nats://a:x9y8z7w6/@h:1"], "nats://"]
)
async def test_an_address_that_is_none_is_told_without_quoting_it(run, url):
    outcome = await run("nats", {"url": url, "operation": "kv_get", "bucket": "b", "key": "k"})
    assert outcome.error["kind"] == "schema"
    assert "is not an address" in outcome.error["message"]
    assert "hunter2" not in str(outcome)
    assert "x9y8z7w6" not in str(outcome)
