"""`nats`: messages, key-value buckets, object buckets and streams of a NATS server.

A connection is kept per server and credential. `js_publish` sends the call's idempotency key as
`Nats-Msg-Id`, so that the server drops a repeat within the stream's duplicate window.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.object_store import ObjectStore

from treadle.bus.nats_client import NotAnAddress, connected

from .base import BadConfig, ToolBase, credential, mapping, need, pick, seconds
from .portable import portable, unreadable
from .protocol import Outcome, ToolCall

_URL: Final = "nats://127.0.0.1:4222"
_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "servers": ("servers", "nats_url", "url", "server"),
    "user": ("nats_user", "user", "username"),
    "password": ("nats_password", "password"),
    "token": ("nats_token", "token"),
}
_KINDS: Final[tuple[tuple[type[Exception], str, bool], ...]] = (
    (nats.js.errors.NotFoundError, "not_found", False),
    (nats.js.errors.KeyWrongLastSequenceError, "client_error", False),
    (nats.js.errors.BadRequestError, "client_error", False),
    (nats.js.errors.ServiceUnavailableError, "connection", True),
    (nats.js.errors.NoStreamResponseError, "not_found", False),
    (nats.js.errors.APIError, "server_error", True),
    (nats.errors.AuthorizationError, "auth", False),
    (nats.errors.InvalidUserCredentialsError, "auth", False),
    (nats.errors.NoRespondersError, "not_found", True),
    (nats.errors.MaxPayloadError, "storage_quota", False),
    (nats.errors.BadSubjectError, "schema", False),
    (nats.js.errors.InvalidKeyError, "schema", False),
    (nats.js.errors.InvalidBucketNameError, "schema", False),
    (nats.errors.TimeoutError, "timeout", True),
)


class NatsTool(ToolBase):
    """Its fields are declared in `fields.NATS`; the operations are those of `_OPERATIONS`."""

    kind = "nats"
    idempotent = False

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}
        self._lock = asyncio.Lock()

    def idempotent_for(self, config: Mapping[str, Any]) -> bool:
        """All but bare messages: the others give the same state again, or carry a message id."""
        return config.get("operation") not in ("publish", "request")

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        name = str(need(config, "operation", "action"))
        if (operation := _OPERATIONS.get(name)) is None:
            raise BadConfig(f"the operation {name!r} is not known; there are {', '.join(_OPERATIONS)}")
        try:
            client = await self._client(await _settings(config, call))
            return Outcome(result=portable(await operation(client, config, call)))
        except (nats.errors.Error, OSError) as error:
            return _error_outcome(error)

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.close()

    async def _client(self, settings: dict[str, Any]) -> Client:
        key = repr(sorted(settings.items()))
        async with self._lock:
            client = self._clients.get(key)
            if client is None or not client.is_connected:
                client = self._clients[key] = await _connect(settings)
            return client


async def _connect(settings: dict[str, Any]) -> Client:
    try:
        return await connected(**settings)
    except NotAnAddress as error:
        raise BadConfig(f"the field 'url': {error}") from error


async def _settings(config: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if (auth := pick(config, "auth", "credential")) is not None:
        found = await credential(call, str(auth))
        given = {"token": found} if isinstance(found, str) else dict(found)
    settings = {"servers": _URL}
    for layer in (given, config):
        for name, spellings in _SETTINGS.items():
            if (value := pick(layer, *spellings)) is not None:
                settings[name] = value
    return settings


def _error_outcome(error: Exception) -> Outcome:
    text = str(error) or type(error).__name__
    if "Authorization" in text or "authorization" in text:
        return Outcome.failed("auth", text, code="NATS_AuthorizationError")
    kind, retryable = next(((k, r) for cls, k, r in _KINDS if isinstance(error, cls)), ("connection", True))
    return Outcome.failed(kind, text, code=f"NATS_{type(error).__name__}", retryable=retryable)


# --- payloads ---


def _payload(value: Any) -> bytes:
    """Bytes and text go as they are, the rest as JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(portable(value))


def _value(data: bytes | None, config: Mapping[str, Any]) -> Any:
    """What was stored: JSON objects and lists as such, other text as text (a `007` stays one), the
    rest as bytes; or as `format` says."""
    wanted = str(config.get("format") or "auto")
    if data is None or wanted == "bytes":
        return data
    try:
        if wanted == "json" or (wanted == "auto" and data.lstrip()[:1] in (b"{", b"[")):
            return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        if wanted == "json":
            raise BadConfig(f"format: json, but what is stored is not: {unreadable(error)}") from error
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _message_headers(config: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in mapping(config, "headers").items()}


# --- operations ---


async def _bucket(client: Client, config: Mapping[str, Any]) -> Any:
    """The key-value bucket; with `create: true` it is made if it is missing."""
    name = str(need(config, "bucket"))
    stream = client.jetstream()
    try:
        return await stream.key_value(name)
    except nats.js.errors.BucketNotFoundError:
        if not config.get("create"):
            raise
    options: dict[str, Any] = {"history": int(config.get("history") or 1)}
    if config.get("ttl") is not None:
        options["ttl"] = seconds(config["ttl"], "ttl")
    return await stream.create_key_value(bucket=name, **options)


