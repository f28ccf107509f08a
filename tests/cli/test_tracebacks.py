"""Errors of Python name the line to look at (PLAYBOOK §6.56)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Cli

Write = Callable[[str, str], Path]

FLOW = """\
metadata: {name: flow, version: "1"}
workflow:
  - step: other
    tool: {kind: python, name: t, code: "result = 1"}
    next: {arcs: [{step: one}]}
  - step: one
    tool:
      - name: t
        kind: python
        code: |
          def main():
              orders = {}

              return orders['custmer']
"""
QUOTED = """\
workflow:
  - step: one
    tool: {kind: python, name: t, code: "x = 1\\nresult = x / 0"}
"""
LOOP = """\
workflow:
  - step: one
    loop: {in: [1, 2], iterator: n, spec: {mode: parallel, max_in_flight: 2, exec: local}}
    tool:
      - name: t
        kind: python
        code: |
          result = 1 / 0
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FLOW, 'File "flow.yaml", line 14, in main'),
        (QUOTED, 'File "flow.yaml", line 3, in'),
        (LOOP, 'File "flow.yaml", line 8, in'),
    ],
    ids=["block", "quoted", "loop"],
)
def test_a_traceback_of_inline_code_names_the_yaml_file_and_its_line(
    cli: Cli, write: Write, text: str, line: str
) -> None:
    write("flow.yaml", text)
    said = cli("run", "flow.yaml", "--id", "a", code=1)
    assert line in said.err
    assert line in cli("show", "a").out
    shown = cli("show", "a", "--json").json
    assert "<t>" not in str(shown["state"])


def test_a_syntax_error_that_only_the_run_finds_names_the_line(cli: Cli, write: Write) -> None:
    # Reading finds nothing wrong with it, compiling does.
    write("flow.yaml", FLOW.replace("orders = {}", "nonlocal orders"))
    said = cli("run", "flow.yaml", "--id", "a", code=1)
    assert "(flow.yaml, line 12)" in said.err


def test_code_that_has_changed_since_is_told_by_its_own_lines(cli: Cli, write: Write) -> None:
    write("flow.yaml", FLOW)
    cli("deploy", "flow.yaml", code=0)
    write("flow.yaml", FLOW.replace("custmer", "customer"))
    said = cli("run", "flow@1", "--id", "a", code=1)
    assert 'File "<t>", line 4, in main' in said.err


def test_the_traceback_of_a_process_is_that_of_the_function_and_nothing_of_ours(
    cli: Cli, write: Write, folder: Path
) -> None:
    write("billing.py", "def charge(payload):\n    return payload['amount'] / 0\n")
    write(
        "p.yaml",
        'dialect: process\nname: P\nversion: "1"\nsteps:\n'
        '  - call: {transport: python, callable: "billing:charge", payload: {amount: 1}}\n',
    )
    said = cli("run", "p.yaml", "--id", "a", code=3)
    for text in (said.err, cli("show", "a").out):
        assert f'File "{folder / "billing.py"}", line 2, in charge' in text
        assert "treadle/tools" not in text


def test_a_script_is_named_by_its_file(cli: Cli, write: Write) -> None:
    write("job.py", "x = 1\nresult = x / 0\n")
    write("flow.yaml", "workflow: [{step: one, tool: {kind: python, script: job.py}}]\n")
    assert 'File "job.py", line 2, in' in cli("run", "flow.yaml", "--id", "a", code=1).err


def test_every_attempt_that_fails_says_why(cli: Cli, write: Write) -> None:
    write(
        "flow.yaml",
        """\
workflow:
  - step: one
    tool:
      - name: t
        kind: shell
        command: "echo no luck >&2; exit 3"
        spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 3, delay: 0}}]}}
""",
    )
    said = cli("run", "flow.yaml", "--id", "a", code=1)
    failed = [line for line in said.err.splitlines() if line.startswith("✗ one › t")]
    assert len(failed) == 3
    assert ["exit" in line for line in failed] == [True, True, True]
