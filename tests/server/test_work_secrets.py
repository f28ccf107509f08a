"""Secrets for workers elsewhere: what work in hand names, while it is in hand, where nobody listens (SERVER.md 27)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from treadle import Engine
from treadle.bus.http import HttpBus
from treadle.server.app import create_app
from treadle.server.remote import RemoteWorker
from treadle.testing import assert_replays

FLOW = """
metadata: {name: paid, version: "1"}
keychain:
  - {name: pay_key, kind: bearer}
workflow:
  - step: pay
    tool:
      kind: python
      code: "def main(key):\\n    return {'size': len(key)}"
      args: {key: "{{ keychain.pay_key.token }}"}
"""
VALUE = "sk-very-secret-0123456789"


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine(
        "memory:", work=False, secrets={"pay_key": VALUE, "other": "of-another-house"}
    ) as engine:
        yield engine


def reached(engine: Engine, *, client: str = "127.0.0.1") -> httpx.ASGITransport:
    return httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False, client=(client, 1))


async def taken(http: httpx.AsyncClient) -> dict[str, Any]:
    files = [{"path": "paid.yaml", "text": FLOW}]
    assert (await http.post("/definitions", json={"files": files})).status_code in (200, 201)
    assert (await http.post("/runs", json={"workflow": "paid"})).status_code == 201
    answer = await http.post("/work/take", json={"worker": "w", "limit": 1, "wait": 5})
    (item,) = answer.json()["items"]
    return dict(item)


async def test_work_in_hand_is_given_the_secrets_that_it_names_and_no_others(engine: Engine) -> None:
    async with httpx.AsyncClient(transport=reached(engine), base_url="http://localhost/api/v1") as http:
        item = await taken(http)

        async def asked(*names: str, worker: str = "w", lease: str = item["lease"]) -> tuple[int, Any]:
            body = {"worker": worker, "intent": item["intent"], "lease": lease, "names": list(names)}
            answer = await http.post("/work/secrets", json=body)
            return answer.status_code, answer.json().get("values") or answer.json()["code"]

        assert await asked("pay_key") == (200, {"pay_key": VALUE})
        assert await asked("other") == (403, "FORBIDDEN"), "nothing in the definition names it"
        assert await asked("pay_key", "other") == (403, "FORBIDDEN"), "all or nothing"
        assert await asked("pay_key", worker="x") == (403, "NOT_HANDED_OUT")
        assert await asked("pay_key", lease="invented") == (403, "NOT_HANDED_OUT")
        receipt = {"intent": item["intent"], "lease": item["lease"], "status": "ok", "value": {}}
        await http.post("/work/settle", json={"worker": "w", "receipts": [receipt]})
        assert await asked("pay_key") == (403, "NOT_HANDED_OUT"), "it is done"


async def test_a_secret_is_not_said_where_others_may_listen(engine: Engine) -> None:
    far = reached(engine, client="10.0.0.9")
    async with httpx.AsyncClient(transport=far, base_url="http://localhost/api/v1") as http:
        item = await taken(http)
        body = {"worker": "w", "intent": item["intent"], "lease": item["lease"], "names": ["pay_key"]}
        refused = await http.post("/work/secrets", json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        assert "TLS" in refused.json()["detail"]
        # The same over TLS.
        assert (await http.post("https://localhost/api/v1/work/secrets", json=body)).status_code == 200


async def test_a_worker_without_secrets_has_those_of_its_server_for_its_work(engine: Engine) -> None:
    bus = HttpBus(["http://localhost"], "w", transport=reached(engine))
    async with (
        httpx.AsyncClient(transport=reached(engine), base_url="http://localhost/api/v1") as http,
        Engine("memory:", work=False) as hands,
    ):
        remote = RemoteWorker(hands, bus, bus, pools=["default"], concurrency=4)
        working = asyncio.ensure_future(remote.run())
        files = [{"path": "paid.yaml", "text": FLOW}]
        await http.post("/definitions", json={"files": files})
        run = await engine.start("paid", {})
        assert f"'size': {len(VALUE)}" in str(await run.result(60))
        assert VALUE not in str(await run.journal()), "it is redacted as any secret"
        await remote.leave(5)
        await working
        await bus.close()
    await assert_replays(engine)
