"""Webhooks: signed requests from outside start, signal and publish, once; forged, old and changed ones do nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests import nursery

from treadle import Engine
from treadle.access import trail
from treadle.access.hooks import signature
from treadle.server.app import create_app
from treadle.testing import VirtualClock, assert_replays

from .conftest import APPROVAL, FLOW, deployed
from .test_access import client, made

SECRET = "a secret that both sides know"
START = {
    "workflow": "greet",
    "secret": "shop",
    "id": "order-{{ body.order }}",
    "reference": "{{ query.shop }}",
}


@pytest.fixture
async def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(clock: VirtualClock) -> AsyncIterator[Engine]:
    async with clock.engine("memory:", secrets={"shop": SECRET}) as engine:
        yield engine


async def call(
    http: httpx.AsyncClient,
    name: str,
    body: Any,
    at_s: int,
    *,
    secret: str = SECRET,
    sent: bytes | None = None,
) -> httpx.Response:
    raw = json.dumps(body).encode()
    headers = {"X-Treadle-Signature": signature(secret, at_s, raw), "Content-Type": "application/json"}
    return await http.post(f"/hooks/{name}?shop=s1", content=raw if sent is None else sent, headers=headers)


async def test_a_signed_request_starts_a_run_once(
    http: httpx.AsyncClient, engine: Engine, clock: VirtualClock
) -> None:
    await deployed(http, greet=FLOW)
    assert (await http.put("/hooks/orders", json=START)).status_code == 200
    now = clock.now_ns() // 10**9
    first = await call(http, "orders", {"order": 7, "name": "ann"}, now)
    assert (first.status_code, first.json()) == (202, {"runs": ["order-7"]})
    again = await call(http, "orders", {"order": 7, "name": "ann"}, now)
    assert (again.status_code, again.json()) == (202, {"runs": ["order-7"]})
    document = (await http.post("/runs/order-7/wait", params={"timeout": 30})).json()
    assert (document["reference"], document["status"]) == ("s1", "completed")
    assert document["state"]["steps"]["hello"]["result"] == {"text": "hello ann"}
    assert len(await engine.list()) == 1
    assert (await trail.listed(engine, action="run.start"))[-1]["user"] == "hook:orders"
    await assert_replays(engine)


async def test_without_an_id_the_signature_names_the_run(
    http: httpx.AsyncClient, engine: Engine, clock: VirtualClock
) -> None:
    await deployed(http, greet=FLOW)
    await http.put("/hooks/orders", json={"workflow": "greet", "secret": "shop"})
    now = clock.now_ns() // 10**9
    ids = [(await call(http, "orders", {}, at)).json()["runs"][0] for at in (now, now, now + 1)]
    assert ids[0] == ids[1] != ids[2]
    assert len(await engine.list()) == 2


async def test_forged_changed_old_and_early_requests_are_401_and_do_nothing(
    http: httpx.AsyncClient, engine: Engine, clock: VirtualClock
) -> None:
    await deployed(http, greet=FLOW)
    await http.put("/hooks/orders", json=START)
    now = clock.now_ns() // 10**9
    body = {"order": 1}
    raw = json.dumps(body).encode()
    good = signature(SECRET, now, raw)
    assert (await call(http, "orders", body, now, secret="another")).status_code == 401
    assert (await call(http, "orders", body, now, sent=b'{"order": 2}')).status_code == 401
    assert (await call(http, "orders", body, now - 301)).status_code == 401
    assert (await call(http, "orders", body, now + 301)).status_code == 401
    for header in (None, "", "t=1", good.upper(), good.replace(f"t={now}", f"t={now + 1}"), good + ",v1=00"):
        headers = {} if header is None else {"X-Treadle-Signature": header}
        assert (await http.post("/hooks/orders", content=raw, headers=headers)).status_code == 401, header
    assert (await call(http, "nope", body, now)).json()["code"] == "HOOK_NOT_FOUND"
    assert await engine.list() == []
    assert (await call(http, "orders", {"order": 1}, now - 299)).status_code == 202
    await clock.advance(600)
    assert (await call(http, "orders", {"order": 1}, now - 299)).status_code == 401, (
        "replayed after its window"
    )


async def test_a_signed_request_signals_a_run_once(
    http: httpx.AsyncClient, engine: Engine, clock: VirtualClock
) -> None:
    await deployed(http, approval=APPROVAL)
    await http.post("/runs", json={"workflow": "approval", "id": "p-1"})
    signal = {"run": "p-{{ body.id }}", "name": "{{ headers.x-kind }}"}
    await http.put("/hooks/go", json={"signal": signal, "secret": "shop"})
    now = clock.now_ns() // 10**9
    raw = b'{"id": 1}'
    headers = {"X-Treadle-Signature": signature(SECRET, now, raw), "X-Kind": "go"}
    for _ in range(2):
        answer = await http.post("/hooks/go", content=raw, headers=headers)
        assert (answer.status_code, answer.json()) == (202, {"runs": ["p-1"]})
    kinds = [record["kind"] for record in await (await engine.run("p-1")).journal()]
    assert kinds.count("signal") == 1


async def test_a_hook_needs_no_token_and_only_an_admin_makes_one(engine: Engine, clock: VirtualClock) -> None:
    app = create_app(engine)
    async with client(app) as http:
        await deployed(http, greet=FLOW)
    async with client(app, await made(engine, "operator")) as http:
        assert (await http.put("/hooks/orders", json=START)).status_code == 403
        assert (await http.get("/hooks")).status_code == 403
    async with client(app, await made(engine, "admin")) as http:
        assert (await http.put("/hooks/orders", json=START)).status_code == 200
        assert (await http.get("/hooks")).json()["items"] == [{"name": "orders", **START}]
        assert SECRET not in (await http.get("/hooks/orders")).text
    async with client(app) as http:
        answer = await call(http, "orders", {"order": 1}, clock.now_ns() // 10**9)
        assert answer.status_code == 202
    async with client(app, await made(engine, "admin")) as http:
        assert (await http.delete("/hooks/orders")).status_code == 200
        assert (await http.delete("/hooks/orders")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"secret": "s"},
        {"workflow": "a", "event": "b", "secret": "s"},
        {"workflow": "a"},
        {"event": "b", "secret": "s", "id": "x"},
        {"signal": {"run": "a"}, "secret": "s"},
        {"workflow": "a", "secret": "s", "odd": 1},
    ],
)
async def test_what_is_no_hook_is_422(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    assert (await http.put("/hooks/h", json=body)).status_code == 422


async def test_a_request_that_lacks_what_the_hook_names_is_422_and_large_ones_are_413(
    http: httpx.AsyncClient, clock: VirtualClock
) -> None:
    await deployed(http, greet=FLOW)
    await http.put("/hooks/orders", json=START)
    now = clock.now_ns() // 10**9
    answer = await call(http, "orders", {"other": 1}, now)
    assert (answer.status_code, answer.json()["where"]) == (422, "body.order")
    assert (await call(http, "orders", {"order": "x" * 2_000_000}, now)).status_code == 413


async def test_a_hook_whose_secret_is_missing_is_503(http: httpx.AsyncClient, clock: VirtualClock) -> None:
    await http.put("/hooks/h", json={"workflow": "greet", "secret": "nope"})
    answer = await call(http, "h", {}, clock.now_ns() // 10**9)
    assert (answer.status_code, answer.json()["code"]) == (503, "HOOK_UNAVAILABLE")


def test_hooks_at_the_command_line(tmp_path: Path) -> None:
    def treadle(*arguments: str) -> Any:
        command = ["-m", "treadle.cli", "hook", *arguments, "--json", "--store", "sqlite:///t.db"]
        done = nursery.run(command, cwd=tmp_path)
        return json.loads(done.stdout)

    treadle("set", "orders", "--workflow", "greet", "--secret", "shop", "--id", "{{ body.order }}")
    assert [row["name"] for row in treadle("list")] == ["orders"]
    assert treadle("remove", "orders") == {"name": "orders", "status": "removed"}
    assert treadle("list") == []
    assert treadle("remove", "orders")["error"]["code"] == "HOOK_NOT_FOUND"
