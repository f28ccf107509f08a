"""Mistakes that authors of playbooks make: each message names the place, the cause and the remedy."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from .conftest import Cli

Write = Callable[[str, str], Path]

YAML = {
    "a tab": ("workflow:\n\t- step: a\n", 2, "a tab is used to indent this line", "spaces only"),
    "indentation": (
        "workflow:\n  - step: a\n   tool: {kind: noop}\n",
        3,
        "the indentation of this line does not fit",
        "one column",
    ),
    "deeper": ("a:\n  b: 1\n    c: 2\n", 3, "indented deeper than the line before", "the same indentation"),
    "a colon": ("workflow:\n  - step: a: b\n", 2, "a colon inside a value", "quote the whole value"),
    "a quote": ('workflow:\n  - step: "a\n    tool: x\n', 2, "a quote that is opened here", "close it"),
    "a bracket": ("workflow: [{step: a}\n", 1, "a [ that is opened here is never closed", "close it with ]"),
    "a comma": ("workflow: {step: a b: c}\n", 1, "a comma or the end of the {", "separate items with commas"),
    "no colon": ("a: 1\nb\nc: 2\n", 2, "a key without its colon", "key: value"),
    "a backtick": ("a: `x`\n", 1, "a value cannot begin with '`'", "quote it"),
}


@pytest.mark.parametrize(("text", "line", "cause", "remedy"), YAML.values(), ids=YAML)
def test_yaml_that_is_none_is_explained_in_our_words(
    cli: Cli, write: Write, text: str, line: int, cause: str, remedy: str
) -> None:
    write("flow.yaml", text)
    (problem,) = cli("check", "flow.yaml", "--json", code=2).json["problems"]
    assert (problem["file"], problem["line"]) == ("flow.yaml", line)
    assert cause in problem["message"]
    assert remedy in problem["hint"]


def test_braces_of_other_programs_are_pointed_to_raw(cli: Cli, write: Write) -> None:
    write(
        "flow.yaml",
        "workflow: [{step: a, tool: {kind: shell, command: \"docker ps --format '{{.Names}}'\"}}]\n",
    )
    (problem,) = cli("check", "flow.yaml", "--json", code=2).json["problems"]
    assert problem["code"] == "template_syntax"
    assert "{% raw %}" in problem["hint"]


def test_one_mistake_is_told_once(cli: Cli, write: Write) -> None:
    write(
        "flow.yaml",
        "workflow: [{step: a, tool: {kind: noop}, next: {arcs: [{step: a, when: '{{ 1 + }}'}]}}]\n",
    )
    assert len(cli("check", "flow.yaml", "--json", code=2).json["problems"]) == 1


def test_a_wrong_variable_is_warned_of_by_run_too(cli: Cli, write: Write) -> None:
    write(
        "flow.yaml",
        'workload: {known: 1}\nworkflow: [{step: a, tool: {kind: noop, result: "{{ workload.knwon }}{{ given }}"}}]\n',
    )
    answer = cli("run", "flow.yaml", "-i", "given=1", code=0)
    assert "workload has no default for 'knwon'" in answer.err
    assert "given" not in answer.err


def test_a_run_without_its_tool_says_why_it_stays_open_and_how_to_go_on(cli: Cli, write: Write) -> None:
    write("flow.yaml", "workflow: [{step: a, tool: {kind: pyton, code: x}}]\n")
    answer = cli("run", "flow.yaml", "--id", "r1", code=3)
    assert "did you mean python?" in answer.err
    assert "treadle resume r1" in answer.err
    assert "treadle cancel r1" in answer.err


SCHEMA = """
metadata:
  name: report
  input_schema:
    type: object
    required: [day, count, made]
    properties: {day: {type: string}, count: {type: integer}}
