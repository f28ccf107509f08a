"""Several servers on one store: any of them takes any request, and the next takes over when the owner dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import APPROVAL, FLOW
from .test_serve import serving


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.db"
    url: str = request.getfixturevalue("pg_store")
    return url


def held(url: str) -> tuple[int, int]:
    found: dict[str, Any] = httpx.get(f"{url}/readyz", timeout=30).json()["shards"]
    return found["held"], found["of"]


def servers(url: str) -> dict[str, dict[str, Any]]:
    """Who is there, by name, as one server tells it."""
    answer = httpx.get(f"{url}/api/v1/servers", timeout=30)
    assert answer.status_code == 200, answer.text
    found: dict[str, dict[str, Any]] = {row["name"]: row for row in answer.json()["items"]}
    return found


def until(so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_any_server_takes_any_request_and_the_next_takes_over(store: str, tmp_path: Path) -> None:
    (tmp_path / "flow.yaml").write_text(FLOW)
    (tmp_path / "approval.yaml").write_text(APPROVAL)
    options = (
        "--store",
        store,
        "--deploy",
        str(tmp_path / "flow.yaml"),
        "--deploy",
        str(tmp_path / "approval.yaml"),
    )
    with serving(tmp_path, *options) as (first, said), serving(tmp_path, *options) as (_, other):
        if store.startswith("sqlite"):
            assert (held(said["url"]), held(other["url"])) == ((1, 1), (0, 1)), "a file has one owner"
        else:
            half = (32, 64)
            until(lambda: held(said["url"]) == half == held(other["url"]), "members share evenly")
        names = {said["name"]: said["url"], other["name"]: other["url"]}
        for url in names.values():
            until(lambda url=url: servers(url).keys() == names.keys(), "every server tells of every server")
        told, told_elsewhere = servers(said["url"]), servers(other["url"])
        assert {name: row["url"] for name, row in told.items()} == names
        assert {row["status"] for row in told.values()} == {"live"}
        for fact in ("id", "url", "version", "started_at", "shards"):
            at_one = {name: row[fact] for name, row in told.items()}
            assert at_one == {name: row[fact] for name, row in told_elsewhere.items()}, fact
        assert sum(row["shards"]["held"] for row in told.values()) == held(said["url"])[1]
        api = f"{other['url']}/api/v1"
        assert httpx.post(f"{api}/runs", json={"workflow": "greet", "id": "a"}, timeout=60).status_code == 201
        assert httpx.post(f"{api}/runs", json={"workflow": "greet", "id": "a"}, timeout=60).status_code == 200
        refused = httpx.post(
            f"{api}/runs", json={"workflow": "greet", "id": "a", "input": {"name": "x"}}, timeout=60
        )
        assert (refused.status_code, refused.json()["code"]) == (409, "RUN_EXISTS")
        assert httpx.post(f"{api}/runs/a/wait", timeout=90).json()["status"] == "completed"
        httpx.post(f"{api}/runs", json={"workflow": "approval", "id": "p"}, timeout=60)
        assert httpx.get(f"{said['url']}/api/v1/runs/p", timeout=60).json()["workflow"] == "approval"
        first.kill()
        first.wait(30)
        until(lambda: len(set(held(other["url"]))) == 1, "nobody took over")
        until(
            lambda: servers(other["url"])[said["name"]]["status"] == "lost",
            "a server that is gone is not there",
        )
        assert servers(other["url"])[said["name"]]["shards"]["held"] == 0
        ids = {row["id"] for row in httpx.get(f"{api}/runs", timeout=60).json()["items"]}
        assert ids == {"a", "p"}
        assert httpx.post(f"{api}/runs/p/cancel", timeout=60).json()["status"] == "cancelled"
        assert httpx.delete(f"{api}/servers/nobody", timeout=60).json()["code"] == "SERVER_NOT_FOUND"
        mine = servers(other["url"])[other["name"]]["id"]
        assert httpx.delete(f"{api}/servers/{mine}", timeout=60).json()["code"] == "SERVER_LIVE"
        gone = servers(other["url"])[said["name"]]["id"]
        assert httpx.delete(f"{api}/servers/{gone}", timeout=60).json()["id"] == gone
        assert servers(other["url"]).keys() == {other["name"]}
        rows = httpx.get(f"{api}/audit?action=server.remove", timeout=60).json()["items"]
        assert [(row["target"], row["status"]) for row in rows] == [(gone, "ok")]
