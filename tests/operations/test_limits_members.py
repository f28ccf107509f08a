"""Limits where several members share one PostgreSQL: one of them gives places away, whoever is killed when."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from .test_limits import GATE
from .test_schedule_crashes import asked, gone, serve, serve_several

LIMIT, RUNS = 2, 8


def test_three_members_keep_a_limit_through_kills_and_no_place_is_lost(pg_store: str, tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_text(GATE)
    servers = serve_several(tmp_path, pg_store, 3)
    try:
        urls = [url for _, url in servers]
        asked(urls, "POST", "/definitions", json={"files": [{"path": "gate.yaml", "text": GATE}]})
        for n in range(RUNS):
            # Each at another server first, so that all of them start some.
            first = urls[n % 3 :] + urls[: n % 3]
            made = asked(first, "POST", "/runs", json={"workflow": "gate", "id": f"r{n}"})
            assert made["status"] in ("queued", "waiting"), made
        for done in range(0, RUNS, LIMIT):
            ready = begun(urls, done)
            if done // LIMIT < 3:
                # One after another goes, whoever gives the places away among them; another comes in its place.
                gone(servers[done // LIMIT][0])
                servers[done // LIMIT] = serve(tmp_path, pg_store)
                urls = [url for _, url in servers]
            for run in ready:
                asked(urls, "POST", f"/runs/{run}/signal", json={"name": "go", "key": "once"})
        begun(urls, RUNS)
        (row,) = asked(urls, "GET", "/limits")["items"]
        assert (row["running"], row["queued"], row["lines"]) == (0, 0, [])
        assert at_once(urls) == LIMIT
    finally:
        for process, _ in servers:
            gone(process)


def begun(urls: list[str], done: int) -> list[str]:
    """The runs that go on once so many are over: as many as may, and never more."""
    until = time.monotonic() + 60
    while True:
        rows = asked(urls, "GET", "/runs", params={"limit": 1000})["items"]
        going = [row["id"] for row in rows if row["status"] == "waiting"]
        assert len(going) <= LIMIT, going
        ended = sum(row["status"] == "completed" for row in rows)
        if ended == done and len(going) == min(LIMIT, RUNS - done):
            return going
        assert time.monotonic() < until, {row["id"]: row["status"] for row in rows}
        time.sleep(0.05)


def at_once(urls: list[str]) -> int:
    """The most runs that were under way at one instant, by the journals: each from the record that began it to the one
    that ended it. Every journal replays equal."""
    changes: list[tuple[str, int]] = []
    for n in range(RUNS):
        records: list[dict[str, Any]] = asked(urls, "GET", f"/runs/r{n}/journal")
        first = next(record for record in records if any(o["kind"] == "signal" for o in record["opened"]))
        changes += [(first["at"], 1), (records[-1]["at"], -1)]
        assert asked(urls, "POST", f"/runs/r{n}/replay")["equal"] is True
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most
