"""`treadle check FILE.py` tells every finding of every function: file, line, rule, remedy; exit 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from treadle import Engine, TreadleError, flow
from treadle.cli.main import app
from treadle.dialects.function.steps import STEPS

FILE = """\
import os, random, time
from treadle import flow

@flow.step(name="check.charge", retry={"attempts": 0, "backof": 1}, timeout="soon", secrets="KEY")
def charge(): ...

@flow.workflow
async def order(ctx):
    time.time()
    return await helper()

async def helper():
    return random.random()

@flow.workflow(timeout="later")
def plain(ctx, a, b): ...

@flow.workflow
async def careless(ctx):
    for n in {1, 2}:
        await ctx.sleep(n)
    return os.environ["HOME"]

@flow.step(name="check.pay")
def pay(): ...

@flow.step(name="check.pay")
def bill(): ...

flow.workflow(7)
flow.step(7)

@flow.workflow
async def good(ctx):
    return await charge.options(timeout="1s")()

@flow.workflow(name="good")
async def twin(ctx):
    return 1
"""
FOUND = [
    (4, "FUNCTION_SETTING", "retry has no 'backof'"),
    (4, "FUNCTION_SETTING", "retry.attempts"),
    (4, "FUNCTION_SETTING", "timeout: 'soon' is not a duration"),
    (4, "FUNCTION_SETTING", "secrets is a list of names, not 'KEY'"),
    (9, "NOT_DETERMINISTIC", "time.time()"),
    (13, "NOT_DETERMINISTIC", "random.random()"),
    (15, "FUNCTION_SETTING", "timeout: 'later' is not a duration"),
    (16, "FUNCTION_SHAPE", "async def"),
    (16, "FUNCTION_SHAPE", "takes (ctx) or (ctx, input)"),
    (20, "SET_ORDER", "set"),
    (22, "NOT_DETERMINISTIC", "os.environ is not recorded"),
    (28, "NAME_TAKEN", "check.pay"),
    (30, "FUNCTION_SHAPE", "a workflow is a function"),
    (31, "FUNCTION_SHAPE", "a step is a function"),
    (38, "NAME_TAKEN", "good@1"),
]


def test_every_finding_of_every_function_is_told_with_its_line_and_remedy(tmp_path: Path) -> None:
    file = tmp_path / "flows.py"
    file.write_text(FILE)
    done = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert done.exit_code == 2
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert [(p["line"], p["code"]) for p in told["problems"]] == [(line, code) for line, code, _ in FOUND]
    for problem, (_, _, words) in zip(told["problems"], FOUND, strict=True):
        assert words in problem["message"]
        assert problem["file"] == str(file)
        assert problem["hint"], problem
    shown = CliRunner().invoke(app, ["check", str(file)])
    assert f"{file}:13: error: random.random() is not recorded" in shown.stderr.replace("\n", " ")
    assert shown.exit_code == 2


def test_what_is_only_checked_is_not_known_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "flows.py"
    file.write_text(FILE)
    Engine("memory:").check(str(file))
    assert "check.charge" not in STEPS
    with pytest.raises(TreadleError):
        Engine("memory:").load(str(file))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("x = 1\nimport nothing_of_this_name\n", 2, "ModuleNotFoundError"),
        ("x = 1\ny = (\n", 2, "SyntaxError"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit"),
    ],
)
def test_a_file_that_cannot_be_imported_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, said: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    (problem,) = Engine("memory:").check(str(file))
    assert (problem.code, problem.file, problem.line) == ("PYTHON_IMPORT", str(file), line)
    assert said in problem.message
    with pytest.raises(TreadleError) as caught:
        Engine("memory:").load(str(file))
    assert caught.value.where == f"{file}:{line}"
    monkeypatch.chdir(tmp_path)
    (problem,) = Engine("memory:").check("broken.py")
    assert (problem.file, problem.line) == ("broken.py", line)


def test_two_functions_of_a_module_do_not_share_the_name_of_a_step() -> None:
    @flow.step(name="check.shared")
    def one() -> None: ...

    with pytest.raises(TreadleError) as caught:

        @flow.step(name="check.shared")
        def other() -> None: ...

    assert caught.value.code == "NAME_TAKEN"
    assert STEPS["check.shared"] is one


def test_a_step_that_is_typed_again_in_a_notebook_is_taken() -> None:
    """Each cell is a file of its own, all share one namespace."""
    cell = "@flow.step(name='check.cell')\ndef cell() -> int:\n    return {n}\n"
    space = {"flow": flow, "__name__": "__main__"}
    for n in (1, 2):
        exec(compile(cell.format(n=n), f"/tmp/ipykernel_1/{n}.py", "exec"), space)
    assert STEPS["check.cell"].function() == 2
