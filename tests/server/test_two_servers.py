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
        ids = {row["id"] for row in httpx.get(f"{api}/runs", timeout=60).json()["items"]}
        assert ids == {"a", "p"}
        assert httpx.post(f"{api}/runs/p/cancel", timeout=60).json()["status"] == "cancelled"
