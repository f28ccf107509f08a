"""`Idempotency-Key` on what changes something: the same request again gets the first answer (SERVER.md 13)."""

from __future__ import annotations

from typing import Any

import httpx

from treadle import Engine
from treadle.runtime import remembered
from treadle.server.app import create_app
from treadle.server.routing import Route
from treadle.testing import VirtualClock, assert_replays

from .conftest import APPROVAL, deployed

KEY = {"Idempotency-Key": "a key, of 1 to 200 characters"}


async def started(http: httpx.AsyncClient, id: str = "a") -> None:
    await deployed(http, approval=APPROVAL)
    assert (await http.post("/runs", json={"workflow": "approval", "id": id})).status_code == 201


async def test_the_same_request_again_gets_the_first_answer_and_does_nothing(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    await started(http)
    asked: dict[str, Any] = {"json": {"name": "go", "data": 1}, "headers": KEY}
    first = await http.post("/runs/a/signal", **asked)
    assert first.status_code == 200
    assert "Idempotency-Replayed" not in first.headers
    before = len(await (await engine.run("a")).journal())
    again = await http.post("/runs/a/signal", **asked)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(await (await engine.run("a")).journal()) == before
    other = await http.post("/runs/a/signal", json={"name": "go", "data": 2}, headers=KEY)
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_REUSED")
    forked = [await http.post("/runs/a/fork", json={}, headers=KEY) for _ in range(2)]
    assert [one.status_code for one in forked] == [201, 201]
    assert forked[0].headers["Location"] == forked[1].headers["Location"], "one fork, not two"
    await assert_replays(engine)


async def test_another_path_or_another_person_is_another_request(
    http: httpx.AsyncClient, engine: Engine
) -> None:
    await started(http)
    await started(http, "b")
    asked: dict[str, Any] = {"json": {"reason": "enough"}, "headers": KEY}
    assert (await http.post("/runs/a/cancel", **asked)).json()["id"] == "a"
    assert (await http.post("/runs/b/cancel", **asked)).json()["id"] == "b"
    ann = {**KEY, "X-Treadle-User": "ann", "X-Treadle-Roles": "admin"}
    answer = await http.post("/runs/a/cancel", json={"reason": "no"}, headers=ann)
    assert answer.status_code == 200
    assert "Idempotency-Replayed" not in answer.headers


async def test_a_refusal_is_judged_anew(http: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {"json": {"name": "go"}, "headers": KEY}
    assert (await http.post("/runs/a/signal", **asked)).status_code == 404
    await started(http)
    assert (await http.post("/runs/a/signal", **asked)).status_code == 200


async def test_a_key_has_printable_characters(http: httpx.AsyncClient) -> None:
    await started(http)
    for key in ("", "x" * 201, "a\tb"):
        answer = await http.post("/runs/a/cancel", headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["where"]) == (422, "Idempotency-Key"), key


async def test_answers_are_forgotten_after_a_day() -> None:
    clock = VirtualClock()
    async with Engine("memory:", clock=clock) as engine:
        transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
            await started(http)
            await started(http, "b")
            await http.post("/runs/a/cancel", json={"reason": "x"}, headers=KEY)
            await clock.advance(25 * 3600)
            await http.post("/runs/b/cancel", json={"reason": "x"}, headers=KEY)
            kept = await engine.read(lambda reads: reads.documents(remembered.KIND))
            assert len(kept) == 1, "what is older goes with what comes"
            other = await http.post("/runs/a/cancel", json={"reason": "y"}, headers=KEY)
            assert other.status_code == 200


def test_every_post_that_changes_something_takes_a_key() -> None:
    """Those apart have keys of their own, change nothing, or answer what is never kept."""
    from treadle.server.app import PARTS
    from treadle.server.once import is_apart

    apart = {
        route.path_format
        for _, routes in PARTS
        for route in routes.routes
        if isinstance(route, Route) and "POST" in (route.methods or ()) and is_apart(route.path_format)
    }
    assert {path for path in apart if not path.startswith(("/work/", "/hooks/"))} == {
        "/runs",
        "/runs/{id}/wait",
        "/runs/{id}/replay",
        "/tokens",
        "/schedules/preview",
        "/apps/{app}/shadow",
    }
