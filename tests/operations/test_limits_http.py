"""Limits over HTTP and on the command line: the place in line, the refusal, what operators set."""

from __future__ import annotations

from pathlib import Path

import httpx

from treadle import Engine
from treadle.server.app import create_app

from .test_limits import TEXTS


async def test_limits_over_http(tmp_path: Path) -> None:
    for name in ("gate", "short"):
        (tmp_path / f"{name}.yaml").write_text(TEXTS[name])
    async with Engine("memory:") as engine:
        engine.deploy(str(tmp_path))
        transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
            for n in range(3):
                made = await http.post("/runs", json={"workflow": "short", "id": f"r{n}", "priority": n})
                assert made.status_code == 201
            assert (made.json()["status"], made.json()["queued"]["position"]) == ("queued", 1)
            full = await http.post("/runs", json={"workflow": "short", "id": "r3"})
            assert (full.status_code, full.json()["code"]) == (429, "QUEUE_FULL")
            assert int(full.headers["Retry-After"]) >= 1
            assert full.json()["details"]["waiting"] == 2
            assert (await http.get("/runs/r3")).status_code == 404
            rows = (await http.get("/runs", params={"status": "queued"})).json()["items"]
            assert [(row["id"], row["queued"]["position"]) for row in rows] == [("r2", 1), ("r1", 2)]
            patched = await http.post("/runs/r1/patch", json={"data": {"x": 1}})
            assert (patched.status_code, patched.json()["code"]) == (409, "RUN_QUEUED")
            waited = await http.post("/runs/r1/wait", params={"timeout": 0})
            assert waited.json()["status"] == "queued"

            said = await http.put("/limits/short", json={"concurrency": 2, "queue": 9})
            assert (said.json()["origin"], said.json()["running"], said.json()["queued"]) == (
                "operator",
                2,
                1,
            )
            assert [row["workflow"] for row in (await http.get("/limits")).json()["items"]] == [
                "gate",
                "short",
            ]
            wrong = await http.put("/limits/short", json={"rate": "often"})
            assert (wrong.status_code, wrong.json()["code"]) == (422, "LIMITS_INVALID")
            assert (await http.get("/limits/short")).json()["limits"] == {"concurrency": 2, "queue": 9}
            removed = await http.delete("/limits/short")
            assert removed.json()["limits"] == {"concurrency": 1, "queue": 2}
            assert (await http.delete("/limits/short")).status_code == 404
            priority = await http.post("/runs", json={"workflow": "gate", "priority": 101})
            assert priority.status_code == 422
