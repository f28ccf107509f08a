"""Times are shown with their zone, and read as they are shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from treadle.cli.moments import instant_ns, moment

Write = Callable[[str, str], Path]
AT = "2026-11-15T14:22:39.123456Z"


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_what_is_shown_can_be_given_back() -> None:
    shown = moment(AT)
    assert shown == "2026-11-15 09:22:39-05:00"
    assert instant_ns(shown, "--since") == instant_ns(shown[:19], "--since") == 1_794_752_559 * 10**9
    assert instant_ns("2026-11-15T14:22:39Z", "--since") == 1_794_752_559 * 10**9


@pytest.mark.usefixtures("new_york")
def test_lists_events_and_journals_are_in_one_zone(cli: Cli, write: Write) -> None:
    write("p.yaml", "dialect: process\nname: P\nsteps: [{set: {state.x: 1}}]\n")
    cli("run", "p.yaml", "--id", "p-1", code=0)
    for command in (["list"], ["show", "p-1"], ["events", "p-1"], ["journal", "p-1"]):
        local = cli(*command, code=0).out
        assert "-05:00" in local or "-04:00" in local, (command, local)
        assert "Z" in cli(*command, "--utc", code=0).out, command


def test_a_list_says_what_it_left_out_and_where_it_looked(cli: Cli, write: Write) -> None:
    assert "store sqlite:///treadle.db" in cli("list", code=0).err
    write("p.yaml", "dialect: process\nname: P\nsteps: [{fail: {message: no more paper, code: PAPER}}]\n")
    for id in ("p-1", "p-2"):
        cli("run", "p.yaml", "--id", id, code=1)
    assert "no run matches" in cli("list", "--status", "waiting", code=0).err
    answer = cli("list", "--limit", "1", code=0)
    assert "there are more" in answer.err
    assert "PAPER: no more paper" in answer.out
    assert "more" not in cli("list", "--limit", "2", code=0).err
    assert cli("list", "--until", "1d", "--json", code=0).json == []
