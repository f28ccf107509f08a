"""Processes from the command line: exit codes, documents, exports; the shapes that scripts rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.main import main

Cli = Callable[..., Any]

PROCESS = """
dialect: process
name: Renewal
version: 1.0.0
start: {schema: {type: object, required: [id]}}
tasks: {approve: {roles: [boss], timeout: 3d, schema: {type: object, required: [ok]}}}
steps:
  - reference: {$: start.id}
  - task: approve
  - await: {signal: documents, into: docs, timeout: 7d}
  - complete: {ok: {$: payload.ok}, docs: {$: result.docs}}
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli(3, "run", "p.yaml")`: the exit code it must have; gives the document."""
    monkeypatch.chdir(tmp_path)
    for name in ("TREADLE_STORE", "TREADLE_VALIDATION"):
        monkeypatch.delenv(name, raising=False)

    def invoke(code: int, *arguments: str, text: bool = False) -> Any:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments] if text else [*arguments, "--json"])
        out = capsys.readouterr()
        assert int(ended.value.code or 0) == code, out
        return out.out if text else json.loads(out.out)

    return invoke


def test_a_process_from_its_start_to_its_end(cli: Cli, tmp_path: Path) -> None:
    Path("p.yaml").write_text(PROCESS)
    shown = cli(3, "run", "p.yaml", "-i", "id=P-7", "--id", "r")
    assert (shown["status"], shown["reference"], shown["dialect"]) == ("waiting", "P-7", "process")
    (wait,) = shown["waiting_for"]
    assert (wait["kind"], wait["name"]) == ("task", "approve")
    assert cli(1, "signal", "--reference", "P-7", "documents")["error"]["code"] == "NOT_WAITING"
    (row,) = cli(0, "tasks", "--role", "boss")
    assert row["id"] == wait["id"]
    refused = cli(1, "task", "complete", wait["id"], "--user", "eve", "--role", "boss", "--data", '{"ok": 1}')
    assert refused["error"]["class"] == "authorization"
    cli(0, "task", "claim", wait["id"], "--user", "ann", "--role", "boss")
    who = ["--user", "ann", "--role", "boss"]
    version = cli(0, "show", "r")["version_no"]
    wrong = cli(1, "task", "complete", wait["id"], *who, "--data", '{"ok": true}', "--expected-version", "99")
    assert wrong["error"]["class"] == "consistency"
    assert cli(0, "show", "r")["version_no"] == version
    done = cli(3, "task", "complete", wait["id"], *who, "--data", '{"ok": true}')
    assert done["waiting_for"][0]["kind"] == "signal"
    stale = cli(0, "task", "complete", wait["id"], *who, "--data", '{"ok": false}')
    assert stale["stale"] is True
    assert stale["version_no"] == done["version_no"]
    ended = cli(0, "signal", "--reference", "P-7", "documents", "--data", '["a"]')
    assert ended["result"] == {"ok": True, "docs": ["a"]}
    assert ended["retain_until"] > ended["ended_at"]
    assert cli(0, "replay", "r") == {"id": "r", "equal": True}


def test_of_several_stalled_steps_one_is_named_and_skipped(cli: Cli) -> None:
    nobody = "{call: {transport: http, url: 'http://127.0.0.1:1/'}}"
    Path("p.yaml").write_text(
        f"dialect: process\nname: wf\nversion: 1.0.0\nsteps: [{{fork: {{a: [{nobody}], b: [{nobody}]}}}}]"
    )
    assert cli(3, "run", "p.yaml", "--id", "r")["status"] == "stalled"
    refused = cli(1, "retry", "r", "--skip")["error"]["message"]
    assert "say which with --from: steps[0].fork.a[0], steps[0].fork.b[0]" in refused
    assert cli(3, "retry", "r", "--from", "steps[0].fork.a[0]", "--skip")["status"] == "stalled"
    assert cli(0, "retry", "r", "--from", "steps[0].fork.b[0]", "--skip")["status"] == "completed"


def test_running_a_file_claims_no_version(cli: Cli) -> None:
    Path("p.yaml").write_text("dialect: process\nname: wf\nversion: 1.0.0\nsteps: [{complete: 1}]")
    assert cli(0, "run", "p.yaml")["result"] == 1
    assert cli(0, "definitions") == []
    Path("p.yaml").write_text("dialect: process\nname: wf\nversion: 1.0.0\nsteps: [{complete: 2}]")
    assert cli(0, "run", "p.yaml")["result"] == 2
    cli(0, "deploy", "p.yaml")
    Path("p.yaml").write_text("dialect: process\nname: wf\nversion: 1.0.0\nsteps: [{complete: 3}]")
    assert cli(2, "deploy", "p.yaml")["error"]["class"] == "definition"
    assert cli(0, "run", "wf")["result"] == 2


def test_a_bad_start_payload(cli: Cli) -> None:
    Path("p.yaml").write_text(PROCESS)
    assert cli(2, "run", "p.yaml", "-i", "other=1")["error"]["class"] == "user"
    assert cli(0, "list") == []


def test_check_says_everything_at_once(cli: Cli) -> None:
    Path("bad.yaml").write_text(
        "dialect: process\nname: wf\nsteps:\n  - call: {transport: nowhere}\n  - wait: 5\n  - set: {state.a: {$: foo.b}}\n"
    )
    found = cli(2, "check", "bad.yaml")
    assert found["ok"] is False
    assert [(p["code"], p["line"]) for p in found["problems"]] == [
        ("UNKNOWN_TRANSPORT", 4),
        ("BAD_DURATION", 5),
        ("UNKNOWN_ROOT", 6),
    ]
    Path("child.yaml").write_text("dialect: process\nname: wf\nsteps: [{child: {workflow: other}}]")
    found = cli(0, "check", "child.yaml")
    assert found["ok"] is True
    assert [(p["severity"], p["code"]) for p in found["problems"]] == [("warning", "CHILD_NOT_DEPLOYED")]
    assert cli(2, "deploy", "child.yaml")["error"]["class"] == "definition"
    (row,) = cli(0, "deploy", "child.yaml", "--validation", "warn")
    assert row["status"] == "unavailable"


@pytest.mark.parametrize("format", ["yaml", "json", "python"])
def test_export_both_ways(cli: Cli, format: str) -> None:
    Path("p.yaml").write_text(PROCESS)
    (row,) = cli(0, "deploy", "p.yaml")
    text = cli(0, "export", "Renewal", "--format", format, text=True)
    name = {"python": "out.py"}.get(format, f"out.{format}")
    Path(name).write_text(text)
    (again,) = cli(0, "deploy", name)
    assert again["digest"] == row["digest"]
    assert cli(0, "export", "Renewal@1.0.0", "--format", format, text=True) == text
    if format != "python":
        Path(f"canonical.{format}").write_text(
            cli(0, "export", "Renewal", "--format", format, "--canonical", text=True)
        )
        assert cli(0, "deploy", f"canonical.{format}")[0]["digest"] == row["digest"]


def test_a_stalled_run(cli: Cli) -> None:
    Path("p.yaml").write_text(
        "dialect: process\nname: wf\nsteps: [{call: {transport: http, url: 'http://127.0.0.1:1/', payload: {a: 1}, into: r}}, {complete: {$: result.r}}]"
    )
    stalled = cli(3, "run", "p.yaml", "--id", "one")
    assert (stalled["status"], stalled["error"]["class"]) == ("stalled", "transport")
    again = cli(3, "retry", "one")
    assert again["status"] == "stalled"
    cli(3, "retry", "one", "--input", '{"b": 2}')
    opened = [r for record in journal(cli, "one") for r in record.get("opened", [])]
    assert [intent["params"]["payload"] for intent in opened] == [{"a": 1}, {"a": 1}, {"b": 2}]
    done = cli(0, "retry", "one", "--skip", "--value", '{"by": "hand"}')
    assert done["result"] == {"by": "hand"}
    cli(3, "run", "p.yaml", "--id", "two")
    failed = cli(1, "retry", "two", "--fail", "given up")
    assert failed["error"]["message"] == "given up"
    assert cli(1, "retry", "two")["error"]["code"] == "RUN_ENDED"


def journal(cli: Cli, run: str) -> list[dict[str, Any]]:
    text = cli(0, "journal", run, "--json", text=True)
    try:
        found = json.loads(text)
        return found if isinstance(found, list) else [found]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def test_an_expression_error_and_its_mending(cli: Cli) -> None:
    text = "dialect: process\nname: wf\nsteps: [{await: go}, {complete: {$: 'payload + 1'}}]"
    Path("p.yaml").write_text(text)
    cli(3, "run", "p.yaml", "--id", "r")
    failed = cli(1, "signal", "r", "go", "--data", '"x"')
    assert (failed["error"]["class"], failed["error"]["where"]) == ("expression", "steps[1]")
    assert failed["error"]["details"]["expression"] == "payload + 1"
    Path("p.yaml").write_text(text.replace("payload + 1", "concat(payload, 1)"))
    forked = cli(3, "fork", "r", "--at", "1", "--definition", "p.yaml")
    assert cli(0, "signal", forked["id"], "go", "--data", '"x"')["result"] == "x1"


def test_engine_state_and_pictures(cli: Cli) -> None:
    Path("p.yaml").write_text(PROCESS)
    cli(3, "run", "p.yaml", "-i", "id=P", "--id", "r")
    assert "engine" not in cli(0, "show", "r")
    engine = cli(0, "show", "r", "--engine")["engine"]
    wanted = {"waits", "resume_pointer", "frames", "timers", "last_event", "children", "retain_until"}
    assert wanted <= set(engine)
    (wait,) = engine["waits"]
    assert set(wait) == {"kind", "token", "path", "due"}
    for target in ("p.yaml", "r"):
        assert "approve" in cli(0, "graph", target, "--format", "mermaid", text=True)


def test_running_an_unavailable_version_exits_2(cli: Cli) -> None:
    Path("p.yaml").write_text(
        "dialect: process\nname: P\nversion: 1.0.0\nsteps: [{call: {transport: nobody}}]\n"
    )
    cli(0, "deploy", "p.yaml", "--validation", "warn")
    refused = cli(2, "run", "P@1.0.0")
    assert (refused["error"]["class"], refused["error"]["code"]) == ("definition", "WORKFLOW_UNAVAILABLE")
