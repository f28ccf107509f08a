"""The served description of the API is true: whatever is asked, no answer is a failure, and each is one that the
description names, with its status, its media type and its shape. Requests are made by Schemathesis out of the document
itself, so a new route is asked without a line here. `make api` asks longer.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks

from treadle import Engine
from treadle.server import shapes
from treadle.server.app import create_app
from treadle.testing import assert_replays

from .conftest import APPROVAL, FLOW, deployed
from .test_serve import serving

# So many requests for each route, besides those for each of the rules that its parameters have.
EXAMPLES = int(os.environ.get("TREADLE_API_EXAMPLES", "4"))
BROKEN = FLOW.replace("greet", "broken").replace("'hello ' + name", "1 // 0")
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
# A stream that never ends: tests/server/test_api.py reads it.
ENDLESS = {("GET", "/api/v1/events/stream")}


@schemathesis.serializer("application/cbor")
def as_cbor(context: schemathesis.SerializationContext, value: Any) -> bytes:
    return cbor2.dumps(value)


def operations() -> list[tuple[str, str]]:
    described: dict[str, Any] = create_app(Engine("memory:", work=False)).openapi()["paths"]
    found = [(method.upper(), path) for path, methods in described.items() for method in methods]
    return [one for one in found if one not in ENDLESS]


class House:
    """A server with something in it: runs that ended and that wait, a task, a schedule, a hook."""

    def __init__(self, url: str, token: str) -> None:
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {token}"
        self.http = httpx.Client(
            base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=60
        )
        self.schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")
        runs = []
        for workflow in ("greet", "approval", "broken"):
            id = self.http.post("/runs", json={"workflow": workflow}).raise_for_status().json()["id"]
            runs.append(self.http.post(f"/runs/{id}/wait").raise_for_status().json()["id"])
        tasks = [row["id"] for row in self.http.get("/tasks").json()["items"]]
        self.http.post(
            "/schedules", json={"name": "hourly", "workflow": "greet", "every": "1h"}
        ).raise_for_status()
        self.http.put("/secrets/shop", json={"value": "s"}).raise_for_status()
        self.http.put("/hooks/orders", json={"workflow": "greet", "secret": "shop"}).raise_for_status()
        # What is there under each name that a path may have: else nothing would be found but 404.
        self.there = {
            "/runs": runs,
            "/tasks": tasks,
            "/schedules": ["hourly"],
            "/hooks": ["orders"],
            "/secrets": ["shop"],
            "/definitions": ["greet", "approval@1"],
            "/cells": ["greet"],
        }

    def ids(self, path: str) -> list[str]:
        return next((ids for name, ids in self.there.items() if path.startswith(f"/api/v1{name}/")), [])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("api")
    token = secrets.token_urlsafe(32)
    for name, text in {
        "greet.yaml": FLOW,
        "approval.yaml": APPROVAL,
        "broken.yaml": BROKEN,
        "token": token,
    }.items():
        Path(folder / name).write_text(text)
    options = ["--token-file", str(folder / "token")]
    for name in ("greet", "approval", "broken"):
        options += ["--deploy", f"{name}.yaml"]
    with serving(folder, *options) as (_, said):
        found = House(said["url"], token)
        try:
            yield found
        finally:
            found.http.close()
            found.session.close()


def quick(case: Any) -> None:
    """Nobody waits here."""
    if case.path.endswith("/wait"):
        case.query = {**(case.query or {}), "timeout": 0}
    if case.path.endswith("/work/take") and isinstance(case.body, dict) and case.body.get("wait"):
        case.body = {**case.body, "wait": 0}


@pytest.mark.parametrize(("method", "path"), operations(), ids=lambda part: str(part).removeprefix("/api/v1"))
def test_every_answer_is_one_that_the_description_names(house: House, method: str, path: str) -> None:
    operation = house.schema[path][method]
    ids = house.ids(path)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        mode = data.draw(st.sampled_from(list(schemathesis.GenerationMode)))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if ids and case.path_parameters and data.draw(st.integers(0, 3)):
            name = next(iter(case.path_parameters))
            case.path_parameters = {**case.path_parameters, name: data.draw(st.sampled_from(ids))}
        quick(case)
        case.call_and_validate(checks=CHECKS, session=house.session, timeout=60)

    ask()


def test_every_whole_number_that_may_be_sent_has_a_largest_one() -> None:
    """A store counts to 2**63 - 1, readers of JSON to 2**53 - 1; what is beyond is refused and never reaches it."""
    described = create_app(Engine("memory:", work=False)).openapi()
    found = list(whole_numbers([described["paths"], described["components"]["schemas"]], ""))
    answers = set(dir(shapes))
    asked = [(where, schema) for where, schema in found if where.partition(".")[0] not in answers]
    assert len(asked) > 10
    assert not [where for where, schema in asked if schema.get("maximum", 2**53) >= 2**53]


def whole_numbers(value: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema of a whole number in a request's parameters or body, and where it stands."""
    if isinstance(value, list):
        for item in value:
            yield from whole_numbers(item, where)
    elif isinstance(value, dict):
        if value.get("type") == "integer" and "const" not in value:
            yield where, value
        for name, item in value.items():
            if name != "responses":
                yield from whole_numbers(item, f"{where}.{name}" if where else name)


