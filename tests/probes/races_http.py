"""Callers that meet over HTTP at two servers on one PostgreSQL: each asks another server in the same instant, again and
again. `make races` runs it; what is asked by steps, and by processes at one file, is in `test_races*.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any

import httpx
import psycopg
import pytest
import pytest_asyncio
from tests.probes.racing import plain
from tests.probes.test_races import FLOWS
from tests.server.test_serve import serving

TIMES = 20
Call = Callable[[httpx.AsyncClient, str], Awaitable[httpx.Response]]
Make = Callable[[httpx.AsyncClient, str], Awaitable[Any]]
SECRET = "s3cret"
TASKS: dict[str, str] = {}
NAMES = count()
BEGAN_S = int(time.time())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(
    pg_uri: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[list[httpx.AsyncClient]]:
    folder = tmp_path_factory.mktemp("races")
    with psycopg.connect(pg_uri, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA races_http")
    options = ["--store", f"{pg_uri}&options=-csearch_path%3Draces_http"]
    for name, flow in FLOWS.items():
        (folder / f"{name}.yaml").write_text(f"dialect: process\nname: {name}\nversion: '1'\n{flow}\n")
        options += ["--deploy", str(folder / f"{name}.yaml")]
    with serving(folder, *options) as (_, one), serving(folder, *options) as (_, other):
        # A connection for each call: one that rests may be closed by its server just when it is used again.
        each = httpx.Limits(max_keepalive_connections=0)
        clients = [
            httpx.AsyncClient(base_url=f"{it['url']}/api/v1", timeout=60, limits=each) for it in (one, other)
        ]
        hook = {"secret": SECRET, "workflow": "ends", "id": "{{ body.n }}"}
        assert (await clients[0].put("/hooks/h", json=hook)).is_success
        yield clients
        health = (await clients[0].get("/doctor?deep=true")).json()
        assert health["ok"], health
        for client in clients:
            await client.aclose()


async def _nothing(http: httpx.AsyncClient, name: str) -> None:
    """There is nothing of this name."""


def _started(flow: str) -> Make:
    async def make(http: httpx.AsyncClient, name: str) -> None:
        assert (await http.post("/runs", json={"workflow": flow, "id": name, "input": {"n": 1}})).is_success
        await http.post(f"/runs/{name}/wait")
        if flow == "asks":
            TASKS[name] = (await http.get(f"/tasks?run={name}")).json()["items"][0]["id"]

    return make


async def _stalled(http: httpx.AsyncClient, name: str) -> None:
    await _started("parent")(http, name)
    (child,) = (await http.get(f"/runs?parent={name}&status=waiting")).json()["items"]
    assert (await http.post(f"/runs/{child['id']}/cancel")).is_success
    until = time.monotonic() + 60
    while (await http.get(f"/runs/{name}")).json()["status"] != "stalled":
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


async def _scheduled(http: httpx.AsyncClient, name: str) -> None:
    said = await http.post("/schedules", json={"name": name, "workflow": "ends", "every": "1000h"})
    assert said.is_success, said.text


async def _deployed(http: httpx.AsyncClient, name: str) -> None:
    assert (await _deploy("1")(http, name)).is_success


def _deploy(version: str) -> Call:
    def call(http: httpx.AsyncClient, name: str) -> Awaitable[httpx.Response]:
        flow = f"dialect: process\nname: {name}\nversion: '{version}'\nsteps: [{{complete: {version}}}]\n"
        return http.post("/definitions", json={"files": [{"path": f"{name}.yaml", "text": flow}]})

    return call


def _delivery(http: httpx.AsyncClient, name: str) -> Awaitable[httpx.Response]:
    body, at = json.dumps({"n": name}).encode(), BEGAN_S
    made = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Treadle-Signature": f"t={at},v1={made}", "Content-Type": "application/json"}
    return http.post("/hooks/h", content=body, headers=headers)


def _start(**body: Any) -> Call:
    return lambda http, name: http.post("/runs", json={"id": name, **body})


def _post(path: str, **body: Any) -> Call:
    return lambda http, name: http.post(path.format(name=name, task=TASKS.get(name)), json=body)


START, START_2 = (_start(workflow="waits", input={"n": n}) for n in (1, 2))
SIGNAL, CANCEL = _post("/runs/{name}/signal", name="go", data=1), _post("/runs/{name}/cancel")
PAIRS: dict[str, tuple[Make, Call, Call]] = {
    "start, start": (_nothing, START, START),
    "start, start otherwise": (_nothing, START, START_2),
    "signal, cancel": (_started("waits"), SIGNAL, CANCEL),
    "signal, signal": (_started("waits"), SIGNAL, _post("/runs/{name}/signal", name="go", data=2)),
    "cancel, cancel": (_started("waits"), CANCEL, CANCEL),
    "retry, cancel": (_stalled, _post("/runs/{name}/retry"), CANCEL),
    "complete, complete": (
        _started("asks"),
        _post("/tasks/{task}/complete", data=1),
        _post("/tasks/{task}/complete", data=2),
    ),
    "delete, show": (_started("ends"), lambda h, n: h.delete(f"/runs/{n}"), lambda h, n: h.get(f"/runs/{n}")),
    "delete, signal": (_started("ends"), lambda h, n: h.delete(f"/runs/{n}"), SIGNAL),
    "deploy, start": (_deployed, _deploy("2"), lambda h, n: h.post("/runs", json={"workflow": n, "id": n})),
    "pause, resume": (_scheduled, _post("/schedules/{name}/pause"), _post("/schedules/{name}/resume")),
    "delivery, delivery": (_nothing, _delivery, _delivery),
}


async def _looked(http: httpx.AsyncClient, name: str) -> str:
    """What is there under a name, when it has come to rest."""
    await http.post(f"/runs/{name}/wait")
    shown = (await http.get(f"/runs/{name}")).json()
    journal = (await http.get(f"/runs/{name}/journal")).json()
    schedule = (await http.get(f"/schedules/{name}")).json()
    found = [shown.get(key) for key in ("status", "version", "result", "code")]
    return json.dumps(
        [found, [record["kind"] for record in journal if isinstance(journal, list)], schedule.get("paused")]
    )


def _said(name: str, answer: httpx.Response) -> str:
    """What it was told of its call. The document of a run that comes with it is as it is by then."""
    if answer.is_success and "workflow" in answer.json() and answer.request.method == "POST":
        return f"{answer.status_code} {answer.json()['id'] == name}"
    return plain(name, f"{answer.status_code} {json.dumps(answer.json(), sort_keys=True)}")


async def _in_turn(http: httpx.AsyncClient, make: Make, one: Call, other: Call) -> tuple[str, str, str]:
    name = f"n{next(NAMES):06}x"
    await make(http, name)
    told = [_said(name, await call(http, name)) for call in (one, other)]
    return told[0], told[1], plain(name, await _looked(http, name))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair", PAIRS)
async def test_two_who_meet_at_two_servers_are_told_what_one_after_the_other_would_be(
    servers: list[httpx.AsyncClient], pair: str
) -> None:
    make, one, other = PAIRS[pair]
    after = await _in_turn(servers[0], make, one, other)
    before = await _in_turn(servers[0], make, other, one)
    allowed = [after, (before[1], before[0], before[2])]
    for turn in range(TIMES):
        name = f"n{next(NAMES):06}x"
        await make(servers[0], name)
        here, there = servers if turn % 2 else servers[::-1]
        told = await asyncio.gather(one(here, name), other(there, name))
        found = (_said(name, told[0]), _said(name, told[1]), plain(name, await _looked(servers[0], name)))
        assert found in allowed, "\n".join(
            [f"no order of {pair} gives this:", *found, "allowed:", *map(str, allowed)]
        )
