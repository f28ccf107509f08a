"""What people see of a run and of a task: cut to a length, named, and with the command that helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]
Write = Callable[[str, str], Path]

LONG = """
dialect: process
name: Long
steps:
  - set: {state.rows: {$: start.rows}}
  - id: pay
    call: {transport: python, code: "raise ValueError(1)", on_failure: [{fail: no money}]}
"""
ASKS = """
dialect: process
name: Asks
tasks: {fill: {roles: [clerk], title: Fill it in}}
steps: [{task: fill}]
"""


def test_long_values_are_cut_and_full_shows_them(cli: Cli, write: Write) -> None:
    write("p.yaml", LONG)
    answer = cli(
        "run",
        "p.yaml",
        "--id",
        "long-1",
        "--input",
        str({"rows": list(range(500))}).replace("'", '"'),
        code=1,
    )
    assert "treadle fork long-1" in answer.err, "a retry of a failed process helps nobody"
    assert "480 more; --full shows all" in cli("show", "long-1", code=0).out
    assert "499" in cli("show", "long-1", "--full", code=0).out
    assert cli("show", "long-1", "--json", code=0).json["state"]["rows"] == list(range(500))


def test_an_error_names_its_step_with_the_path_beside_it(cli: Cli, write: Write) -> None:
    write(
        "p.yaml",
        "dialect: process\nname: P\nsteps: [{id: pay, call: {transport: python, code: 'raise ValueError(1)'}}]\n",
    )
    assert "pay (steps[0]): " in cli("run", "p.yaml", "--id", "p-1", code=3).err


def test_a_task_is_claimed_and_completed_in_one_command_by_the_beginning_of_its_id(
    cli: Cli, write: Write
) -> None:
    write("a.yaml", ASKS)
    cli("run", "a.yaml", "--id", "a-1", code=3)
    (row,) = cli("tasks", "--json", code=0).json
    assert "Fill it in" in cli("tasks", code=0).out
    who = ["--user", "ann", "--role", "clerk", "--data", "1"]
    assert cli("task", "complete", row["id"][:8], *who, "--json", code=1).error["class"] == "authorization"
    assert (
        cli("task", "complete", row["id"][:8], *who, "--claim", "--json", code=0).json["status"]
        == "completed"
    )
