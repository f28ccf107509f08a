"""Small things that users stumbled over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from treadle.cli.application import application
from treadle.cli.form import asked
from treadle.cli.main import app

from .conftest import Cli

Write = Callable[[str, str], Path]


def commands(group: Any = None, *names: str) -> Iterator[tuple[str, ...]]:
    """Every command there is."""
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *names, name)
        else:
            yield *names, name


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_help_shows_words_not_types(cli: Cli, command: tuple[str, ...]) -> None:
    said = cli(*command, "--help", code=0).out
    for type in ("list[", "<bool>", "<str>", "<int", "9223372036854775807"):
        assert type not in said


def test_a_command_is_the_same_by_itself_as_among_all() -> None:
    def told(group: Any) -> dict[str, Any]:
        return {
            name: told(one)
            if hasattr(one, "commands")
            else (one.help, one.epilog, [(p.name, p.opts, p.required) for p in one.params])
            for name, one in group.commands.items()
        }

    alone: dict[str, Any] = {}
    for name in get_command(app).commands:
        alone |= told(get_command(application(name)))
    assert alone == told(get_command(app))


def test_help_says_which_arguments_there_may_be_several_of(cli: Cli) -> None:
    assert "treadle resume [OPTIONS] [ID]..." in cli("resume", "--help", code=0).out
    assert "treadle check [OPTIONS] FILE..." in cli("check", "--help", code=0).out
    assert "treadle task show [OPTIONS] ID" in cli("task", "show", "--help", code=0).out


def test_a_number_beyond_all_numbers_is_refused(cli: Cli) -> None:
    assert cli("list", "--limit", "99999999999999999999").code == 2


def test_the_fields_of_a_form_are_asked_for_one_by_one() -> None:
    schema = {
        "properties": {
            "answer": {"enum": ["yes", "no"], "type": "string"},
            "amount": {"type": "number", "title": "How much"},
            "note": {"type": "string"},
        },
        "required": ["answer", "amount"],
    }
    seen: list[tuple[str, bool]] = []
    typed = iter(["yes", "12.5", ""])

    def ask(label: str, may_be_empty: bool) -> str:
        seen.append((label, may_be_empty))
        return next(typed)

    assert asked(schema, ask) == {"answer": "yes", "amount": 12.5}
    assert seen == [
        ("answer (yes|no)", False),
        ("amount – How much (number)", False),
        ("note (string)", True),
    ]
    assert asked(None, ask) is None


def test_a_run_that_exists_with_another_definition_names_both(cli: Cli, write: Write) -> None:
    write("flow.yaml", 'metadata: {name: flow, version: "1"}\nworkflow: [{step: a, tool: {kind: noop}}]\n')
    cli("run", "flow.yaml", "--id", "a", code=0)
    write("flow.yaml", 'metadata: {name: flow, version: "2"}\nworkflow: [{step: b, tool: {kind: noop}}]\n')
    error = cli("run", "flow.yaml", "--id", "a", "--json", code=2).error
    assert error["code"] == "RUN_EXISTS"
    assert "flow@1 sha256:" in error["message"]
    assert "not flow@2 sha256:" in error["message"]
    assert len(error["details"]["definitions"]) == 2


def test_check_warns_of_a_secret_in_a_command_line(cli: Cli, write: Write) -> None:
    write(
        "flow.yaml",
        """\
keychain: [{name: api, kind: secret, map: {token: TOKEN}}]
workflow:
  - step: bad
    tool: {kind: shell, command: "curl -H {{ keychain.api.token }} x"}
    next: {arcs: [{step: good, when: "{{ event.status == 'ok' }}"}]}
  - step: good
    tool: {kind: shell, command: 'curl -H "$T" x', env: {T: "{{ keychain.api.token }}"}}
""",
    )
    found = cli("check", "flow.yaml", "--json").json["problems"]
    assert [(p["code"], p["line"]) for p in found if p["code"] == "keychain_in_command"] == [
        ("keychain_in_command", 4)
    ]


def test_a_picture_connects_what_the_run_itself_leads_to(cli: Cli, write: Write) -> None:
    write(
        "flow.yaml",
        "executor: {spec: {on_failure: alert}}\n"
        "workflow: [{step: a, tool: {kind: noop}}, {step: alert, tool: {kind: noop}}]\n",
    )
    edges = cli("graph", "flow.yaml", "--json", code=0).json["edges"]
    assert [(e["source"], e["target"], e["label"]) for e in edges if e["dashed"]] == [
        ("(start)", "alert", "on failure")
    ]
