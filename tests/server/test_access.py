"""Who may ask what: tokens, roles by route, limits to workflows. From SERVER.md 7 to 9, 56 and 60."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from tests import nursery

from treadle import Engine
from treadle.access import tokens
from treadle.server.access import AccessOptions
from treadle.server.app import PARTS, create_app
from treadle.server.routing import Route, Routes
from treadle.testing import VirtualClock

from .conftest import APPROVAL, FLOW, deployed
from .test_serve import serving

ROLES = ("viewer", "operator", "worker", "admin", "boss")
LOOK = {"viewer", "operator", "admin"}
# What is the same for everybody and no part of the API: the console's page and files, the description of the API.
NO_ROLE = {"/api/v1/openapi.json", "/{name:path}"}


def client(app: FastAPI, token: str | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", headers=headers)


async def made(engine: Engine, *roles: str, **more: Any) -> str:
    return str((await tokens.create(engine, "-".join(roles), roles, **more))["token"])


def needed(method: str, path: str) -> set[str] | None:
    """The roles of SERVER.md 7 that a route is for; None for everybody. Written from the page, not from the code."""
    part = path.removeprefix("/api/v1")
    if part == "/login" or path in ("/healthz", "/readyz", "/docs") or path.startswith("/docs/"):
        return None
    if part == "/hooks/{name:segment}" and method == "POST":
        return None
    if part.startswith("/work/"):
        return {"worker", "admin"}
    if part.startswith("/blobs/"):
        return LOOK | {"worker"} if method == "GET" else {"worker", "admin"}
    if part == "/definitions/{name:segment}" and method == "GET":
        return LOOK | {"worker"}
    if part.startswith(("/tokens", "/secrets", "/hooks", "/audit")):
        return {"admin"}
    if part.startswith("/tasks"):
        return LOOK | {"boss"} if method == "GET" else {"boss", "admin"}
    if part == "/me":
        return LOOK | {"boss"}
    # To replay a run changes nothing; to replay a dead letter does.
    if method == "GET" or (part.startswith("/runs/") and part.endswith(("/wait", "/replay"))):
        return LOOK
    if part.startswith(("/definitions", "/gc", "/retention", "/servers", "/apps")):
        return {"admin"}
    return {"operator", "admin"}


def listed() -> list[tuple[str, str]]:
    return [
        (method, prefix + route.path)
        for prefix, routes in PARTS
        for route in routes.routes
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
    ]


async def test_every_route_asks_for_the_role_that_the_page_names(engine: Engine) -> None:
    app = create_app(engine)
    # Streams end at once: they were judged before.
    app.state.draining.set()
    found = {role: await made(engine, role) for role in ROLES}
    wrong: list[str] = []
    routes = listed()
    assert len(routes) > 40
    for method, path in routes:
        url = "http://localhost" + "/".join("x" if "{" in part else part for part in path.split("/"))
        wanted = needed(method, path)
        async with client(app) as nobody:
            status = (await nobody.request(method, url)).status_code
            if (status == 401) != (wanted is not None):
                wrong.append(f"{method} {path} without a token: {status}")
        for role, token in found.items():
            async with client(app, token) as http:
                answer = await http.request(method, url)
            allowed = wanted is None or role in wanted
            if answer.status_code == 401 or (answer.status_code == 403) == allowed:
                wrong.append(f"{method} {path} as {role}: {answer.status_code}")
    assert not wrong, "\n".join(wrong)


async def test_a_route_without_a_role_cannot_be_made(engine: Engine) -> None:
    for _, routes in PARTS:
        assert all(isinstance(route, Route) for route in routes.routes)
    app = create_app(engine)
    beside = [route for route in app.routes if not isinstance(route, Route)]
    # FastAPI keeps a router that was included as it is, or takes its routes: either way nothing else is there.
    bare = {str(path) for route in beside if (path := getattr(route, "path", None)) is not None}
    assert bare == NO_ROLE, "make routes with Routes.answers, which asks for a role, and name them in PARTS"
    assert len(beside) - len(NO_ROLE) in (0, len(PARTS))
    described = {
        (method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods
    }
    assert described == {(method, path.replace(":segment", "")) for method, path in listed()}
    with pytest.raises(TypeError, match="names no role"):

        @Routes().get("/new")
        async def new() -> None: ...


async def test_a_wrong_token_is_401_and_says_how_to_ask(engine: Engine) -> None:
    good = await made(engine, "admin")
    app = create_app(engine)
    wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
    headers = {
        "nothing": {},
        "a wrong secret": {"Authorization": f"Bearer {wrong}"},
        "another scheme": {"Authorization": f"Basic {good}"},
        "no token of ours": {"Authorization": "Bearer eyJhbGciOiJub25lIn0.e30."},
        "nothing after Bearer": {"Authorization": "Bearer "},
        "headers of an open server": {"X-Treadle-User": "root", "X-Treadle-Roles": "admin"},
    }
    async with client(app) as http:
        for what, given in headers.items():
            answer = await http.get("/runs", headers=given)
            assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED"), what
            assert answer.headers["www-authenticate"] == "Bearer"
            assert good not in answer.text
        assert (await http.get("/runs", params={"token": good})).status_code == 401, "never in an address"
        assert (await http.get("/runs", headers={"Authorization": f"bearer {good}"})).status_code == 200


async def test_a_token_is_good_until_it_expires() -> None:
    clock = VirtualClock()
    async with Engine("memory:", clock=clock) as engine:
        token = await made(engine, "viewer", expires="2s")
        async with client(create_app(engine), token) as http:
            assert (await http.get("/runs")).status_code == 200
            await clock.advance(1.9)
            assert (await http.get("/runs")).status_code == 200
            await clock.advance(0.2)
            assert (await http.get("/runs")).status_code == 401


async def test_made_and_revoked_count_at_every_server_within_a_second(engine: Engine) -> None:
    async with client(create_app(engine)) as here, client(create_app(engine)) as there:
        assert (await there.get("/runs")).status_code == 200, "open: nobody made a token"
        body = {"user": "ann", "roles": ["admin"], "expires": "never"}
        answer = await here.post("/tokens", json=body)
        assert answer.status_code == 201
        assert answer.json().keys() >= {"id", "token", "user", "roles", "expires_at"}
        mine = {"Authorization": f"Bearer {answer.json()['token']}"}
        await until(lambda: there.get("/runs"), 401)
        assert (await there.get("/runs", headers=mine)).status_code == 200
        assert (await there.delete(f"/tokens/{answer.json()['id']}", headers=mine)).status_code == 200
        await until(lambda: here.get("/runs", headers=mine), 401)
        await until(lambda: there.get("/runs", headers=mine), 401)
        assert (await here.get("/runs")).status_code == 401, "a store that had a token is never open again"


async def until(ask: Any, status: int) -> None:
    deadline = time.monotonic() + 1
    while (await ask()).status_code != status:
        assert time.monotonic() < deadline, f"not {status} within a second"
        await asyncio.sleep(0.02)


async def test_a_token_is_shown_once_and_kept_as_a_hash(engine: Engine) -> None:
    token = await made(engine, "admin")
    secret = token.rpartition("_")[2]
    async with client(create_app(engine), token) as http:
        (row,) = (await http.get("/tokens")).json()["items"]
        assert secret not in str(row)
        assert "hash" not in row
        assert (await http.delete("/tokens/nope")).json()["code"] == "TOKEN_NOT_FOUND"
    kept = await engine.read(lambda reads: str(reads.documents("token")))
    assert secret not in kept
    assert tokens.hash_of(token) in kept


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"user": "ann", "roles": []}, "roles"),
        ({"user": "ann", "roles": ["two words"]}, "roles"),
        ({"user": "treadle:core", "roles": ["admin"]}, "user"),
        ({"user": " ann", "roles": ["admin"]}, "user"),
        ({"user": "ann", "roles": ["admin"], "expires": "soon"}, "expires"),
        ({"user": "ann", "roles": ["admin"], "expires": "2020-01-01T00:00:00Z"}, "expires"),
        ({"user": "ann", "roles": ["admin"], "secret": "x"}, "secret"),
    ],
)
async def test_a_token_that_cannot_be_is_422_and_closes_nothing(
    http: httpx.AsyncClient, body: dict[str, Any], where: str
) -> None:
    answer = await http.post("/tokens", json=body)
    assert (answer.status_code, answer.json()["where"]) == (422, where)
    assert (await http.get("/runs")).status_code == 200


async def test_me_says_what_one_may_do(engine: Engine) -> None:
    app = create_app(engine)
    async with client(app) as http:
        mine = (await http.get("/me")).json()
        assert (mine["user"], mine["access"]) == ("local", "open")
        assert mine["may"] == ["viewer", "operator", "task", "admin"]
    token = await made(engine, "operator", "boss", workflow="shop/")
    async with client(app, token) as http:
        mine = (await http.get("/me")).json()
        assert mine["access"] == "tokens"
        assert mine["may"] == ["viewer", "operator", "task"]
        assert (mine["task_roles"], mine["workflow"]) == (["boss"], "shop/")


async def test_only_an_admin_acts_as_somebody_else(engine: Engine) -> None:
    app = create_app(engine)
    other = {"X-Treadle-Act-As": "bob"}
    async with client(app, await made(engine, "operator")) as http:
        assert (await http.get("/me", headers=other)).status_code == 403
        ignored = {"X-Treadle-User": "bob", "X-Treadle-Roles": "admin"}
        assert (await http.get("/me", headers=ignored)).json()["user"] == "operator"
    async with client(app, await made(engine, "admin")) as http:
        assert (await http.get("/me", headers=other)).json()["user"] == "bob"
        own = {"X-Treadle-Act-As": "treadle:core"}
        assert (await http.get("/me", headers=own)).status_code == 403


async def test_the_token_of_a_file_is_an_admins_and_is_not_stored(engine: Engine) -> None:
    app = create_app(engine, access=AccessOptions(token="from a file, long enough"))
    async with client(app, "from a file, long enough") as http:
        assert (await http.get("/tokens")).json()["items"] == []
    async with client(app) as http:
        assert (await http.get("/runs")).status_code == 401


# --- tokens that are limited to some workflows ---


@pytest.fixture
async def limited(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    """Runs of two workflows, and somebody who may see one of them."""
    app = create_app(engine)
    async with client(app) as http:
        await deployed(http, greet=FLOW, approval=APPROVAL, other=FLOW.replace("greet", "other"))
        for workflow in ("greet", "other", "approval"):
            await http.post("/runs", json={"workflow": workflow, "id": f"{workflow}-1"})
        await http.post("/runs/approval-1/wait", params={"timeout": 30})
        await http.post("/runs/greet-1/wait", params={"timeout": 30})
    async with client(app, await made(engine, "operator", "boss", workflow="gre")) as http:
        yield http


async def test_a_limited_token_sees_and_steers_only_its_workflows(
    limited: httpx.AsyncClient, engine: Engine
) -> None:
    assert [row["id"] for row in (await limited.get("/runs")).json()["items"]] == ["greet-1"]
    assert [row["name"] for row in (await limited.get("/definitions")).json()["items"]] == ["greet"]
    assert (await limited.get("/tasks")).json()["items"] == []
    assert (await limited.get("/runs/greet-1")).status_code == 200
    assert (await limited.post("/runs", json={"workflow": "greet"})).status_code == 201
    task = (await engine.tasks())[0]["id"]
    for method, path, body, missing in (
        ("GET", "/runs/{}", None, ("other-1", "nope")),
        ("GET", "/runs/{}/events", None, ("other-1", "nope")),
        ("POST", "/runs/{}/cancel", {}, ("other-1", "nope")),
        ("POST", "/runs", {"workflow": "{}"}, ("other", "nope")),
        ("GET", "/definitions/{}", None, ("other", "nope")),
        ("GET", "/tasks/{}", None, (task, "nope")),
        ("POST", "/tasks/{}/claim", None, (task, "nope")),
        ("GET", "/diff?a=greet-1&b={}", None, ("other-1", "nope")),
    ):
        told = []
        for name in missing:
            filled = None if body is None else {key: value.format(name) for key, value in body.items()}
            answer = await limited.request(method, path.format(name), json=filled)
            assert answer.status_code in (404, 422), f"{method} {path} {name}: {answer.text}"
            told.append(answer.text.replace(name, "it"))
        assert told[0] == told[1], "what may not be seen is answered as what is not there"
    assert (await engine.run("other-1")).id == "other-1"


async def test_a_limited_token_is_refused_what_is_about_all(limited: httpx.AsyncClient) -> None:
    for method, path in (("GET", "/stats"), ("GET", "/workers"), ("POST", "/events"), ("POST", "/signals")):
        body = {"event": "e", "reference": "r", "name": "n"} if method == "POST" else None
        asked = (
            {key: body[key] for key in (("event",) if path == "/events" else ("reference", "name"))}
            if body
            else None
        )
        assert (await limited.request(method, path, json=asked)).status_code == 403


async def test_somebody_with_a_tasks_role_sees_the_tasks_of_that_role(engine: Engine) -> None:
    app = create_app(engine)
    async with client(app) as http:
        await deployed(http, approval=APPROVAL)
        await http.post("/runs", json={"workflow": "approval", "id": "p"})
        await http.post("/runs/p/wait", params={"timeout": 30})
    (task,) = await engine.tasks()
    for roles, seen in ((("boss",), True), (("clerk",), False), (("viewer",), True)):
        async with client(app, await made(engine, *roles)) as http:
            assert bool((await http.get("/tasks")).json()["items"]) is seen
            assert (await http.get(f"/tasks/{task['id']}")).status_code == (200 if seen else 403)
            claimed = (await http.post(f"/tasks/{task['id']}/claim")).status_code
            assert claimed == (200 if roles == ("boss",) else 403)


# --- as processes ---


def treadle(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["-m", "treadle.cli", *arguments]
    return nursery.run(command, cwd=folder)


def test_a_server_beyond_loopback_starts_once_there_is_a_token(tmp_path: Path) -> None:
    refused = treadle(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0", "--store", "sqlite:///t.db")
    assert refused.returncode != 0
    assert "treadle token create" in refused.stderr
    token = treadle(
        tmp_path, "token", "create", "--user", "ann", "--role", "admin", "--store", "sqlite:///t.db"
    )
    with serving(tmp_path, "--host", "0.0.0.0") as (_, said):
        assert said["access"] == "tokens"
        url = said["url"].replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/api/v1/runs").status_code == 401
        mine = {"Authorization": f"Bearer {token.stdout.strip()}"}
        assert httpx.get(f"{url}/api/v1/runs", headers=mine).status_code == 200


def test_the_command_line_makes_and_revokes_beside_a_server(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, said):
        runs = f"{said['url']}/api/v1/runs"
        assert httpx.get(runs).status_code == 200
        token = treadle(
            tmp_path, "token", "create", "--user", "ann", "--role", "viewer", "--store", "sqlite:///t.db"
        )
        mine = {"Authorization": f"Bearer {token.stdout.strip()}"}
        deadline = time.monotonic() + 1
        while httpx.get(runs).status_code != 401:
            assert time.monotonic() < deadline
        assert httpx.get(runs, headers=mine).status_code == 200
        id = token.stdout.split("_")[1]
        assert treadle(tmp_path, "token", "revoke", id, "--store", "sqlite:///t.db").returncode == 0
        deadline = time.monotonic() + 1
        while httpx.get(runs, headers=mine).status_code != 401:
            assert time.monotonic() < deadline