async def _kv_get(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    key = str(need(config, "key"))
    entry = await (await _bucket(client, config)).get(key)
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "value": _value(entry.value, config),
        "revision": entry.revision,
    }


async def _kv_put(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    bucket, key = await _bucket(client, config), str(need(config, "key"))
    data = _payload(need(config, "value", "data"))
    if (last := config.get("revision")) is not None:
        revision = await bucket.update(key, data, last=int(last))
    else:
        revision = await bucket.put(key, data)
    return {"bucket": str(config["bucket"]), "key": key, "revision": revision}


async def _kv_delete(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    key = str(need(config, "key"))
    await (await _bucket(client, config)).delete(key)
    return {"bucket": str(config["bucket"]), "key": key, "deleted": True}


async def _kv_purge(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    key = str(need(config, "key"))
    await (await _bucket(client, config)).purge(key)
    return {"bucket": str(config["bucket"]), "key": key, "purged": True}


async def _kv_keys(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    bucket = await _bucket(client, config)
    try:
        keys = await bucket.keys()
    except nats.js.errors.NoKeysError:
        keys = []
    return {"bucket": str(config["bucket"]), "keys": sorted(keys)}


async def _objects(client: Client, config: Mapping[str, Any]) -> ObjectStore:
    name = str(need(config, "bucket"))
    stream = client.jetstream()
    try:
        return await stream.object_store(name)
    except nats.js.errors.NotFoundError:
        if not config.get("create"):
            raise
    return await stream.create_object_store(bucket=name)


def _object_info(info: Any) -> dict[str, Any]:
    return {
        "bucket": info.bucket,
        "name": info.name,
        "size": info.size,
        "digest": info.digest,
        "chunks": info.chunks,
    }


async def _object_put(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    name = str(need(config, "key", "name_in_bucket"))
    data = _payload(need(config, "value", "data"))
    return _object_info(await (await _objects(client, config)).put(name, io.BytesIO(data)))


async def _object_get(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    found = await (await _objects(client, config)).get(str(need(config, "key")))
    return {**_object_info(found.info), "value": _value(found.data, config)}


async def _object_delete(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    key = str(need(config, "key"))
    await (await _objects(client, config)).delete(key)
    return {"bucket": str(config["bucket"]), "name": key, "deleted": True}


async def _object_show(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    return _object_info(await (await _objects(client, config)).get_info(str(need(config, "key"))))


async def _object_list(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    try:
        found = await (await _objects(client, config)).list(ignore_deletes=True)
    except nats.js.errors.NotFoundError as error:
        if error.code is not None:
            raise
        found = []
    return {"bucket": str(config["bucket"]), "objects": [_object_info(info) for info in found]}


async def _js_publish(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    headers = _message_headers(config)
    if call.idempotency_key:
        headers.setdefault("Nats-Msg-Id", call.idempotency_key)
    stream = client.jetstream()
    if config.get("create"):
        name = str(need(config, "stream"))
        await stream.add_stream(name=name, subjects=[str(need(config, "subject"))])
    payload = _payload(pick(config, "data", "payload", "value") or "")
    ack = await stream.publish(str(need(config, "subject")), payload, headers=headers or None)
    return {"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)}


async def _js_get_msg(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    stream = client.jetstream()
    name = str(need(config, "stream"))
    if (number := pick(config, "seq", "sequence")) is not None:
        message = await stream.get_msg(name, int(number))
    else:
        message = await stream.get_last_msg(name, str(need(config, "subject")))
    return {
        "stream": name,
        "subject": message.subject,
        "seq": message.seq,
        "data": _value(message.data, config),
        "headers": dict(message.headers or {}),
    }


async def _js_stream_info(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    info = await client.jetstream().stream_info(str(need(config, "stream")))
    state = info.state
    return {
        "name": info.config.name,
        "subjects": info.config.subjects or [],
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "consumers": state.consumer_count,
    }


async def _publish(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    subject = str(need(config, "subject"))
    payload = _payload(pick(config, "data", "payload", "value") or "")
    await client.publish(subject, payload, headers=_message_headers(config) or None)
    await client.flush()
    return {"subject": subject, "bytes": len(payload)}


async def _request(client: Client, config: dict[str, Any], call: ToolCall) -> Any:
    payload = _payload(pick(config, "data", "payload", "value") or "")
    limit_s = (
        seconds(config.get("timeout", 30), "timeout") if not isinstance(config.get("timeout"), dict) else 30
    )
    answer = await client.request(
        str(need(config, "subject")), payload, timeout=limit_s, headers=_message_headers(config) or None
    )
    return {
        "subject": answer.subject,
        "data": _value(answer.data, config),
        "headers": dict(answer.headers or {}),
    }


_Operation = Callable[[Client, dict[str, Any], ToolCall], Awaitable[Any]]
_OPERATIONS: Final[dict[str, _Operation]] = {
    "kv_get": _kv_get,
    "kv_put": _kv_put,
    "kv_delete": _kv_delete,
    "kv_purge": _kv_purge,
    "kv_keys": _kv_keys,
    "object_get": _object_get,
    "object_put": _object_put,
    "object_delete": _object_delete,
    "object_info": _object_show,
    "object_list": _object_list,
    "js_publish": _js_publish,
    "js_get_msg": _js_get_msg,
    "js_stream_info": _js_stream_info,
    "publish": _publish,
    "request": _request,
}
