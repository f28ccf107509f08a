"""check, deploy, definitions, export, graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .conftest import Cli
from .flows import BROKEN, ETL, RENEWAL, SHOP, TRIAGE

Write = Callable[[str, str], Path]

PROBLEM = {"severity", "code", "rule", "message", "hint", "file", "line", "column", "path"}


def test_check_of_good_files(cli: Cli, write: Write, folder: Path) -> None:
    for name, text in {"a.yaml": ETL, "b.yaml": RENEWAL, "c.yaml": TRIAGE}.items():
        write(name, text)
    document = cli("check", "a.yaml", "b.yaml", "c.yaml", "--json", code=0).json
    assert document["ok"] is True
    assert [p for p in document["problems"] if p["severity"] == "error"] == []
    assert cli("check", ".", code=0).out == ""
    assert sorted(path.name for path in folder.iterdir()) == ["a.yaml", "b.yaml", "c.yaml"]


def test_check_lists_all_problems_of_all_files_at_once(cli: Cli, write: Write) -> None:
    write("bad.yaml", BROKEN)
    write("worse.yaml", "a: [1,\n")
    write("good.yaml", ETL)
    document = cli("check", "bad.yaml", "worse.yaml", "good.yaml", "missing.yaml", "--json", code=2).json
    assert document["ok"] is False
    for problem in document["problems"]:
        assert problem.keys() == PROBLEM
    assert {problem["file"] for problem in document["problems"]} == {"bad.yaml", "worse.yaml", "missing.yaml"}
    assert len([p for p in document["problems"] if p["file"] == "bad.yaml"]) == 2


@pytest.mark.parametrize(
    "text",
    [
        "import nothing_of_that_name\n",
        "from treadle.process import process, state\n\n@process('P', version='1')\ndef p(p):\n    p.set(state.x, open)\n",
    ],
)
def test_problems_of_python_files_are_problems_too(cli: Cli, write: Write, text: str) -> None:
    write("flow.py", text)
    document = cli("check", "flow.py", "--json", code=2).json
    (problem,) = document["problems"]
    assert problem.keys() == PROBLEM
    assert problem["file"].endswith("flow.py")
    assert cli("run", "flow.py", "--json", code=2).error["class"] == "definition"


def test_a_folder_without_definitions_is_a_mistake(cli: Cli, folder: Path) -> None:
    (folder / "empty").mkdir()
    for command in ("check", "deploy"):
        assert "holds no definitions" in cli(command, "empty", "--json", code=2).error["message"]


def test_check_for_people_names_place_and_remedy(cli: Cli, write: Write) -> None:
    write("bad.yaml", BROKEN)
    answer = cli("check", "bad.yaml", code=2)
    assert answer.out == ""
    assert "bad.yaml:5:5: error: " in answer.err
    assert "2 errors" in answer.err


def test_deploy_then_run_by_name_and_version(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    (row,) = cli("deploy", "p.yaml", "--json", code=0).json
    assert row.keys() == {"name", "version", "dialect", "digest", "status", "reasons"}
    assert (row["name"], row["version"], row["status"]) == ("PolicyRenewal", "1.2.0", "available")
    assert cli("definitions", "--json", code=0).json == [row]
    for name in ("PolicyRenewal", "PolicyRenewal@1.2.0"):
        document = cli("run", name, "-i", "policy_id=1", "--json", code=3).json
        assert (document["digest"], document["version"]) == (row["digest"], "1.2.0")
    assert cli("run", "PolicyRenewal@9", "--json", code=2).error["code"] == "UNKNOWN_WORKFLOW"


def test_a_taken_version_is_refused(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    cli("deploy", "p.yaml", code=0)
    cli("deploy", "p.yaml", code=0)
    write("p.yaml", RENEWAL.replace("renewed", "changed"))
    error = cli("deploy", "p.yaml", "--json", code=2).error
    assert (error["class"], error["code"]) == ("definition", "VERSION_TAKEN")
    assert cli("deploy", "p.yaml", "--validation", "nonsense", "--json", code=2).error["code"] == "USAGE"


def test_warn_keeps_a_definition_whose_child_is_missing_as_unavailable(cli: Cli, write: Write) -> None:
    write("p.yaml", "dialect: process\nname: Parent\nversion: 1.0.0\nsteps:\n  - child: {workflow: Nobody}\n")
    assert cli("deploy", "p.yaml", "--json", code=2).error["class"] == "definition"
    (row,) = cli("deploy", "p.yaml", "--validation", "warn", "--json", code=0).json
    assert row["status"] == "unavailable"
    assert "Nobody" in row["reasons"][0]


@pytest.mark.parametrize("text", [RENEWAL, ETL, TRIAGE], ids=["process", "playbook", "agent"])
@pytest.mark.parametrize("format", ["yaml", "json"])
def test_export_and_import_is_the_identity(cli: Cli, write: Write, text: str, format: str) -> None:
    write("one.yaml", text)
    first = cli("export", "one.yaml", "--format", format, code=0).out
    write(f"two.{format}", first)
    assert cli("export", f"two.{format}", "--format", format, code=0).out == first
    assert cli("check", f"two.{format}", "--json").json["ok"] is True


def test_export_of_a_deployed_process_as_python_gives_the_same_digest(
    cli: Cli, write: Write, folder: Path
) -> None:
    write("p.yaml", RENEWAL)
    (row,) = cli("deploy", "p.yaml", "--json").json
    cli("export", "PolicyRenewal@1.2.0", "--format", "python", "-o", "p.py", code=0)
    (again,) = cli("deploy", "p.py", "--store", f"sqlite:///{folder}/other.db", "--json", code=0).json
    assert again["digest"] == row["digest"]
    assert cli("export", "PolicyRenewal", "--canonical", "--json", code=0).json["name"] == "PolicyRenewal"


def test_export_says_what_it_cannot(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    assert (
        "choose yaml or json"
        in cli("export", "flow.yaml", "--format", "python", "--json", code=1).error["message"]
    )
    assert cli("export", "flow.yaml", "--format", "xml", "--json", code=1).error["message"]
    assert cli("export", "nothing", "--json", code=2).error["code"] == "UNKNOWN_WORKFLOW"
    assert cli("export", "flow.yaml", "-o", "no/such/folder.yaml", "--json", code=2).error["code"] == "USAGE"


@pytest.mark.parametrize("text", [RENEWAL, ETL, TRIAGE], ids=["process", "playbook", "agent"])
def test_graph_of_a_definition_in_every_format(cli: Cli, write: Write, folder: Path, text: str) -> None:
    write("flow.yaml", text)
    ElementTree.fromstring(cli("graph", "flow.yaml", code=0).out)
    assert "flowchart TD" in cli("graph", "flow.yaml", "--format", "mermaid", code=0).out
    assert cli("graph", "flow.yaml", "--format", "dot", code=0).out.startswith("digraph ")
    cli("graph", "flow.yaml", "-o", "flow.png", code=0)
    assert (folder / "flow.png").read_bytes().startswith(b"\x89PNG")
    document = cli("graph", "flow.yaml", "--json", code=0).json
    assert document.keys() == {"title", "nodes", "edges"}


def test_graph_of_a_run_shows_where_it_is(cli: Cli, write: Write) -> None:
    write("p.yaml", RENEWAL)
    cli("run", "p.yaml", "-i", "policy_id=1", "--id", "r", code=3)
    nodes = {node["label"]: node["status"] for node in cli("graph", "r", "--json", code=0).json["nodes"]}
    assert nodes["approve"] == "waiting"
    assert nodes["documents"] == "idle"
    assert "waiting" in cli("graph", "r", "--format", "mermaid").out


def test_graph_of_an_application_joins_its_workflows(cli: Cli, write: Write) -> None:
    write("shop.py", SHOP)
    document = cli("graph", "shop.py:app", "--json", code=0).json
    assert {node["label"] for node in document["nodes"]} >= {
        "com.acme/order@1",
        "OrderCreated",
        "payment/charge@1",
    }


def test_graph_of_nothing(cli: Cli) -> None:
    assert cli("graph", "nothing", "--json", code=2).error["code"] in ("UNKNOWN_WORKFLOW", "RUN_NOT_FOUND")
    assert cli("graph", "missing.yaml", "--json", code=2).error["code"] == "FILE_NOT_FOUND"
