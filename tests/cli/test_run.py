"""run, resume and looking at runs: exit codes, the run document, one JSON document on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Cli
from .flows import BROKEN, ETL, FAILING, GATED, PARTIAL, RENEWAL, STALLING, TIMED

Write = Callable[[str, str], Path]

DOCUMENT = {
    "id", "workflow", "version", "digest", "dialect", "status", "input", "result", "error", "reference",
    "started_at", "ended_at", "version_no", "waiting_for", "state", "parent", "children", "stats",
}  # fmt: skip


def test_run_prints_the_run_document(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    document = cli("run", "flow.yaml", "--id", "etl-1", "-i", "day=2026-11-15", "--json", code=0).json
    assert document.keys() >= DOCUMENT
    assert document["id"] == "etl-1"
    assert document["workflow"] == "etl"
    assert document["dialect"] == "playbook"
    assert document["status"] == "completed"
    assert document["digest"].startswith("sha256:")
    assert document["stats"].keys() >= {"steps", "intents", "retries"}
    assert set(document["state"]) >= {"ctx", "steps", "tokens"}
    assert document["state"]["steps"]["load"]["status"] == "done"
    assert cli("show", "etl-1", "--json", code=0).json == document


def test_run_for_people_shows_progress_on_standard_error_only(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    answer = cli("run", "flow.yaml", "--id", "etl-1", code=0)
    assert "✓ extract" in answer.err
    assert "completed etl etl-1" in answer.err
    json.loads(answer.out)  # the result, and nothing else


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        (ETL, "completed", 0),
        (FAILING, "failed", 1),
        (GATED, "waiting", 3),
        (STALLING, "stalled", 3),
        (PARTIAL, "partial", 5),
    ],
)
def test_the_exit_code_says_how_it_went(cli: Cli, write: Write, text: str, status: str, code: int) -> None:
    write("flow.yaml", text)
    document = cli("run", "flow.yaml", "--id", "r", "--json", code=code).json
    assert document["status"] == status
    assert cli("show", "r", "--json").code == 0
    assert cli("resume", "r", "--json", code=code).json["status"] == status


def test_a_cancelled_run_exits_4(cli: Cli, write: Write) -> None:
    write("flow.yaml", GATED)
    cli("run", "flow.yaml", "--id", "r", code=3)
    assert cli("cancel", "r", "--reason", "wrong day", "--json", code=0).json["status"] == "cancelled"
    assert cli("cancel", "r", "--json", code=0).json["status"] == "cancelled"
    document = cli("resume", "r", "--json", code=4).json
    assert document["error"]["message"] == "wrong day"


def test_a_wait_says_what_for_and_how_to_go_on(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    answer = cli("run", "p.yaml", "-i", "policy_id=P-7", "--id", "r7", code=3)
    assert "waits for task approve" in answer.err
    assert "treadle task complete " in answer.err
    write("g.yaml", GATED)
    answer = cli("run", "g.yaml", "--id", "g1", code=3)
    assert "treadle patch g1 key=value" in answer.err


def test_a_failure_names_the_way_out(cli: Cli, write: Write) -> None:
    write("flow.yaml", FAILING)
    answer = cli("run", "flow.yaml", "--id", "f1", code=1)
    assert "✗ boom" in answer.err
    assert "treadle retry f1" in answer.err


def test_a_bad_definition_is_refused_with_all_its_problems_and_nothing_is_written(
    cli: Cli, write: Write, folder: Path
) -> None:
    write("bad.yaml", BROKEN)
    error = cli("run", "bad.yaml", "--json", code=2).error
    assert error["class"] == "definition"
    problems = error["details"]["problems"]
    assert [problem["severity"] for problem in problems] == ["error", "error"]
    assert {problem["line"] for problem in problems} == {5, 7}
    assert problems[0].keys() >= {
        "severity",
        "code",
        "rule",
        "message",
        "hint",
        "file",
        "line",
        "column",
        "path",
    }
    assert not list(folder.glob("treadle.db*"))


def test_the_same_id_again_is_the_same_run(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    first = cli("run", "flow.yaml", "--id", "r", "-i", "day=1", "--json", code=0).json
    assert cli("run", "flow.yaml", "--id", "r", "-i", "day=1", "--json", code=0).json == first
    assert cli("run", "flow.yaml", "--id", "r", "-i", "day=2", "--json", code=2).error["code"] == "RUN_EXISTS"


def test_a_key_makes_one_run(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    first = cli("run", "flow.yaml", "--key", "2026-11-15", "--json", code=0).json
    assert first["id"] == "etl/2026-11-15"
    assert cli("run", "flow.yaml", "--key", "2026-11-15", "--json", code=0).json["id"] == first["id"]
    assert len(cli("list", "--json").json) == 1


def test_inputs_are_merged_and_typed(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    write("start.yaml", "policy_id: 1\nrush: yes\n")
    document = cli(
        "run", "p.yaml", "--input", "@start.yaml", "-i", "policy_id=7", "-i", 'tags=["a"]', "--json", code=3
    ).json
    assert document["input"] == {"policy_id": 7, "rush": "yes", "tags": ["a"]}


def test_input_that_does_not_fit_makes_no_run(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    error = cli("run", "p.yaml", "-i", "other=1", "--json", code=2).error
    assert (error["class"], error["code"]) == ("user", "INPUT_INVALID")
    assert error["details"]["errors"]
    assert cli("list", "--json", code=0).json == []


def test_until_wait_returns_when_only_timers_are_left(cli: Cli, write: Write) -> None:
    write("t.yaml", TIMED)
    document = cli("run", "t.yaml", "--until-wait", "--json", code=3).json
    (wait,) = document["waiting_for"]
    assert wait["kind"] == "timer"
    assert wait["due"].endswith("Z")


@pytest.mark.parametrize("wait", ["120000d", "300000d", '{until: "2999-01-01T00:00:00Z"}'])
def test_a_wait_beyond_the_reach_of_the_clock_is_a_long_wait(cli: Cli, write: Write, wait: str) -> None:
    write("far.yaml", f"dialect: process\nname: Far\nsteps:\n  - wait: {wait}\n  - complete: {{}}\n")
    document = cli("run", "far.yaml", "--until-wait", "--json", code=3).json
    assert document["waiting_for"][0]["due"].startswith("2262-")


def test_stream_prints_one_event_a_line(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    events = cli("run", "flow.yaml", "--id", "r", "--stream", code=0).lines
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert "step.done" in [event["type"] for event in events]
    assert cli("events", "r", "--json", code=0).lines == events


def test_resume_without_ids_drives_what_is_unfinished(cli: Cli, write: Write) -> None:
    write("g.yaml", GATED)
    write("flow.yaml", ETL)
    assert cli("resume", "--json", code=0).out == ""
    cli("run", "flow.yaml", "--id", "done", code=0)
    for id in ("g1", "g2"):
        cli("run", "g.yaml", "--id", id, code=3)
    documents = cli("resume", "--json", code=3).lines
    assert [(d["id"], d["status"]) for d in documents] == [("g1", "waiting"), ("g2", "waiting")]
    assert [d["id"] for d in cli("resume", "g2", "done", "--json", code=3).lines] == ["g2", "done"]


def test_list_filters(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    write("bad.yaml", FAILING)
    write("p.yaml", RENEWAL)
    cli("run", "flow.yaml", "--id", "a")
    cli("run", "bad.yaml", "--id", "b")
    cli("run", "p.yaml", "--id", "c", "-i", "policy_id=P-7")

    def ids(*filters: str) -> list[str]:
        return [row["id"] for row in cli("list", "--json", *filters, code=0).json]

    assert ids() == ["c", "b", "a"]
    assert ids("--status", "failed") == ["b"]
    assert ids("--status", "failed", "--status", "completed") == ["b", "a"]
    assert ids("--workflow", "etl") == ["a"]
    assert ids("--reference", "P-7") == ["c"]
    assert ids("--since", "1h") == ["c", "b", "a"]
    assert ids("--since", "2999-01-01T00:00:00Z") == []
    assert ids("--limit", "1") == ["c"]
    assert ids("--search", "Renewal") == ["c"]
    assert ids("Renewal") == ["c"]
    assert cli("list", "--status", "nope", "--json", code=2).error["code"] == "USAGE"
    long = "x" * 150
    cli("run", "flow.yaml", "--id", long)
    assert any(line.startswith(f"{long} ") for line in cli("list", code=0).out.splitlines())
    table = cli("list", code=0)
    assert "PolicyRenewal" in table.out
    assert table.err == ""


def test_a_store_can_be_named_anywhere(
    cli: Cli, write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("flow.yaml", ETL)
    url = f"sqlite:///{folder}/other.db"
    cli("run", "flow.yaml", "--id", "r", "--store", url, code=0)
    assert cli("list", "--json").json == []
    assert len(cli("--store", url, "--json", "list", code=0).json) == 1
    monkeypatch.setenv("TREADLE_STORE", url)
    assert len(cli("list", "--json", code=0).json) == 1


def test_looking_creates_no_store_and_sets_nothing_going(cli: Cli, folder: Path) -> None:
    for command in (["list"], ["tasks"], ["definitions"]):
        assert cli(*command, "--json", code=0).json == []
    assert cli("show", "nope", "--json", code=2).error["code"] == "RUN_NOT_FOUND"
    assert list(folder.iterdir()) == []


def test_state_travels_in_time(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    cli("run", "p.yaml", "-i", "policy_id=1", "--id", "r")
    cli("cancel", "r")
    assert cli("state", "r", "--at", "1", "--json", code=0).json == {"policy_id": 1}
    error = cli("state", "r", "--at", "9", "--json", code=2).error
    assert (error["code"], error["details"]) == ("NO_SUCH_RECORD", {"first": 1, "last": 2})
    assert "choose one from 1 to 2" in error["message"]
    assert cli("fork", "r", "--at", "9", "--json", code=2).error == error


def test_journal_trace_and_engine_state(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    document = cli("run", "p.yaml", "-i", "policy_id=1", "--id", "r", "--json").json
    (token,) = [wait["id"] for wait in document["waiting_for"]]
    (record,) = cli("journal", "r", "--json", code=0).json
    assert (record["seq"], record["kind"], record["status"]) == (1, "started", "waiting")
    (step,) = cli("trace", "r", "--json", code=0).json["steps"]
    assert (step["id"], step["kind"], step["name"], step["status"]) == (token, "task", "approve", "open")
    engine = cli("show", "r", "--engine", "--json", code=0).json["engine"]
    assert engine.keys() >= {
        "waits",
        "resume_pointer",
        "frames",
        "timers",
        "last_event",
        "children",
        "retain_until",
    }
    assert engine["waits"][0]["token"] == token
    for command in ("show", "journal", "trace", "state", "events"):
        assert "{" in cli(command, "r", code=0).out or cli(command, "r").out


def test_follow_ends_with_the_run(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    cli("run", "flow.yaml", "--id", "r")
    everything = cli("events", "r", "--follow", "--json", code=0).lines
    assert cli("events", "r", "--after", "2", "--json", code=0).lines == everything[2:]


@pytest.mark.parametrize("text", ["a: [x", '{"a":', "5", "- a", "a: {b: {c: 1}}", "A=1\nB"])
def test_secrets_that_cannot_be_read_start_nothing(cli: Cli, write: Write, folder: Path, text: str) -> None:
    write("flow.yaml", ETL)
    write("bad.env", text)
    error = cli("run", "flow.yaml", "--secrets", "bad.env", "--json", code=2).error
    assert error["code"] == "SECRETS_UNREADABLE"
    assert "bad.env" in error["message"]
    assert not (folder / "treadle.db").exists()


def test_secrets_must_be_a_file(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    assert (
        "there is no file"
        in cli("run", "flow.yaml", "--secrets", "none.env", "--json", code=2).error["message"]
    )


@pytest.mark.parametrize("target", ["missing.yaml", "missing.py:app", "nothing-deployed", "."])
def test_what_cannot_be_run_is_bad_usage(cli: Cli, target: str) -> None:
    assert cli("run", target, "--json", code=2).error["message"]


def test_an_unknown_shape_lists_the_known_ones(cli: Cli, write: Write) -> None:
    write("odd.yaml", "hello: world\n")
    (problem,) = cli("run", "odd.yaml", "--json", code=2).error["details"]["problems"]
    assert "`workflow:` list is a playbook" in problem["hint"]


AGENT = {
    "id": "wf",
    "name": "W",
    "entry": "a",
    "nodes": {"a": {"name": "A", "instruction": "Do it."}},
    "edges": [],
}


def test_templates_of_an_agent_are_sources(cli: Cli, write: Write) -> None:
    write("flow.json", json.dumps(AGENT))
    write("script.json", json.dumps({"run": {"a": [{"data": {}}]}}))
    write("pr.md", "Summarise.")
    run = ["run", "flow.json", "--model", "scripted:script.json", "--json"]
    templates = ["--template", "pr=./pr.md", "--template", "issue=Say why."]
    sources = cli(*run, *templates, code=0).json["state"]["trace"]["sources"]
    assert sources["templates.pr"]["content"] == "Summarise."
    assert (sources["templates.issue"]["kind"], sources["templates.issue"]["content"]) == (
        "inline",
        "Say why.",
    )
    assert cli(*run, "--template", "pr=./no.md", code=1).json["error"]["code"] == "SOURCE_FILE_NOT_FOUND"
    assert cli(*run, "--template", "pr", code=2).json["error"]["code"] == "USAGE"


def test_input_without_a_bottom_and_numbers_without_a_size(cli: Cli, write: Write) -> None:
    declared = {"s": {"type": "string", "required": True}, "n": {"type": "number"}}
    write("flow.json", json.dumps({**AGENT, "inputs": declared}))
    deep = '{"s": "x", "z": ' + "[" * 30_000 + "]" * 30_000 + "}"
    answer = cli("run", "flow.json", "--input", deep, "--json", code=2)
    assert answer.json["error"]["code"] == "USAGE"
    assert "Traceback" not in answer.err
    error = cli("run", "flow.json", "--input", '{"s": 5, "n": 1e999}', "--json", code=2).json["error"]
    assert (error["class"], error["code"]) == ("user", "INPUT_INVALID")
    assert [item["field"] for item in error["details"]["errors"]] == ["s", "n"]
