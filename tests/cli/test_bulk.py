"""Many runs at once: side by side, with a summary, chosen by filters, stopped and gone on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

Write = Callable[[str, str], Path]

# Fails as long as there is no file `ok`; with it, each run takes half a second.
SLOW = """
metadata: {name: slow, version: "1"}
workflow:
  - step: work
    tool: {kind: shell, command: "test -e ok && echo >> begun && until test $(wc -l < begun) -ge $(cat ok); do sleep 0.02; done"}
"""


def failed(cli: Cli, write: Write, count: int) -> list[str]:
    write("slow.yaml", SLOW)
    ids = [f"slow-{number}" for number in range(count)]
    for id in ids:
        cli("run", "slow.yaml", "--id", id, code=1)
    write("ok", "1")
    return ids


def test_runs_are_retried_side_by_side_with_a_summary(cli: Cli, write: Write) -> None:
    """Each ends when all have begun: one after the other they would never end."""
    ids = failed(cli, write, 12)
    write("ok", "12")
    answer = cli("retry", "--all-failed", "--json", code=0)
    assert [document["id"] for document in answer.lines] == ids
    assert "12 runs: 12 completed" in answer.err


def test_one_run_is_told_as_one(cli: Cli, write: Write) -> None:
    failed(cli, write, 1)
    assert "1 run; nothing was changed" in cli("retry", "--all-failed", "--dry-run", code=0).err
    assert "1 run: 1 completed" in cli("retry", "--all-failed", code=0).err


def test_a_rehearsal_names_the_runs_and_changes_nothing(cli: Cli, write: Write) -> None:
    failed(cli, write, 2)
    answer = cli("retry", "--all-failed", "--dry-run", "--json", code=0)
    assert [document["status"] for document in answer.lines] == ["failed", "failed"]
    assert "2 runs; nothing was changed" in answer.err
    assert {row["status"] for row in cli("list", "--json").json} == {"failed"}


def test_runs_are_chosen_by_error_and_time(cli: Cli, write: Write) -> None:
    ids = failed(cli, write, 2)
    (code,) = {row["error"]["code"] for row in cli("list", "--json").json}
    assert (
        "no run matches"
        in cli("retry", "--all-failed", "--error", "OTHER", "--dry-run").err
        + cli("retry", "--all-failed", "--until", "1d").err
    )
    found = cli("retry", "--error", code, "--since", "1h", "--dry-run", "--json").lines
    assert [document["id"] for document in found] == ids


def test_without_waiting_the_runs_go_on_later(cli: Cli, write: Write) -> None:
    (id,) = failed(cli, write, 1)
    cli("retry", id, "--no-wait", "--json")
    assert cli("resume", id, "--json", code=0).json["status"] == "completed"


def test_the_same_command_goes_on_with_the_rest(cli: Cli, write: Write) -> None:
    """As after an interruption: what moved on is no longer what the filter finds."""
    ids = failed(cli, write, 3)
    cli("retry", ids[0], code=0)
    assert [document["id"] for document in cli("retry", "--all-failed", "--json", code=0).lines] == ids[1:]


@pytest.mark.parametrize("command", ["retry", "cancel", "fork"])
def test_who_did_it_is_recorded(cli: Cli, write: Write, command: str) -> None:
    write(
        "w.yaml",
        "dialect: process\nname: W\nsteps: [{call: {transport: python, code: 'raise ValueError()'}}]\n",
    )
    cli("run", "w.yaml", "--id", "w", code=3)
    more = ["--id", "w2"] if command == "fork" else []
    cli(command, "w", "--user", "ann", "--json", *more)
    id = "w2" if command == "fork" else "w"
    assert '"ann"' in cli("journal", id, "--json").out
    assert cli("replay", id, "--json", code=0).json["equal"]


def test_a_run_is_found_by_the_beginning_of_its_id(cli: Cli, write: Write) -> None:
    write("ok", "1")
    write("slow.yaml", SLOW)
    for id in ("abcd-1", "abcd-2", "xyz-1"):
        cli("run", "slow.yaml", "--id", id, code=0)
    assert cli("show", "xyz", "--json", code=0).json["id"] == "xyz-1"
    refused = cli("show", "abcd", "--json", code=2).error
    assert (refused["code"], "abcd-1" in refused["message"], "abcd-2" in refused["message"]) == (
        "USAGE",
        True,
        True,
    )
    assert cli("show", "nobody", "--json", code=2).error["code"] == "RUN_NOT_FOUND"