async def test_a_number_beyond_what_a_store_counts_is_refused_by_name(http: httpx.AsyncClient) -> None:
    await deployed(http, greet=FLOW)
    id = (await http.post("/runs", json={"workflow": "greet"})).json()["id"]
    for path, name in ((f"/runs/{id}", "at"), (f"/runs/{id}/state", "at"), (f"/runs/{id}/journal", "after")):
        answer = await http.get(path, params={name: 2**63})
        assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (
            422,
            "INPUT_INVALID",
            name,
        )


async def test_a_character_that_a_database_cannot_hold_is_refused_and_stops_nobody(pg_store: str) -> None:
    """PostgreSQL keeps no NUL in a text. Said in an id, a name, a key or by an actor, it is refused everywhere."""
    async with Engine(pg_store) as engine:
        transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            files = [{"path": "greet.yaml", "text": FLOW}]
            (await http.post("/api/v1/definitions", json={"files": files})).raise_for_status()
            id = (await http.post("/api/v1/runs", json={"workflow": "greet"})).json()["id"]
            for method, path in operations():
                if "{" in path:
                    address = "/".join("a%00b" if "{" in part else part for part in path.split("/"))
                    body = {} if method == "GET" else {"json": BODIES.get(path.rpartition("/")[2], {})}
                    answer = await http.request(method, address, **body)
                    assert 400 <= answer.status_code < 500 or answer.json() in EMPTY, (
                        method,
                        path,
                        answer.text,
                    )
            for what, body in {
                "/runs": {"workflow": "greet", "reference": "a\0b"},
                f"/runs/{id}/signal": {"name": "go", "key": "a\0b"},
                f"/runs/{id}/cancel": {"reason": "a\0b"},
                "/events": {"event": "a\0b", "submission_id": "a\0b"},
                "/signals": {"reference": "a\0b", "name": "go"},
                "/definitions": {"files": [{"path": "b.yaml", "text": FLOW.replace("greet", '"gr\\0eet"')}]},
            }.items():
                answer = await http.post(f"/api/v1{what}", json=body)
                assert answer.status_code < 500, (what, answer.text)
            # Whoever asked is written down as the database can keep it.
            await engine.cancel(id, by="a\0b")
            assert "a\ufffdb" in [row["user"] for row in await engine.audit()]
            after = await http.post("/api/v1/runs", json={"workflow": "greet"})
            assert after.status_code == 201, "the engine goes on"
            await assert_replays(engine)


# What some routes need before they look at the id.
BODIES: dict[str, dict[str, Any]] = {
    "signal": {"name": "go"},
    "patch": {"data": {}},
    "assign": {"to": "ann"},
    "comment": {"text": "x"},
    "complete": {"data": 1},
}
EMPTY = [{"items": [], "next": None}]


async def test_a_parameter_that_does_not_exist_is_refused_by_name(http: httpx.AsyncClient) -> None:
    answer = await http.get("/runs", params={"statsu": "failed"})
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (
        422,
        "INPUT_INVALID",
        "statsu",
    )


async def test_files_without_a_definition_are_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/definitions", json={"files": [{"path": "notes.txt", "text": "hello"}]})
    assert (answer.status_code, answer.json()["code"], answer.json()["where"]) == (
        422,
        "INPUT_INVALID",
        "files",
    )


async def test_a_method_that_an_address_does_not_take_is_405_with_those_it_takes(
    http: httpx.AsyncClient,
) -> None:
    every = operations() + list(ENDLESS)
    addresses = {"/".join("x" if "{" in part else part for part in path.split("/")) for _, path in every}
    for address in sorted(addresses):
        taken = {method for method, path in every if is_at(address, path)}
        for method in sorted({"GET", "POST", "PUT", "PATCH", "DELETE"} - taken):
            answer = await http.request(method, f"http://localhost{address}")
            assert (answer.status_code, answer.json()["code"]) == (405, "METHOD"), (method, address)
            assert set(answer.headers["allow"].split(", ")) == taken


def is_at(address: str, path: str) -> bool:
    pairs = list(zip(address.split("/"), path.split("/"), strict=False))
    same = len(address.split("/")) == len(path.split("/"))
    return same and all("{" in part or given == part for given, part in pairs)
