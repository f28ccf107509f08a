"""What workers ask: work, renewals, receipts, progress, payloads. The same shapes as JSON and as CBOR, which carries
bytes and is what our own workers speak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Header, Request
from starlette.responses import Response

from treadle.bus.messages import handed_value
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value, decode, decode_trusted, digest_bytes, encode
from treadle.lang.duration import instant_text
from treadle.runtime import payloads
from treadle.server import bodies, shapes
from treadle.server.access import BLOBS, OPERATOR, VIEWER, WORKER
from treadle.server.confiding import check_way, confide
from treadle.server.problems import RequestRefused
from treadle.server.routing import Described, Handler, JsonAnswer, Routes, actor_of, read_bytes, told
from treadle.server.workers import Workers

from .runs import engine_of

B = TypeVar("B", bound=bodies.OfWorker)
routes = Routes()
CBOR = "application/cbor"
WAIT_S_MAX = 30.0


def workers_of(request: Request) -> Workers:
    found: Workers = request.app.state.workers
    return found


def _answer(request: Request, value: Any) -> Response:
    if CBOR in request.headers.get("accept", ""):
        return Response(encode(value), media_type=CBOR)
    return JsonAnswer(value)


def _of_workers(path: str, *, takes: type[bodies.OfWorker], gives: Any) -> Callable[[Handler], Handler]:
    """A question of a worker, as JSON or as CBOR."""
    return routes.answers("POST", path, WORKER, gives=gives, told=Described(takes=takes, media=(CBOR,)))


async def _heard(request: Request, shape: type[B]) -> tuple[B, Workers]:
    """What a worker says that has work in hand; it is still there."""
    asked, workers = await told(request, shape), workers_of(request)
    workers.see(asked.worker, actor_of(request).user)
    return asked, workers


@_of_workers("/work/register", takes=bodies.RegisterBody, gives=shapes.Registered)
async def register(request: Request) -> Response:
    """A worker says who it is and what it can do; told how to go on."""
    asked = await told(request, bodies.RegisterBody)
    workers = workers_of(request)
    seen = {key: value for key, value in asked.model_dump().items() if key != "worker"}
    go_on = workers.carrying.told(asked.worker)
    if go_on["kind"] == "http":
        workers.check_reach()
    workers.see(asked.worker, actor_of(request).user, **seen)
    return _answer(request, {"bus": go_on})


@_of_workers("/work/take", takes=bodies.TakeBody, gives=shapes.WorkTaken)
async def take(request: Request) -> Response:
    """Work for a worker; waits for it. Registers the worker."""
    asked = await told(request, bodies.TakeBody)
    workers = workers_of(request)
    workers.check_reach()
    given = asked.model_dump()
    seen = {key: given[key] for key in ("pools", "tools", "apps", "version", "instance", "concurrency")}
    row = workers.see(asked.worker, actor_of(request).user, **seen)
    row.waiting += 1
    try:
        taken = await workers.hatch.take(
            asked.worker,
            row.pools,
            asked.limit,
            wait_s=min(asked.wait, WAIT_S_MAX),
            gone=request.is_disconnected,
        )
    finally:
        row.waiting -= 1
        workers.see(asked.worker, row.user)
    items: list[Value] = []
    for handed in taken.items:
        value = handed_value(handed)
        if handed.work.intent.due_ns is not None:
            value["due"] = instant_text(handed.work.intent.due_ns)
        items.append(value)
    return _answer(request, {"items": items, "revoked": taken.revoked, "bus": {"kind": "http"}})


@_of_workers("/work/renew", takes=bodies.Leases, gives=shapes.Renewed)
async def renew(request: Request) -> Response:
    """Keeps work in hand; which leases are lost."""
    asked, workers = await _heard(request, bodies.Leases)
    lost = workers.hatch.renew(asked.worker, asked.leases)
    return _answer(request, {"renewed": [lease for lease in asked.leases if lease not in lost], "lost": lost})


@_of_workers("/work/settle", takes=bodies.SettleBody, gives=shapes.WorkSettled)
async def settle(request: Request) -> Response:
    """Receipts; answered after the commit, each by itself."""
    asked, workers = await _heard(request, bodies.SettleBody)
    found = await workers.hatch.settle(asked.worker, asked.receipts)
    refused = [{"intent": one.intent, "code": one.code} for one in found.refused]
    return _answer(request, {"settled": found.settled, "stale": found.stale, "refused": refused})


@_of_workers("/work/progress", takes=bodies.ProgressBody, gives=shapes.ProgressKept)
async def progress(request: Request) -> Response:
    """Frames and checkpoints; answered when they are durable."""
    asked, workers = await _heard(request, bodies.ProgressBody)
    found = await workers.hatch.progress(asked.worker, asked.frames)
    return _answer(request, {"durable": found.durable, "lost": found.lost})


@_of_workers("/work/release", takes=bodies.ReleaseBody, gives=shapes.Released)
async def release(request: Request) -> Response:
    """Gives work back; with a reason, because this worker cannot do it."""
    asked, workers = await _heard(request, bodies.ReleaseBody)
    workers.hatch.release(asked.worker, asked.leases, asked.reason)
    return _answer(request, {"released": len(asked.leases)})


@_of_workers("/work/secrets", takes=bodies.AskSecrets, gives=shapes.SecretsGiven)
async def secrets(request: Request) -> Response:
    """Secrets that work in hand asks for by name; over TLS or from this machine only."""
    check_way(request)
    asked, _ = await _heard(request, bodies.AskSecrets)
    _, work = engine_of(request).bus.standing(asked.worker, asked.intent, asked.lease)
    if work is None:
        raise RequestRefused("NOT_HANDED_OUT", "this work is not in this worker's hands", cls="authorization")
    values = await confide(engine_of(request), work, asked.worker, asked.names)
    return _answer(request, {"values": values})


@routes.answers("GET", "/workers", VIEWER, gives=shapes.Page[shapes.WorkerRow])
async def listed(request: Request) -> Any:
    """Who works for this server, the worker inside it among them."""
    return {"items": workers_of(request).rows(), "next": None}


@routes.answers("GET", "/deadletters", VIEWER, gives=shapes.Page[shapes.DeadLetterShown])
async def letters(request: Request) -> Any:
    """What workers sent back and nobody could use, newest first."""
    return {"items": await engine_of(request).dead_letters(), "next": None}


@routes.answers("GET", "/deadletters/{id}", VIEWER, gives=shapes.DeadLetterShown)
async def letter(request: Request, id: str) -> Any:
    """One dead letter."""
    return await engine_of(request).dead_letter(id)


@routes.answers("POST", "/deadletters/{id}/replay", OPERATOR, gives=shapes.DeadLetterDone)
async def replay(request: Request, id: str, body: bodies.Nothing | None = None) -> Any:
    """Offers its work again; 409 if that is not open any more."""
    return await engine_of(request).dead_letter_replay(id)


@routes.answers("POST", "/deadletters/{id}/discard", OPERATOR, gives=shapes.DeadLetterDone)
async def discard(request: Request, id: str, body: bodies.Nothing | None = None) -> Any:
    """Removes a dead letter."""
    return await engine_of(request).dead_letter_discard(id)


@routes.answers("GET", "/blobs/{digest}", BLOBS, told=Described(media=(CBOR,)))
async def blob(request: Request, digest: str, accept: Annotated[str | None, Header()] = None) -> Response:
    """A payload: its stored bytes, or its value as JSON."""
    body = await engine_of(request).read(lambda reads: reads.blob(digest))
    etag = {"ETag": f'"{digest}"'}
    if accept is not None and "application/json" in accept:
        return JsonAnswer(decode_trusted(body), headers=etag)
    return Response(body, media_type=CBOR, headers=etag)


@routes.answers("PUT", "/blobs/{digest}", WORKER, gives=shapes.BlobKept, told=Described(takes=CBOR))
async def put_blob(request: Request, digest: str) -> Any:
    """Keeps a payload for the receipt or checkpoint that will refer to it."""
    body = await read_bytes(request, request.app.state.blob_max)
    if digest_bytes(body) != digest:
        raise RequestRefused("DIGEST_MISMATCH", "the bytes are not those of this digest", where="digest")
    try:
        decode(body)
    except TreadleError as error:
        raise RequestRefused("INPUT_INVALID", f"the payload is not canonical: {error.message}") from error
    engine = engine_of(request)
    # Decided by whoever is asked where that is possible: it may be large, and belongs to no run yet.
    home = next((home for home in engine.homes() if engine.decides(home)), "")
    await engine.operate(payloads.KEEP, {"digest": digest, "payload": body}, home=home)
    return {"digest": digest, "size": len(body)}
