"""`treadle schedule …`: add, look, steer, fill in the past."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli

QUICK = """
dialect: process
name: quick
version: "1"
steps:
  - set: {state.done: true}
"""


@pytest.fixture
def schedule(cli: Cli, folder: Path) -> Any:
    (folder / "quick.yaml").write_text(QUICK)
    cli("deploy", "quick.yaml", code=0)

    def ask(*arguments: str, code: int = 0) -> Any:
        return cli("schedule", *arguments, "--json", code=code).json

    return ask


def test_a_schedule_is_added_shown_paused_changed_triggered_and_removed(schedule: Any) -> None:
    said = ("--cron", "30 2 * * *", "--timezone", "Europe/Zurich", "-i", "day=1")
    row = schedule("add", "nightly", "quick", *said)
    assert row["input"] == {"day": 1}
    assert len(row["next"]) == 5
    assert row["overlap"] == "skip"
    assert schedule("add", "nightly", "quick", *said) == row
    assert schedule("list") == [row]
    refused = schedule("add", "nightly", "quick", "--every", "1h", code=2)
    assert refused["error"]["code"] == "SCHEDULE_EXISTS"
    assert schedule("pause", "nightly")["next"] == []
    assert schedule("resume", "nightly")["next"] == row["next"]
    assert schedule("change", "nightly", "--every", "1h")["every"] == "1h"
    run = schedule("trigger", "nightly")
    assert run["id"].startswith("nightly@")
    assert run["input"] == {"day": 1}
    assert len(schedule("backfill", "nightly", "--since", "3h")["runs"]) == 3
    assert schedule("remove", "nightly") == {"name": "nightly", "removed": True}
    assert schedule("show", "nightly", code=2)["error"]["code"] == "SCHEDULE_NOT_FOUND"


def test_people_see_when_it_ticks_and_that_nobody_serves(cli: Cli, schedule: Any) -> None:
    added = cli("schedule", "add", "poll", "quick", "--every", "15m", code=0)
    assert "treadle serve" in added.err
    listed = cli("schedule", "list", code=0)
    assert "every 15m" in listed.out


def test_a_preview_needs_no_store(cli: Cli, folder: Path) -> None:
    ticks = cli("schedule", "preview", "--every", "1h", "--count", "3", "--json", code=0).json["next"]
    assert len(ticks) == 3
    assert not list(folder.iterdir())
    wrong = cli("schedule", "preview", "--cron", "nonsense", "--json", code=2)
    assert wrong.error["code"] == "BAD_CRON"