workload: {count: 3, made: "{{ workload.day }}"}
workflow: [{step: a, tool: {kind: noop, result: "{{ workload.made }} {{ workload.count }}"}}]
"""


def test_an_input_of_the_wrong_type_is_refused_before_the_run(cli: Cli, write: Write) -> None:
    write("flow.yaml", SCHEMA)
    assert cli("run", "flow.yaml", "-i", "day=2026-11-15", "--json", code=0).json["result"] == "2026-11-15 3"
    error = cli("run", "flow.yaml", "-i", "count=many", "--json", code=2).error
    assert error["code"] == "INPUT_INVALID"
    assert {item["path"] for item in error["details"]["errors"]} == {"$", "$.count"}
    assert len(cli("list", "--json", code=0).json) == 1


def test_a_schema_that_is_none_is_refused_at_check(cli: Cli, write: Write) -> None:
    write("flow.yaml", SCHEMA.replace("type: object", "type: objekt"))
    (problem,) = cli("check", "flow.yaml", "--json", code=2).json["problems"]
    assert problem["code"] == "input_schema_invalid"
    assert problem["line"] == 5


def test_deploy_tells_of_every_bad_file_and_deploys_none(cli: Cli, write: Write, folder: Path) -> None:
    (folder / "flows").mkdir()
    write("flows/a.yaml", "workflow: []\n")
    write("flows/b.yaml", "workflow: [{step: b, tool: {kind: noop}}]\n")
    write("flows/c.yaml", "workflow:\n\t- x\n")
    write("d.yaml", "nothing: 1\n")
    error = cli("deploy", "flows", "d.yaml", "--json", code=2).error
    files = [problem["file"] for problem in error["details"]["problems"]]
    assert files == ["flows/a.yaml", "flows/c.yaml", "d.yaml"]
    assert cli("definitions", "--json", code=0).json == []


def test_a_function_of_a_module_beside_the_playbook_is_called(cli: Cli, write: Write) -> None:
    write("mistakes_helper.py", "def double(x: int) -> int:\n    return 2 * x\n")
    write(
        "flow.yaml",
        "workflow: [{step: a, tool: {kind: python, callable: 'mistakes_helper:double', args: {x: 4}}}]\n",
    )
    assert cli("run", "flow.yaml", "--id", "r1", "--json", code=0).json["result"] == 8
    assert cli("replay", "r1", "--json", code=0).json["equal"]
    write("flow.yaml", "workflow: [{step: a, tool: {kind: python, callable: 'mistakes_helper:treble'}}]\n")
    error = cli("run", "flow.yaml", "--json", code=1).json["error"]
    assert "has no function 'treble'" in error["message"]


def test_a_field_that_tasks_read_of_a_plain_secret_fails_before_the_first_step(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_SECRET_OPENAI", "sk-1234567890")
    text = """
        keychain: [{name: openai, kind: secrets%s}]
        workflow: [{step: a, tool: {kind: shell, command: "echo ${KEY:+is there}", env: {KEY: "{{ keychain.openai.api_key }}"}}}]
        """
    write("bad.yaml", text % "")
    document = cli("run", "bad.yaml", "--json", code=1).json
    assert document["error"]["class"] == "authorization"
    assert "reads its field 'api_key', but the secret is one text" in document["error"]["message"]
    assert document["state"]["steps"] == {}
    write("good.yaml", text % ", provider: gcp, map: {api_key: projects/1/secrets/x}")
    assert cli("run", "good.yaml", "--json", code=0).json["result"]["stdout"] == "is there\n"


def test_a_store_in_a_folder_that_is_not_there_is_bad_usage(cli: Cli, write: Write) -> None:
    write("flow.yaml", "workflow: [{step: a, tool: {kind: noop}}]\n")
    error = cli("run", "flow.yaml", "--store", "sqlite:///nowhere/t.db", "--json", code=2).error
    assert error["code"] == "NO_FOLDER"
    assert "nowhere does not exist; create it, or choose another --store" in error["message"]


def test_an_address_that_no_store_can_have_is_bad_usage(cli: Cli) -> None:
    error = cli("list", "--store", "foo://x", "--json", code=2).error
    assert error["code"] == "STORE_URL_INVALID"
    assert "write sqlite:///relative.db" in error["message"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("workflow:\n  - step: pay\n    tool:\n      kind: http\n      url: https://example.com\n      auth: pay_token\n", 6),
        ("keychain:\n  - kind: secrets\n    name: pay_token\nworkflow:\n  - step: pay\n"
         "    tool: {kind: shell, command: echo, env: {K: '{{ keychain.pay_token }}'}}\n", 3),
    ],
    ids=["of a task", "of the keychain"],
)  # fmt: skip
def test_a_secret_that_is_missing_is_told_with_file_line_and_remedy(
    cli: Cli, write: Write, text: str, line: int
) -> None:
    write("flow.yaml", text)
    error = cli("run", "flow.yaml", "--json", code=1).json["error"]
    assert (error["class"], error["code"]) == ("authorization", "SECRET_MISSING")
    assert f"flow.yaml, line {line}: " in error["message"]
    assert (
        "there is no secret named 'pay_token'; set it with `treadle secret set pay_token`" in error["message"]
    )


def test_what_is_wrong_with_an_input_is_told_once_each_with_its_place(cli: Cli, write: Write) -> None:
    schema = "{type: object, properties: {n: {type: integer}, m: {type: integer}}}"
    write("flow.yaml", f"dialect: process\nname: P\nstart: {{schema: {schema}}}\nsteps: [{{complete: 1}}]\n")
    told = cli("run", "flow.yaml", "-i", "n=abc", "-i", "m=def", code=2).err
    assert told.count("'abc' is not of type 'integer'") == 1
    assert told.count("'def' is not of type 'integer'") == 1
    assert "$.m: 'def'" in told or "$.n: 'abc'" in told


def test_an_input_file_that_is_not_there_is_named_without_the_words_of_the_system(
    cli: Cli, write: Write
) -> None:
    write("flow.yaml", "workflow: [{step: a, tool: {kind: noop}}]\n")
    error = cli("run", "flow.yaml", "--input", "@none.json", "--json", code=2).error
    assert error["message"] == "--input: there is no file none.json"


def test_a_store_of_a_newer_treadle_says_what_to_do(cli: Cli, write: Write) -> None:
    file = write("flow.yaml", "workflow: [{step: a, tool: {kind: noop}}]\n")
    cli("run", "flow.yaml", code=0)
    with closing(sqlite3.connect(file.parent / "treadle.db")) as store:
        store.execute("PRAGMA user_version = 99")
    error = cli("run", "flow.yaml", "--json", code=1).error
    assert error["code"] == "STORE_TOO_NEW", error
    assert "use the newer Treadle that wrote it" in error["message"]
