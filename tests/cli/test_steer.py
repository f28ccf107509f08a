"""patch, signal, cancel, retry, fork and tasks: on one run, on several, on all that a filter finds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.main import main
from treadle.engine import Engine

from .conftest import Cli
from .flows import ETL, GATED, RENEWAL, STALLING

Write = Callable[[str, str], Path]


# --- patch --------------------------------------------------------------------------------------


def test_patch_opens_a_gate_and_drives_the_run_on(cli: Cli, write: Write) -> None:
    write("g.yaml", GATED)
    document = cli("run", "g.yaml", "--id", "g1", "--json", code=3).json
    assert [wait["kind"] for wait in document["waiting_for"]] == ["gate"]
    document = cli("patch", "g1", "approved=true", "--json", code=0).json
    assert document["status"] == "completed"
    assert document["state"]["ctx"]["approved"] is True


def test_patch_takes_several_runs_and_an_object(cli: Cli, write: Write) -> None:
    write("g.yaml", GATED)
    for id in ("g1", "g2"):
        cli("run", "g.yaml", "--id", id)
    documents = cli("patch", "g1", "g2", "--ctx", '{"approved": true}', "--json", code=0).lines
    assert [(d["id"], d["status"]) for d in documents] == [("g1", "completed"), ("g2", "completed")]


@pytest.mark.parametrize("arguments", [["g1"], ["approved=true"], ["g1", "--ctx", "[1]"]])
def test_patch_without_run_or_keys_is_bad_usage(cli: Cli, arguments: list[str]) -> None:
    assert cli("patch", *arguments, "--json", code=2).error["code"] == "USAGE"


# --- signal -------------------------------------------------------------------------------------


def answered(cli: Cli, write: Write, id: str = "r7") -> str:
    """A renewal whose task is done, so that it awaits its documents."""
    write("p.yaml", RENEWAL)
    document = cli("run", "p.yaml", "-i", "policy_id=P-7", "--id", id, "--json", code=3).json
    (task,) = [str(wait["id"]) for wait in document["waiting_for"]]
    done = ["--user", "ann", "--role", "underwriter", "--data", '{"answer": "yes"}']
    cli("task", "claim", task, "--user", "ann", "--role", "underwriter", code=0)
    cli("task", "complete", task, *done, code=3)
    return task


def test_signal_drives_the_run_to_its_end(cli: Cli, write: Write) -> None:
    answered(cli, write)
    document = cli("signal", "r7", "documents", "--data", '{"pages": 3}', "--json", code=0).json
    assert document["result"] == {"renewed": "yes", "docs": {"pages": 3}}
    assert document["results"] == {"docs": {"pages": 3}}


def test_signal_reaches_runs_by_reference(cli: Cli, write: Write) -> None:
    answered(cli, write)
    error = cli("signal", "--reference", "P-7", "other", "--json", code=1).error
    assert error["code"] == "NOT_WAITING"
    (document,) = cli("signal", "--reference", "P-7", "documents", "--json", code=0).lines
    assert (document["id"], document["status"]) == ("r7", "completed")


def test_a_signal_with_a_wrong_expected_version_changes_nothing(cli: Cli, write: Write) -> None:
    answered(cli, write)
    before = cli("show", "r7", "--json").json
    error = cli("signal", "r7", "documents", "--expected-version", "99", "--json", code=1).error
    assert error["class"] == "consistency"
    assert cli("show", "r7", "--json").json == before
    version = str(before["version_no"])
    assert cli("signal", "r7", "documents", "--expected-version", version, code=0).code == 0


def test_a_signal_with_the_same_key_is_one_signal(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    cli("run", "p.yaml", "-i", "policy_id=1", "--id", "r", code=3)
    for _ in range(2):
        cli("signal", "r", "documents", "--key", "k1", "--json", code=3)
    kinds = [record["kind"] for record in cli("journal", "r", "--json").json]
    assert kinds.count("signal") == 1


def test_a_signal_to_nobody(cli: Cli) -> None:
    assert cli("signal", "nope", "x", "--json", code=2).error["code"] == "RUN_NOT_FOUND"
    assert cli("signal", "--json", code=2).error["code"] == "USAGE"
    assert cli("signal", "x", "--json", code=2).error["code"] == "USAGE"


# --- tasks --------------------------------------------------------------------------------------

ROW = {
    "id", "run", "workflow", "name", "type", "roles", "payload", "schema", "reference", "status", "assignee",
    "created_at", "due", "history",
}  # fmt: skip


def test_a_task_from_inbox_to_completion(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    document = cli("run", "p.yaml", "-i", "policy_id=P-7", "--id", "r7", "--json", code=3).json
    (row,) = cli("tasks", "--json", code=0).json
    assert row.keys() >= ROW
    assert row["id"] == document["waiting_for"][0]["id"]
    assert row["payload"] == {"policy": "P-7"}
    assert (row["status"], row["roles"], row["reference"]) == ("open", ["underwriter"], "P-7")
    task = row["id"]
    for filters, count in [
        (["--role", "underwriter"], 1),
        (["--role", "clerk"], 0),
        (["--assignee", "ann"], 0),
        (["--status", "completed"], 0),
        (["--reference", "P-7"], 1),
        (["--run", "r7"], 1),
        (["--run", "other"], 0),
    ]:
        assert len(cli("tasks", *filters, "--json", code=0).json) == count, filters

    forbidden = cli("task", "claim", task, "--user", "bob", "--role", "clerk", "--json", code=1).error
    assert forbidden["class"] == "authorization"
    assert cli("task", "show", task, "--json", code=0).json["status"] == "open"

    who = ["--user", "ann", "--role", "underwriter", "--json"]
    assert cli("task", "claim", task, *who, code=0).json["assignee"] == "ann"
    assert (
        cli("task", "comment", task, "--text", "looked", *who, code=0).json["history"][-1]["text"] == "looked"
    )
    assert cli("task", "release", task, *who, code=0).json["status"] == "open"
    boss = ["--user", "eve", "--role", "admin", "--json"]
    assert cli("task", "assign", task, "--to", "ann", *boss, code=0).json["assignee"] == "ann"

    bad = cli("task", "complete", task, "--data", "{}", *who, code=2).error
    assert bad["code"] == "INPUT_INVALID"
    document = cli("task", "complete", task, "--data", '{"answer": "yes"}', *who, code=3).json
    assert [wait["name"] for wait in document["waiting_for"]] == ["documents"]
    assert cli("tasks", "--json").json == []
    assert cli("task", "show", task, "--json").json["status"] == "completed"

    late = cli("task", "complete", task, "--data", '{"answer": "no"}', *who, code=0).json
    assert late["stale"] is True
    assert late["version_no"] == document["version_no"]
    assert "stale" in [event["type"] for event in cli("events", "r7", "--json").lines]


def test_tasks_for_people(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    cli("run", "p.yaml", "-i", "policy_id=P-7", "--id", "r7")
    assert "underwriter" in cli("tasks", code=0).out
    task = cli("tasks", "--json").json[0]["id"]
    assert '"policy": "P-7"' in cli("task", "show", task, code=0).out
    assert "claimed by ann" in cli("task", "claim", task, "--user", "ann", "--role", "admin", code=0).err
    assert cli("task", "show", "nope", "--json", code=2).error["code"] == "TASK_NOT_FOUND"


# --- retry, cancel, fork ------------------------------------------------------------------------


def test_retry_of_a_stalled_call(cli: Cli, write: Write) -> None:
    write("s.yaml", STALLING)
    answer = cli("run", "s.yaml", "--id", "s1", code=3)
    assert "treadle retry s1" in answer.err
    assert cli("retry", "s1", "--json", code=3).json["status"] == "stalled"
    document = cli("retry", "s1", "--skip", "--value", '{"total": 5}', "--json", code=0).json
    assert document["result"] == {"total": 5}


def test_retry_can_give_up(cli: Cli, write: Write) -> None:
    write("s.yaml", STALLING)
    cli("run", "s.yaml", "--id", "s1", code=3)
    document = cli("retry", "s1", "--fail", "no quote", "--json", code=1).json
    assert document["status"] == "failed"
    assert "no quote" in document["error"]["message"]


def test_all_failed_is_a_filter_for_bulk_work(cli: Cli, write: Write) -> None:
    write("s.yaml", STALLING)
    write("flow.yaml", ETL)
    cli("run", "flow.yaml", "--id", "fine")
    for id in ("s1", "s2"):
        cli("run", "s.yaml", "--id", id, code=3)
    value = ["--skip", "--value", '{"total": 1}', "--json"]
    documents = cli("retry", "--all-failed", "--workflow", "Stalling", *value, code=0).lines
    assert [(d["id"], d["status"]) for d in documents] == [("s1", "completed"), ("s2", "completed")]
    assert cli("retry", "--all-failed", "--json", code=0).out == ""


def test_one_refusal_in_bulk_does_not_stop_the_others(cli: Cli, write: Write) -> None:
    write("g.yaml", GATED)
    cli("run", "g.yaml", "--id", "g1")
    lines = cli("cancel", "nope", "g1", "--json", code=2).lines
    assert lines[0]["error"]["code"] == "RUN_NOT_FOUND"
    assert lines[1]["status"] == "cancelled"


def test_cancelling_a_child_does_not_wait_for_its_parent(cli: Cli, write: Write) -> None:
    write("child.yaml", "dialect: process\nname: Child\nsteps:\n  - await: {signal: never}\n")
    write(
        "parent.yaml",
        "dialect: process\nname: Parent\nsteps:\n  - fork: {a: [{child: {workflow: Child, on_failure: [{set: {state.a: 1}}]}}],"
        " b: [{wait: 1h}]}\n",
    )
    cli("deploy", "child.yaml", code=0)
    document = cli("run", "parent.yaml", "--id", "p", "--until-wait", "--json", code=3).json
    (child,) = document["children"]
    assert cli("cancel", child, "--json", code=0).json["status"] == "cancelled"


@pytest.mark.parametrize(
    "arguments",
    [
        ["retry"],
        ["retry", "r", "--skip", "--fail", "x"],
        ["retry", "r", "--value", "1"],
        ["retry", "r", "--input", "{oops"],
        ["cancel"],
        ["cancel", "r", "--all-failed"],
        ["fork", "a", "b", "--id", "c"],
        ["fork", "a", "--at", "0"],
        ["state", "a", "--at", "99999999999999999999"],
        ["signal", "a", "x", "--expected-version", "99999999999999999999"],
        ["list", "--limit", "99999999999999999999"],
        ["show", "\udcff"],
        ["run"],
        ["nonsense"],
        ["list", "--nonsense"],
        ["replay"],
        ["replay", "r", "--all"],
        ["graph", "r", "--format", "gif"],
        ["task", "assign", "t"],
    ],
)
def test_bad_usage_exits_2_with_a_json_error(cli: Cli, arguments: list[str]) -> None:
    answer = cli(*arguments, "--json", code=2)
    assert answer.error["code"] == "USAGE"
    assert answer.error["message"]
    assert "error:" in answer.err


def test_fork_goes_on_from_a_record(cli: Cli, write: Write) -> None:
    answered(cli, write)
    cli("signal", "r7", "documents", code=0)
    document = cli("fork", "r7", "--at", "1", "--id", "r7b", "--json", code=3).json
    assert document["id"] == "r7b"
    assert document["forked_from"] == {"run": "r7", "seq": 1}
    assert [wait["name"] for wait in document["waiting_for"]] == ["approve"]
    assert cli("show", "r7", "--json").json["status"] == "completed"
    assert cli("fork", "r7", "--at", "99", "--json", code=2).error["code"] == "NO_SUCH_RECORD"


def test_fork_under_another_definition(cli: Cli, write: Write) -> None:
    answered(cli, write)
    write("fixed.yaml", RENEWAL.replace("renewed:", "mended:"))
    cli("fork", "r7", "--definition", "fixed.yaml", "--id", "r7c", "--json", code=3)
    document = cli("signal", "r7c", "documents", "--json", code=0).json
    assert document["result"] == {"mended": "yes", "docs": None}


# --- beside another process ---------------------------------------------------------------------


async def test_beside_an_owner_commands_are_handed_over(
    folder: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write("p.yaml", RENEWAL)

    async def cli(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(main, [*arguments, "--json"])
        return int(ended.value.code or 0), json.loads(capsys.readouterr().out)

    async with Engine("sqlite:///treadle.db") as owner:
        code, document = await cli("run", "p.yaml", "-i", "policy_id=1", "--id", "r")
        assert (code, document["status"]) == (3, "waiting")
        assert owner.owns
        task = document["waiting_for"][0]["id"]
        code, answer = await cli("task", "claim", task, "--user", "bob")
        assert (code, answer["error"]["code"]) == (1, "FORBIDDEN")
        code, answer = await cli("task", "complete", task, "--data", '{"answer": 1}')
        assert (code, answer["error"]["code"]) == (1, "FORBIDDEN")
        assert "gives no user (--user) may not complete" in answer["error"]["message"]
        code, row = await cli("task", "claim", task, "--user", "ann", "--role", "admin")
        assert (code, row["assignee"]) == (0, "ann")
        code, _ = await cli("task", "complete", task, "--user", "ann", "--data", '{"answer": 1}')
        assert code == 3
        code, document = await cli("signal", "r", "documents")
        assert (code, document["status"]) == (0, "completed")
        code, answer = await cli("signal", "nope", "x")
        assert (code, answer["error"]["code"]) == (2, "RUN_NOT_FOUND")
        code, found = await cli("doctor")
        assert code == 0
        assert found["owner"] is not None


def test_a_failed_run_is_retried_under_a_mended_file(cli: Cli, folder: Path) -> None:
    text = 'metadata: {name: f}\nworkflow:\n  - step: s\n    tool: {kind: python, code: "def main():\\n    return 1 / 0"}\n'
    (folder / "f.yaml").write_text(text)
    (folder / "fixed.yaml").write_text(text.replace("1 / 0", "1 / 1"))
    assert cli("run", "f.yaml", "--id", "r", "--json", code=1).json["status"] == "failed"
    assert cli("retry", "r", "--definition", "fixed.yaml", "--json", code=0).json["status"] == "completed"
    assert cli("replay", "r", "--json", code=0).json["equal"] is True
