"""What steps printed and how they went, told by step from what is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .conftest import Cli

Write = Callable[[str, str], Path]

FLOW = """\
metadata: {name: flow}
workload: {who: ann}
workflow:
  - step: greet
    args: {who: "{{ workload.who }}"}
    tool: {name: say, kind: python, code: "print('hello', who); result = {'said': who}"}
    next: {arcs: [{step: many}]}
  - step: many
    loop: {in: [1, 2], iterator: n}
    tool: {name: one, kind: shell, command: "echo item {{ iter.n }}; echo odd >&2"}
    next: {arcs: [{step: fail}]}
  - step: fail
    tool:
      - name: try
        kind: shell
        command: "echo trying; exit 3"
        spec: {policy: {rules: [{when: "{{ outcome.status == 'error' }}", then: {do: retry, attempts: 2, delay: 0}}]}}
"""


def test_logs_print_what_was_printed_by_step(cli: Cli, write: Write) -> None:
    write("flow.yaml", FLOW)
    cli("run", "flow.yaml", "--id", "a", code=1)
    said = cli("logs", "a", code=0).out
    assert "greet say  hello ann" in said
    assert "many #1 one  item 2" in said
    assert "! odd" in said
    entries = cli("logs", "a", "--json", "--step", "fail", code=0).lines
    assert [(entry["step"], entry["task"], entry["attempt"], entry["text"]) for entry in entries] == [
        ("fail", "try", 1, "trying\n"),
        ("fail", "try", 2, "trying\n"),
    ]
    assert "hello" not in cli("logs", "a", "--step", "many", "--follow", code=0).out
    assert "nothing was printed" in cli("logs", "a", "--step", "nobody", code=0).err


def test_logs_of_a_process_name_the_call(cli: Cli, write: Write) -> None:
    write(
        "p.yaml",
        "dialect: process\nname: P\nsteps: [{id: pay, call: {transport: python, code: 'print(42)'}}]\n",
    )
    cli("run", "p.yaml", "--id", "p", code=0)
    (entry,) = cli("logs", "p", "--json", code=0).lines
    assert (entry["text"], entry["path"]) == ("42\n", "steps[0]")


def test_show_of_a_step_has_its_input_output_attempts_and_logs(cli: Cli, write: Write) -> None:
    write("flow.yaml", FLOW)
    cli("run", "flow.yaml", "--id", "a", code=1)
    greet = cli("show", "a", "--step", "greet", "--json", code=0).json
    (run,) = greet["runs"]
    assert (greet["status"], run["input"]["args"], run["output"]) == ("done", {"who": "ann"}, {"said": "ann"})
    assert [entry["text"] for entry in greet["logs"]] == ["hello ann\n"]
    failed = cli("show", "a", "--step", "fail", "--json", code=0).json
    assert [(a["attempt"], a["error"]["code"]) for a in failed["attempts"] if "task" in a] == [
        (1, "EXIT_3"),
        (2, "EXIT_3"),
    ]
    text = cli("show", "a", "--step", "fail", code=0).out
    assert "exited with code 3" in text
    assert "attempt 2" in text
    assert "trying" in text
    assert "nothing of a is called 'nope'" in cli("show", "a", "--step", "nope", code=2).err
