"""INTERFACES.md §1: the command line, sentence by sentence."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import Desk

NOOP = "metadata: {name: etl}\nworkload: {day: today}\nworkflow: [{step: a, tool: {kind: noop, result: '{{ workload }}'}}]\n"
FAILS = "metadata: {name: bad}\nworkflow: [{step: a, tool: {kind: shell, cmds: exit 3}}]\n"
WAITS = "dialect: process\nname: W\nversion: 1.0.0\nsteps:\n  - reference: {$: start.r}\n  - await: {signal: go, into: g, timeout: 7d}\n  - complete: {$: result.g}\n"
AGENT = "id: ag\nnodes: [{id: a, type: prompt}]\nedges: []\n"
INSTANT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")

KEYS = {
    "id", "workflow", "version", "digest", "dialect", "status", "input", "result", "error", "reference", "started_at",
    "ended_at", "version_no", "waiting_for", "state", "parent", "children", "stats",
}  # fmt: skip


def test_the_run_document(desk: Desk) -> None:
    run = desk.run(NOOP, "-i", "day=2026-11-15", "-i", "n=5", "-i", "t=[1]")
    assert set(run) >= KEYS
    assert run["input"] == {"day": "2026-11-15", "n": 5, "t": [1]}
    assert (run["workflow"], run["dialect"], run["status"]) == ("etl", "playbook", "completed")
    assert re.match(r"^sha256:[0-9a-f]{64}$", run["digest"])
    assert INSTANT.match(run["started_at"])
    assert INSTANT.match(run["ended_at"])
    assert set(run["stats"]) >= {"steps", "intents", "retries"}
    assert set(run["state"]) >= {"ctx", "steps", "tokens"}
    assert (run["parent"], run["children"], run["error"], run["waiting_for"]) == (None, [], None, [])
    shown = desk("show", run["id"], "--json", code=0).json
    assert shown == run


@pytest.mark.at_home("it is about files and their names")
def test_store_option_variable_and_default(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    desk.run(NOOP, "--id", "x")
    assert (desk.folder / "treadle.db").exists()
    desk("run", "flow.yaml", "--store", "sqlite:///other.db", "--id", "y", "--json", code=0)
    assert (desk.folder / "other.db").exists()
    absolute = tmp_path / "deep" / "abs.db"
    absolute.parent.mkdir()
    desk("--store", f"sqlite:///{absolute}", "run", "flow.yaml", "--json", "--id", "z", code=0)
    assert absolute.exists()
    monkeypatch.setenv("TREADLE_STORE", "sqlite:///other.db")
    assert [r["id"] for r in desk("list", "--json", code=0).json] == ["y"]
    desk("run", "flow.yaml", "--store", "memory:", "--json", code=0)


@pytest.mark.at_home("it is about files and their folders")
@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "sqlite://x.db", "sqlite:///no/such/folder/x.db"])
def test_a_wrong_store(desk: Desk, url: str) -> None:
    desk.write("flow.yaml", NOOP)
    answer = desk("run", "flow.yaml", "--store", url, "--json")
    assert answer.code in (1, 2)
    assert answer.error["message"]
    assert "Traceback" not in answer.err


def test_every_command_of_the_table_is_there(desk: Desk) -> None:
    for command in [
        "run",
        "resume",
        "check",
        "deploy",
        "definitions",
        "export",
        "list",
        "show",
        "state",
        "events",
        "trace",
        "journal",
        "graph",
        "patch",
        "signal",
        "cancel",
        "retry",
        "fork",
        "tasks",
        "task",
        "publish",
        "cells",
        "cell",
        "manifest",
        "apply",
        "shadow",
        "snapshot",
        "replay",
        "diff",
        "record",
        "secret",
        "gc",
        "doctor",
        "migrate",
        "bench",
    ]:
        assert desk(command, "--help").code == 0, command


def test_input_options(desk: Desk) -> None:
    desk.write("in.json", '{"a": 1, "b": {"c": 2}}')
    run = desk.run(NOOP, "--input", "@in.json", "-i", "b=text", "-i", "z=null")
    assert run["input"] == {"a": 1, "b": "text", "z": None}
    run = desk.run(NOOP, "--input", '{"a": [true]}')
    assert run["input"] == {"a": [True]}
    for bad in ("{", "@nothing.json"):
        assert desk("run", "flow.yaml", "--input", bad, "--json", code=2).error["class"] == "user"
    assert desk("run", "flow.yaml", "-i", "novalue", "--json", code=2).error["message"]
    assert desk("run", "flow.yaml", "-i", f"n={2**64}", "--json", code=2).error["class"] == "user"


def test_same_id_again(desk: Desk) -> None:
    first = desk.run(NOOP, "--id", "X", "-i", "a=1")
    again = desk.run(NOOP, "--id", "X", "-i", "a=1")
    assert again == first
    error = desk("run", "flow.yaml", "--id", "X", "-i", "a=2", "--json", code=2).error
    assert error["code"] == "RUN_EXISTS"
    desk.write("flow.yaml", NOOP.replace("today", "tomorrow"))
    assert desk("run", "flow.yaml", "--id", "X", "-i", "a=1", "--json", code=2).error["code"] == "RUN_EXISTS"
    desk.write("w.yaml", WAITS)
    desk("run", "w.yaml", "--id", "W", "--json", code=3)
    assert desk("run", "w.yaml", "--id", "W", "--json", code=3).json["id"] == "W"


def test_key(desk: Desk) -> None:
    first = desk.run(NOOP, "--key", "K")
    assert desk.run(NOOP, "--key", "K")["id"] == first["id"]


def test_exit_codes(desk: Desk) -> None:
    run = desk.run(FAILS, code=1)
    assert run["status"] == "failed"
    assert set(run["error"]) == {"class", "code", "message", "where", "details"}
    desk("show", run["id"], "--json", code=0)
    desk("resume", run["id"], "--json", code=1)
    waiting = desk.run(WAITS, code=3)
    assert waiting["status"] == "waiting"
    desk("cancel", waiting["id"], "--json", code=0)
    desk("resume", waiting["id"], "--json", code=4)


def test_exit_3_says_what_it_waits_for_and_the_command_that_continues_it(desk: Desk) -> None:
    desk.write("w.yaml", WAITS)
    answer = desk("run", "w.yaml", "--id", "W7", code=3)
    assert "go" in answer.err
    assert "treadle signal W7 go" in answer.err


def test_json_has_stdout_to_itself(desk: Desk) -> None:
    for text, code in ((NOOP, 0), (FAILS, 1), (WAITS, 3), ("workflow: 5", 2), ("a: {", 2)):
        answer = desk("run", desk.write("f.yaml", text), "--json", code=code)
        assert isinstance(answer.json, dict)


def test_shapes_of_files(desk: Desk) -> None:
    assert desk.run("tasks: {}\nname: P\nsteps: [{complete: 1}]\n")["dialect"] == "process"
    assert desk.check(AGENT)["problems"] is not None
    error = desk.refuse("hello: world\n", name="unknown.yaml")
    said = error["message"] + str(error["details"])
    for word in ("workflow", "nodes", "edges", "process", "steps", "tasks"):
        assert word in said, word
    desk.write(
        "two.py",
        "from treadle.process import process\n\n@process('A')\ndef a(p):\n    p.complete(1)\n\n@process('B')\ndef b(p):\n    p.complete(2)\n",
    )
    assert desk("run", "two.py:b", "--json", code=0).json["result"] == 2
    assert desk("run", "two.py", "--json", code=2).error["message"]
    assert desk("run", "two.py:c", "--json", code=2).error["message"]


def test_python_file_that_raises(desk: Desk) -> None:
    desk.write("broken.py", "raise RuntimeError('boom')\n")
    answer = desk("run", "broken.py", "--json", code=2)
    assert "boom" in answer.error["message"]
    desk.write("syntax.py", "def f(:\n")
    assert desk("check", "syntax.py", "--json", code=2).json


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "missing.yaml"),
        ("run", "NoSuchName"),
        ("show",),
        ("show", "nobody"),
        ("events", "nobody"),
        ("state", "nobody"),
        ("journal", "nobody"),
        ("trace", "nobody"),
        ("graph", "nobody"),
        ("resume", "nobody"),
        ("signal", "nobody", "x"),
        ("patch", "nobody", "a=1"),
        ("cancel", "nobody"),
        ("retry", "nobody"),
        ("fork", "nobody", "--at", "1"),
        ("task", "show", "nobody"),
        ("task", "claim", "nobody", "--user", "a"),
        ("task", "complete", "nobody", "--user", "a"),
        ("replay", "nobody"),
        ("diff", "nobody", "noone"),
        ("record", "nobody"),
        ("export", "Nobody"),
        ("deploy", "missing.yaml"),
        ("nosuchcommand",),
        ("run", "--nosuchoption"),
        ("list", "--since", "yesterday-ish"),
        ("list", "--status", "odd"),
        ("list", "--limit", "none"),
    ],
)
def test_mistakes_are_refused_in_json(desk: Desk, arguments: tuple[str, ...]) -> None:
    answer = desk(*arguments, "--json")
    assert answer.code in (1, 2), answer
    error = answer.error
    assert error["message"]
    assert error["class"] in (
        "definition",
        "expression",
        "transport",
        "timeout",
        "authorization",
        "consistency",
        "user",
        "internal",
    )
    assert "Traceback" not in answer.err
    if answer.code == 2:
        assert os.listdir(desk.folder) == []
    people = desk(*arguments)
    assert people.code == answer.code
    assert people.out == ""
    assert people.err.strip()


def test_list_and_its_filters(desk: Desk) -> None:
    done = desk.run(NOOP)["id"]
    failed = desk.run(FAILS, code=1)["id"]
    waiting = desk.run(WAITS, "-i", "r=REF-1", code=3)["id"]

    def ids(*arguments: str) -> list[str]:
        return [row["id"] for row in desk("list", *arguments, "--json", code=0).json]

    assert sorted(ids()) == sorted([done, failed, waiting])
    assert ids("--status", "failed") == [failed]
    assert ids("--workflow", "etl") == [done]
    assert ids("--reference", "REF-1") == [waiting]
    assert ids("--limit", "1") == [waiting]
    assert len(ids("--since", "1h")) == 3
    assert ids("--since", "2099-01-01T00:00:00Z") == []
    assert ids("REF-1") == [waiting]


def test_state_travels_in_time(desk: Desk) -> None:
    run = desk.run(
        "dialect: process\nname: T\nsteps: [{set: {state.n: 1}}, {await: {signal: a}}, {set: {state.n: 2}}, {await: {signal: b}}]\n",
        code=3,
    )
    desk("signal", run["id"], "a", "--json", code=3)
    now = desk("state", run["id"], "--json", code=0).json
    then = desk("state", run["id"], "--at", str(run["version_no"]), "--json", code=0).json
    assert '"n": 2' in json.dumps(now)
    assert '"n": 1' in json.dumps(then)
    assert desk("state", run["id"], "--at", "99", "--json").code in (1, 2)


def test_events_are_lines_in_order(desk: Desk) -> None:
    run = desk.run(NOOP)
    lines = desk.events(run["id"])
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert all(INSTANT.match(line["at"]) for line in lines)
    assert all(line["type"] for line in lines)


def test_stream(desk: Desk) -> None:
    desk.write("flow.yaml", NOOP)
    answer = desk("run", "flow.yaml", "--stream", code=0)
    types = [line["type"] for line in answer.lines if "type" in line]
    assert "step.done" in types


@pytest.mark.parametrize(("format", "mark"), [("svg", "<svg"), ("mermaid", "a"), ("dot", "digraph")])
def test_graph(desk: Desk, format: str, mark: str) -> None:
    run = desk.run(NOOP)
    for subject in ("flow.yaml", run["id"]):
        assert mark in desk("graph", subject, "--format", format, code=0).out
    desk("graph", "flow.yaml", "--format", "gif", code=2)


def test_graph_png(desk: Desk) -> None:
    desk.run(NOOP)
    desk("graph", "flow.yaml", "--format", "png", "-o", "g.png", code=0)
    assert (desk.folder / "g.png").read_bytes().startswith(b"\x89PNG")


def test_several_ids_are_json_lines_and_the_worst_code(desk: Desk) -> None:
    text = "dialect: process\nname: S\nsteps: [{await: {signal: go, into: g}}, {if: {$: result.g.bad}, then: [{fail: bad}]}]\n"
    one, two = desk.run(text, code=3)["id"], desk.run(text, code=3)["id"]
    lines = desk("signal", one, two, "go", "--data", '{"bad": true}', "--json", code=1).lines
    assert [line["id"] for line in lines] == [one, two]
    assert {line["status"] for line in lines} == {"failed"}
    lines = desk("resume", "--json", code=0).lines
    assert lines == []
    three, four = desk.run(text, code=3)["id"], desk.run(text, code=3)["id"]
    lines = desk("resume", "--json", code=3).lines
    assert sorted(line["id"] for line in lines) == sorted([three, four])
    lines = desk("cancel", three, four, "--json", code=0).lines
    assert {line["status"] for line in lines} == {"cancelled"}


def test_bulk_retry(desk: Desk) -> None:
    text = "metadata: {name: flaky}\nworkflow: [{step: a, tool: {kind: shell, cmds: test -e ok}}]\n"
    ids = [desk.run(text, code=1)["id"] for _ in range(2)]
    (desk.folder / "ok").touch()
    lines = desk("retry", "--all-failed", "--json", code=0).lines
    assert sorted(line["id"] for line in lines) == sorted(ids)
    assert {line["status"] for line in lines} == {"completed"}


def test_retry_from_a_step(desk: Desk) -> None:
    text = "metadata: {name: flaky}\nworkflow:\n  - {step: a, tool: {kind: noop}, next: {arcs: [{step: b}]}}\n  - {step: b, tool: {kind: shell, cmds: test -e ok}}\n"
    run = desk.run(text, code=1)
    (desk.folder / "ok").touch()
    done = desk("retry", run["id"], "--from", "a", "--json", code=0).json
    assert done["status"] == "completed"
    assert done["state"]["steps"]["a"]["runs"] == 2
    assert desk("retry", run["id"], "--from", "nowhere", "--json").code in (1, 2)


def test_fork(desk: Desk) -> None:
    run = desk.run(WAITS, "-i", "r=1", code=3)
    forked = desk("fork", run["id"], "--at", str(run["version_no"]), "--json", code=3).json
    assert forked["id"] != run["id"]
    assert forked["status"] == "waiting"
    assert forked["waiting_for"][0]["id"] != run["waiting_for"][0]["id"]
    assert desk("signal", forked["id"], "go", "--data", "5", "--json", code=0).json["result"] == 5
    assert desk("show", run["id"], "--json", code=0).json["status"] == "waiting"


def test_replay(desk: Desk) -> None:
    one, two = desk.run(NOOP)["id"], desk.run(FAILS, code=1)["id"]
    assert desk("replay", one, "--json", code=0).json == {"id": one, "equal": True}
    lines = desk("replay", "--all", "--json", code=0).lines
    assert sorted(line["id"] for line in lines) == sorted([one, two])
    desk.write("other.yaml", NOOP.replace("step: a", "step: b"))
    different = desk("replay", one, "--against", "other.yaml", "--json", code=1).json
    assert set(different) >= {"id", "equal", "seq", "expected", "got"}
    assert different["equal"] is False


def test_diff_and_record(desk: Desk) -> None:
    one, two = desk.run(NOOP, "-i", "n=1")["id"], desk.run(NOOP, "-i", "n=2")["id"]
    assert isinstance(desk("diff", one, two, "--json", code=1).json, dict)
    assert desk("diff", one, one, "--json").code == 0
    desk("record", one, code=0)


def test_deploy_definitions_export(desk: Desk) -> None:
    desk.write("w.yaml", WAITS)
    desk("deploy", "w.yaml", "--json", code=0)
    desk("deploy", "w.yaml", "--json", code=0)
    (row,) = desk("definitions", "--json", code=0).json
    assert set(row) >= {"name", "version", "dialect", "digest", "status", "reasons"}
    assert (row["status"], row["reasons"]) == ("available", [])
    text = desk("export", "W", code=0).out
    assert text.lstrip().startswith("dialect: process")
    assert desk("export", "W@1.0.0", "--format", "json", code=0).out.lstrip().startswith("{")
    desk("export", "W", "-o", "out.yaml", code=0)
    assert (desk.folder / "out.yaml").read_text() == text
    assert desk("export", "W@9.9.9", "--json").code == 2
    (desk.folder / "flows").mkdir()
    desk.write("flows/etl.yaml", NOOP)
    desk("deploy", "flows", "--json", code=0)
    assert desk("run", "etl", "--json", code=0).json["status"] == "completed"


@pytest.mark.at_home("secrets are kept beside a file")
def test_secrets(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("super-secret-1\n"))
    answer = desk("secret", "set", "tok", "--json")
    if answer.code:
        pytest.fail(str(answer))
    names = desk("secret", "list", "--json", code=0)
    assert "tok" in names.out
    assert "super-secret-1" not in names.out
    run = desk.run(
        "metadata: {name: p}\nkeychain: [{name: tok, kind: secret_manager}]\nworkflow: [{step: a, tool: {kind: python, code: 'result = len(t)', args: {t: '{{ keychain.tok }}'}}}]\n"
    )
    assert run["result"] == len("super-secret-1")
    desk("secret", "remove", "tok", "--json", code=0)
    assert (
        desk.run(
            "metadata: {name: p}\nkeychain: [{name: tok, kind: secret_manager}]\nworkflow: [{step: a, tool: {kind: noop}}]\n",
            code=1,
        )["error"]["class"]
        == "authorization"
    )


def test_keep_house(desk: Desk) -> None:
    desk.run(NOOP)
    for command in ("gc", "doctor", "migrate"):
        assert isinstance(desk(command, "--json", code=0).json, dict), command


def test_check_shape(desk: Desk) -> None:
    desk.write("a.yaml", NOOP)
    desk.write("b.yaml", "metadata: {name: b}\nworkflow: [{step: a, tool: {}}]\n")
    document = desk("check", "a.yaml", "b.yaml", "--json", code=2).json
    assert set(document) == {"ok", "problems"}
    for problem in document["problems"]:
        assert set(problem) == {
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
        assert problem["file"].endswith("b.yaml")


def test_a_stale_signal(desk: Desk) -> None:
    run = desk.run(WAITS, code=3)
    done = desk("signal", run["id"], "go", "--json", code=0).json
    late = desk("signal", run["id"], "go", "--json", code=0).json
    assert late["stale"] is True
    assert late["version_no"] == done["version_no"]
    assert desk.types(run["id"])[-1] == "stale"


def test_a_deadline_is_the_entry_s_own_due(desk: Desk) -> None:
    run = desk.run(WAITS, code=3)
    (wait,) = run["waiting_for"]
    assert (wait["kind"], wait["name"]) == ("signal", "go")
    assert INSTANT.match(wait["due"])
    assert set(wait) == {"kind", "id", "name", "due"}


def test_bad_signal_data(desk: Desk) -> None:
    run = desk.run(WAITS, code=3)
    assert desk("signal", run["id"], "go", "--data", "{", "--json", code=2).error["class"] == "user"
    assert desk("show", run["id"], "--json", code=0).json["version_no"] == run["version_no"]


def documents(desk: Desk) -> list[Any]:
    return [desk("show", row["id"], "--json", code=0).json for row in desk("list", "--json", code=0).json]


def test_resume_after_the_end_changes_nothing(desk: Desk) -> None:
    run = desk.run(NOOP)
    assert desk("resume", run["id"], "--json", code=0).json == run
    assert desk("cancel", run["id"], "--json", code=0).json["status"] == "completed"
    assert documents(desk) == [run]


def test_a_store_that_may_not_be_written_can_be_looked_at(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = desk.run(NOOP)
    before = sorted(os.listdir(desk.folder))
    monkeypatch.setattr(os, "access", lambda *_: False)  # as for a reader who does not own the folder
    assert desk("show", run["id"], "--json", code=0).json == run
    assert desk("replay", run["id"], "--json", code=0).json["equal"] is True
    assert sorted(os.listdir(desk.folder)) == before


@pytest.mark.at_home("copies the file")
def test_a_copy_of_the_file_is_a_copy_of_the_store(desk: Desk) -> None:
    run = desk.run(NOOP)
    (desk.folder / "copy.db").write_bytes((desk.folder / "treadle.db").read_bytes())
    assert desk("show", run["id"], "--store", "sqlite:///copy.db", "--json", code=0).json == run


def test_a_dry_run_never_does_the_work(desk: Desk) -> None:
    desk.write(
        "flow.yaml", "metadata: {name: p}\nworkflow: [{step: a, tool: {kind: shell, cmds: touch done}}]\n"
    )
    assert "--dry-run" in desk("run", "flow.yaml", "--dry-run", "--json", code=2).error["message"]
    assert os.listdir(desk.folder) == ["flow.yaml"]
    desk("deploy", "flow.yaml", code=0)
    desk("run", "p", "--dry-run", "--json", code=2)
    assert desk("list", "--json", code=0).json == []


@pytest.mark.parametrize("command", ["manifest", "apply", "shadow"])
def test_a_playbook_is_no_application(desk: Desk, command: str) -> None:
    desk.write("flow.yaml", NOOP)
    assert desk(command, "flow.yaml", "--json", code=2).error["class"] in ("user", "definition")
