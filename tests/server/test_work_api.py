"""The work routes as any client sees them: JSON, exact shapes, each refusal by its code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from treadle import Engine
from treadle.bus.http import HttpBus
from treadle.kernel.values import digest_bytes, encode
from treadle.lang.duration import instant_text
from treadle.runtime.commands import LATE
from treadle.server.app import create_app
from treadle.server.workers import GONE_NS, LOST_NS, Workers
from treadle.testing import assert_replays

FLOW = """
dialect: process
name: paid
version: "1"
steps:
  - call: {transport: billing, payload: {amount: 5}, into: bill}
  - complete: {$: result.bill}
"""


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine("memory:", work=False)
    engine.transport("billing")(lambda payload: payload)
    async with engine:
        yield engine


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
        files = [{"path": "paid.yaml", "text": FLOW}]
        assert (await client.post("/definitions", json={"files": files})).status_code == 201
        yield client


async def said(http: httpx.AsyncClient, what: str, **body: Any) -> Any:
    answer = await http.post(f"/work/{what}", json={"worker": "w"} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def started(http: httpx.AsyncClient) -> tuple[str, dict[str, Any]]:
    id = (await http.post("/runs", json={"workflow": "paid"})).json()["id"]
    (item,) = (await said(http, "take", pools=["default"], limit=5, wait=5))["items"]
    return id, item


async def test_work_is_taken_renewed_and_settled_in_json(http: httpx.AsyncClient, engine: Engine) -> None:
    id, item = await started(http)
    assert item.keys() >= {
        "intent",
        "attempt",
        "run",
        "kind",
        "definition",
        "params",
        "pool",
        "lease",
        "lease_s",
    }
    assert (item["run"], item["kind"], item["attempt"], item["pool"]) == (id, "call", 1, "default")
    assert item["lease_s"] == 10
    definition = (await http.get(f"/definitions/{item['definition']}")).json()
    assert definition["name"] == "paid"
    renewed = await said(http, "renew", leases=[item["lease"], "invented"])
    assert renewed == {"renewed": [item["lease"]], "lost": ["invented"]}
    frame = {
        "intent": item["intent"],
        "lease": item["lease"],
        "seq": 1,
        "kind": "frame",
        "value": {"done": 1},
    }
    assert await said(http, "progress", frames=[frame]) == {"durable": [item["intent"]], "lost": []}
    receipt = {
        "intent": item["intent"],
        "lease": item["lease"],
        "status": "ok",
        "value": {"ok": 1},
        "attempts": 1,
    }
    answer = await said(http, "settle", receipts=[receipt, {"intent": "x", "lease": "y", "status": "ok"}, 7])
    assert answer["settled"] == [item["intent"]]
    assert [one["code"] for one in answer["refused"]] == ["NOT_HANDED_OUT"] * 2
    shown = (await http.post(f"/runs/{id}/wait")).json()
    assert (shown["status"], shown["result"]) == ("completed", {"ok": 1})
    again = await said(http, "settle", receipts=[receipt])
    assert (again["settled"], [one["code"] for one in again["refused"]]) == ([], ["NOT_HANDED_OUT"])
    await assert_replays(engine)


@pytest.mark.parametrize("how", ["settle", "progress"])
async def test_an_end_that_comes_after_its_work_was_settled_is_no_forgery_and_is_counted(
    http: httpx.AsyncClient, engine: Engine, how: str
) -> None:
    """A receipt and a cancellation cross on the way; a thread cannot be stopped when its worker is told."""
    id, item = await started(http)
    assert (await http.post(f"/runs/{id}/cancel", json={})).status_code == 200
    shown = {"intent": item["intent"], "lease": item["lease"]}
    if how == "settle":
        (refused,) = (await said(http, "settle", receipts=[{**shown, "status": "ok"}]))["refused"]
        assert refused["code"] == "NOT_HANDED_OUT"
    else:
        late = {**shown, "seq": 0, "kind": "frame", "type": LATE}
        assert (await said(http, "progress", frames=[late]))["lost"] == [item["intent"]]
    async with asyncio.timeout(60):
        while not (found := await engine.diagnostics(id)):  # noqa: ASYNC110, nothing tells
            await asyncio.sleep(0.01)
    assert [one["code"] for one in found] == ["receipt.stale"]
    assert not [one for one in await engine.diagnostics() if one["code"] == "receipt.forged"]
    await assert_replays(engine)


async def test_whoever_says_that_given_up_work_has_ended_does_not_get_it_back(
    http: httpx.AsyncClient,
) -> None:
    id, item = await started(http)
    await said(http, "release", leases=[item["lease"]])
    late = {"intent": item["intent"], "lease": item["lease"], "seq": 0, "kind": "frame", "type": LATE}
    assert (await said(http, "progress", frames=[late]))["lost"] == [item["intent"]]
    (again,) = (await said(http, "take", worker="other", pools=["default"], limit=5, wait=5))["items"]
    assert (again["run"], again["attempt"]) == (id, 2)


async def test_a_large_value_goes_by_reference(http: httpx.AsyncClient) -> None:
    id, item = await started(http)
    body = encode("x" * 100_000)
    digest = digest_bytes(body)
    assert (await http.put(f"/blobs/{digest}", content=body + b"\x00")).status_code == 422
    assert (await http.put(f"/blobs/{digest}", content=body)).status_code == 200
    assert (await http.get(f"/blobs/{digest}")).content == body
    reference = {"store": "blob", "key": digest, "checksum": digest, "size": len(body), "schema_hint": None}
    receipt = {"intent": item["intent"], "lease": item["lease"], "status": "ok", "value": reference}
    assert (await said(http, "settle", receipts=[receipt]))["settled"] == [item["intent"]]
    shown = (await http.post(f"/runs/{id}/wait")).json()
    assert (shown["status"], shown["result"]["checksum"]) == ("completed", digest)


async def test_what_cannot_be_used_is_a_dead_letter_and_fails_its_intent(http: httpx.AsyncClient) -> None:
    id, item = await started(http)
    bad = {"intent": item["intent"], "lease": item["lease"], "status": "splendid"}
    answer = await said(http, "settle", receipts=[bad])
    assert [one["intent"] for one in answer["refused"]] == [item["intent"]]
    (letter,) = (await http.get("/deadletters")).json()["items"]
    assert "treadle_dead_letters 1.0" in (await http.get("http://localhost/metrics")).text
    assert (letter["intent"], letter["run"], letter["worker"]) == (item["intent"], id, "w")
    shown = (await http.post(f"/runs/{id}/wait")).json()
    assert shown["error"]["code"] == "RECEIPT_UNUSABLE"
    assert (await http.get(f"/deadletters/{letter['id']}")).json() == letter
    again = await http.post(f"/deadletters/{letter['id']}/replay")
    assert (again.status_code, again.json()["code"]) == (409, "INTENT_NOT_OPEN")
    assert (await http.post(f"/deadletters/{letter['id']}/discard")).status_code == 200
    assert (await http.get("/deadletters")).json()["items"] == []
    assert (await http.get(f"/deadletters/{letter['id']}")).status_code == 404
    done = (await http.get("/audit", params={"action": "deadletter"})).json()["items"]
    assert [(row["action"], row["target"], row["status"]) for row in done] == [
        ("deadletter.discard", letter["id"], "ok"),
        ("deadletter.replay", letter["id"], "refused"),
    ]


async def test_a_dead_letter_whose_intent_is_open_is_offered_again(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    id, item = await started(http)
    row = {"intent": item["intent"], "run": id, "worker": "w", "reason": "ODD", "size": 0, "sample": ""}
    await engine.operate("deadletter", {"op": "keep", "id": "l-1", "row": row}, home=row["run"])
    done = (await http.post("/deadletters/l-1/replay")).json()
    assert (done["run"], done["intent"], done["replayed"]) == (id, item["intent"], True)
    assert (await http.get("/deadletters")).json()["items"] == []
    # Who has it in hand keeps it: it is done once.
    receipt = {"intent": item["intent"], "lease": item["lease"], "status": "ok", "value": 1}
    assert (await said(http, "settle", receipts=[receipt]))["settled"] == [item["intent"]]
    await assert_replays(engine)


async def test_versions_too_far_apart_are_told(http: httpx.AsyncClient) -> None:
    answer = await http.post("/work/take", json={"worker": "w", "version": "9.9.0"})
    assert (answer.status_code, answer.json()["code"]) == (426, "VERSION_SKEW")


async def test_only_workers_take_work(http: httpx.AsyncClient) -> None:
    viewer = {"X-Treadle-User": "ann", "X-Treadle-Roles": "viewer"}
    answer = await http.post("/work/take", json={"worker": "w"}, headers=viewer)
    assert answer.status_code == 403
    worker = {"X-Treadle-User": "bob", "X-Treadle-Roles": "worker"}
    assert (await http.post("/work/take", json={"worker": "w"}, headers=worker)).status_code == 200
    assert (await http.get("/runs", headers=worker)).status_code == 403


async def test_a_worker_registers_is_seen_with_each_word_lost_when_silent_and_forgotten_after_an_hour(
    engine: Engine,
) -> None:
    now = 1_800_000_000 * 10**9
    workers = Workers(engine, now_ns=lambda: now)
    transport = httpx.ASGITransport(app=create_app(engine, workers=workers), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:

        async def row() -> dict[str, Any] | None:
            items = (await http.get("/workers")).json()["items"]
            return next((one for one in items if one["name"] == "w"), None)

        about = {
            "pools": ["gpu"],
            "concurrency": 3,
            "tools": ["slack"],
            "apps": ["sha256:a"],
            "version": version("treadle"),
        }
        assert await said(http, "register", **about, instance="first") == {"bus": {"kind": "http"}}
        first = await row()
        assert first is not None
        assert {key: first[key] for key in about} == about
        assert (first["busy"], first["bus"], first["status"]) == (0, "http", "live")
        assert first["started_at"] == first["seen_at"] == instant_text(now)
        now += LOST_NS
        await said(http, "renew", leases=[])
        heard = await row()
        assert heard is not None
        assert (heard["seen_at"], heard["started_at"]) == (instant_text(now), first["started_at"])
        second = await http.post("/work/register", json={"worker": "w", "instance": "second"})
        assert (second.status_code, second.json()["code"]) == (409, "WORKER_EXISTS")
        now += LOST_NS + 1
        silent = await row()
        assert silent is not None
        assert silent["status"] == "lost"
        await said(http, "register", instance="second", draining=True)
        replaced = await row()
        assert replaced is not None
        assert (replaced["status"], replaced["started_at"]) == ("draining", instant_text(now))
        now += GONE_NS
        assert await row() is None


async def test_a_worker_that_was_about_to_leave_and_stays_gets_work(http: httpx.AsyncClient) -> None:
    await said(http, "register", draining=True)
    await http.post("/runs", json={"workflow": "paid"})
    assert (await said(http, "take", pools=["default"], limit=5))["items"] == []
    await said(http, "register", draining=False)
    assert len((await said(http, "take", pools=["default"], limit=5, wait=5))["items"]) == 1


async def test_a_worker_with_many_places_asks_for_no_more_than_anybody_is_handed_at_once(
    engine: Engine,
) -> None:
    bus = HttpBus(["http://localhost"], "w", transport=httpx.ASGITransport(app=create_app(engine)))
    try:
        assert (await bus.take(["default"], 5_000)).items == []
    finally:
        await bus.close()
