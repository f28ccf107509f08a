"""replay, diff, record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .conftest import Cli
from .flows import ETL, RENEWAL, SCRIPT, TRIAGE

Write = Callable[[str, str], Path]


def test_replay_proves_equality(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    for id in ("a", "b"):
        cli("run", "flow.yaml", "--id", id, code=0)
    assert cli("replay", "a", "--json", code=0).json == {"id": "a", "equal": True}
    assert cli("replay", "--all", "--json", code=0).lines == [{"id": id, "equal": True} for id in ("a", "b")]
    assert "equal a" in cli("replay", "a", code=0).err


def test_replay_against_another_definition_shows_the_first_difference(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    write("other.yaml", RENEWAL.replace("roles: [underwriter]", "roles: [manager]"))
    cli("run", "p.yaml", "-i", "policy_id=1", "--id", "r", code=3)
    answer = cli("replay", "r", "--against", "other.yaml", "--json", code=1).json
    assert (answer["id"], answer["equal"], answer["seq"]) == ("r", False, 1)
    assert answer["expected"] != answer["got"]
    assert "differs" in cli("replay", "r", "--against", "other.yaml", code=1).err


def test_diff_of_equal_and_different_runs(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    for id, policy in (("a", 1), ("b", 1), ("c", 2)):
        cli("run", "p.yaml", "-i", f"policy_id={policy}", "--id", id, code=3)
    assert cli("diff", "a", "b", "--json", code=0).json == {
        "left": "a",
        "right": "b",
        "equal": True,
        "differences": [],
    }
    answer = cli("diff", "a", "c", "--json", code=1).json
    assert {"path": "input.policy_id", "left": 1, "right": 2} in answer["differences"]
    assert "input.policy_id" in cli("diff", "a", "c", code=1).out


def test_a_recorded_agent_run_runs_again_from_its_script(cli: Cli, write: Write) -> None:
    write("triage.yaml", TRIAGE)
    write("script.json", SCRIPT)
    first = cli("run", "triage.yaml", "--model", "scripted:script.json", "--id", "t1", "--json", code=0).json
    cli("record", "t1", "-o", "recorded.json", code=0)
    second = cli(
        "run", "triage.yaml", "--model", "scripted:recorded.json", "--id", "t2", "--json", code=0
    ).json
    assert second["state"] == first["state"]
    assert cli("diff", "t1", "t2", "--json", code=0).json["equal"] is True
    trace = cli("trace", "t1", "--json", code=0).json
    assert trace.keys() == {"steps", "edges", "sources", "usage"}
    assert [(step["node"], step["iteration"]) for step in trace["steps"]] == [
        ("gather", 1),
        ("gather", 2),
        ("draft", 1),
    ]
    assert "gather → draft" in cli("trace", "t1", code=0).err


def test_a_recorded_process_lists_the_answers_of_the_outside(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    document = cli("run", "p.yaml", "-i", "policy_id=1", "--id", "r", "--json", code=3).json
    task = document["waiting_for"][0]["id"]
    cli("task", "complete", task, "--user", "ann", "--role", "admin", "--data", '{"answer": "yes"}', code=3)
    cli("signal", "r", "documents", "--data", "[1]", code=0)
    script = cli("record", "r", "--json", code=0).json
    assert script["input"] == {"policy_id": 1}
    assert script["status"] == "completed"
    assert [(a["kind"], a["name"], a["status"], a["value"]) for a in script["answers"]] == [
        ("task", "approve", "ok", {"answer": "yes"}),
        ("signal", "documents", "ok", [1]),
    ]
