"""Schedules over HTTP: the rows and refusals of the command line."""

from __future__ import annotations

from pathlib import Path

import httpx

from treadle import Engine
from treadle.server.app import create_app

from .test_schedules import QUICK


async def test_schedules_over_http(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(QUICK)
    async with Engine("memory:") as engine:
        engine.deploy(str(tmp_path))
        transport = httpx.ASGITransport(app=create_app(engine), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as http:
            said = {"name": "nightly", "workflow": "quick", "cron": "30 2 * * *", "catch_up": "all"}
            made = await http.post("/schedules", json=said)
            assert made.status_code == 201
            assert made.json()["catch_up"] == "all"
            assert (await http.post("/schedules", json=said)).status_code == 200
            other = await http.post("/schedules", json={**said, "cron": "31 2 * * *"})
            assert (other.status_code, other.json()["code"]) == (409, "SCHEDULE_EXISTS")
            for wrong, code in (
                ({"workflow": "nothing"}, "UNKNOWN_WORKFLOW"),
                ({"cron": "x"}, "BAD_CRON"),
                ({"timezone": "Mars/Olympus"}, "BAD_TIMEZONE"),
                ({"often": 1}, "INPUT_INVALID"),
            ):
                refused = await http.post("/schedules", json={**said, "name": "n", **wrong})
                assert (refused.status_code, refused.json()["code"]) == (422, code)
            assert (await http.get("/schedules")).json()["items"] == [made.json()]
            paused = await http.patch("/schedules/nightly", json={"paused": True})
            assert paused.json()["paused"] is True
            assert paused.json()["next"] == []
            run = await http.post("/schedules/nightly/trigger")
            assert run.status_code == 201
            assert run.json()["id"].startswith("nightly@")
            filled = await http.post("/schedules/nightly/backfill", params={"since": "49h"})
            assert len(filled.json()["runs"]) in (2, 3)
            ahead = await http.post("/schedules/preview", json={"every": "1h", "count": 2})
            assert len(ahead.json()["next"]) == 2
            assert (await http.delete("/schedules/nightly")).status_code == 200
            assert (await http.get("/schedules/nightly")).status_code == 404
