"""Children named by file are found when their caller is loaded, beside it; a name from data is never a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.engine import Engine
from treadle.kernel.errors import DefinitionError, RunFailed
from treadle.testing import assert_replays

DEADLINE_S = 30.0
DISPATCH = """
metadata: {name: dispatch, version: "1"}
workload: {which: report}
workflow: [{step: go, tool: {kind: workflow, workflow: "{{ workload.which }}", args: {}}}]
"""


def flow(name: str, tool: str) -> str:
    return f'metadata: {{name: {name}, version: "1"}}\nworkflow: [{{step: a, tool: {tool}}}]\n'


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    "which",
    [
        "{}/uploads/u.py",
        "{}/uploads/u.yaml",
        "../uploads/u.yaml",
        "../uploads/u",
        "beside",
        "x" * 300,
        "a\0b",
        "",
        ".",
    ],
    ids=lambda which: which[:20],
)
async def test_a_childs_name_that_comes_from_data_is_never_a_path(tmp_path: Path, which: str) -> None:
    mark = tmp_path / "RAN"
    write(tmp_path / "uploads" / "u.py", f"import sys; open({str(mark)!r}, 'w'); sys.exit(3)")
    for file in ("uploads/u.yaml", "flows/beside.yaml"):
        write(tmp_path / file, flow("u", f"{{kind: shell, cmd: 'touch {mark}'}}"))
    dispatch = write(tmp_path / "flows" / "dispatch.yaml", DISPATCH)
    write(tmp_path / "report.yaml", flow("report", "{kind: noop, result: fine}"))
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.deploy(dispatch)
    engine.deploy(tmp_path / "report.yaml")
    async with engine:
        run = await engine.start("dispatch", {"which": which.format(tmp_path)})
        with pytest.raises(RunFailed, match="is deployed"):
            await run.result(DEADLINE_S)
        assert await (await engine.start("dispatch", {"which": "report"})).result(DEADLINE_S) == "fine"
        await assert_replays(engine)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("which", "found"),
    [(None, "null"), (5, "a number"), (["a"], "a list"), ({"a": 1}, "a mapping")],
    ids=["null", "number", "list", "mapping"],
)
async def test_a_childs_name_that_is_no_text_is_named_by_its_field(
    tmp_path: Path, which: object, found: str
) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.deploy(write(tmp_path / "dispatch.yaml", DISPATCH))
    async with engine:
        run = await engine.start("dispatch", {"which": which})
        with pytest.raises(RunFailed, match=f"the field 'workflow' must be a text, and is {found}"):
            await run.result(DEADLINE_S)
        await assert_replays(engine)


async def test_a_child_is_what_its_file_was_when_its_caller_was_deployed(tmp_path: Path) -> None:
    """Also in the next process, and when the file is gone."""
    store = f"sqlite:///{tmp_path}/t.db"
    parent = write(tmp_path / "f" / "parent.yaml", flow("parent", "{kind: playbook, path: sub/child}"))
    child = write(
        tmp_path / "f" / "sub" / "child.yaml", flow("child", "{kind: playbook, path: grandchild.yaml}")
    )
    grandchild = write(
        tmp_path / "f" / "sub" / "grandchild.yaml", flow("grandchild", "{kind: noop, result: 1}")
    )
    engine = Engine(store)
    engine.deploy(parent)
    async with engine:
        assert await (await engine.start("parent")).result(DEADLINE_S) == 1
    write(grandchild, flow("grandchild", "{kind: noop, result: 2}"))
    child.unlink()
    async with Engine(store) as engine:
        assert await (await engine.start("parent")).result(DEADLINE_S) == 1
        assert [row["name"] for row in await engine.definitions()] == ["parent"]
        await assert_replays(engine)


async def test_a_caller_that_is_loaded_again_finds_its_child_as_it_is_now(tmp_path: Path) -> None:
    parent = write(tmp_path / "parent.yaml", flow("parent", "{kind: playbook, path: child}"))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as owner, Engine(f"sqlite:///{tmp_path}/t.db") as guest:
        for number, engine in enumerate((owner, owner, guest, guest)):
            write(tmp_path / "child.yaml", flow("child", f"{{kind: noop, result: {number}}}"))
            (definition,) = engine.load(parent)
            assert await (await engine.start(definition)).result(DEADLINE_S) == number
        await assert_replays(owner)


async def test_a_run_of_a_file_that_was_never_deployed_finds_its_child_after_a_restart(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/t.db"
    text = """
metadata: {name: parent, version: "1"}
workflow:
  - {step: wait, tool: {kind: await, signal: go}, next: {arcs: [{step: call}]}}
  - {step: call, tool: {kind: playbook, path: child}}
"""
    parent = write(tmp_path / "parent.yaml", text)
    child = write(tmp_path / "child.yaml", flow("child", "{kind: noop, result: 7}"))
    async with Engine(store) as engine:
        run = await engine.start(engine.load(parent)[0], id="r")
        await run.settled(timeout=DEADLINE_S)
    child.unlink()
    parent.unlink()
    async with Engine(store) as engine:
        await engine.signal("r", "go")
        assert await (await engine.run("r")).result(DEADLINE_S) == 7
        await assert_replays(engine)


def test_a_file_outside_the_callers_folder_and_code_are_not_found(tmp_path: Path) -> None:
    write(tmp_path / "out.yaml", flow("out", "{kind: noop}"))
    write(tmp_path / "f" / "code.py", "raise SystemExit(3)")
    (tmp_path / "f" / "link.yaml").symlink_to(tmp_path / "out.yaml")
    engine = Engine("memory:")
    for name in ("../out", str(tmp_path / "out.yaml"), "code.py", "code", "link"):
        (definition,) = engine.load(
            write(tmp_path / "f" / "parent.yaml", flow("parent", f"{{kind: playbook, path: {name}}}"))
        )
        assert engine.library.pins[definition.digest] == {}


def test_a_workflow_may_call_itself_by_its_file(tmp_path: Path) -> None:
    parent = write(tmp_path / "parent.yaml", flow("parent", "{kind: playbook, path: parent}"))
    engine = Engine("memory:")
    (definition,) = engine.load(parent)
    assert engine.library.pins[definition.digest] == {"parent": definition.digest}


def test_a_childs_file_that_does_not_compile_is_told_when_its_caller_is_loaded(tmp_path: Path) -> None:
    parent = write(tmp_path / "parent.yaml", flow("parent", "{kind: playbook, path: child}"))
    write(tmp_path / "child.yaml", "workflow: [{step: a, tool: {kind: noop}, nxt: b}]")
    with pytest.raises(DefinitionError, match=r"child\.yaml"):
        Engine("memory:").load(parent)


def test_a_file_of_code_that_exits_is_an_error_and_no_exit(tmp_path: Path) -> None:
    file = write(tmp_path / "exits.py", "import sys; sys.exit(3)")
    with pytest.raises(DefinitionError) as found:
        Engine("memory:").load(file)
    assert found.value.code == "PYTHON_IMPORT"


async def test_a_process_may_be_deployed_with_a_child_that_only_its_file_names(tmp_path: Path) -> None:
    write(tmp_path / "Inner.yaml", "dialect: process\nname: Inner\nsteps: [{complete: 5}]\n")
    outer = write(
        tmp_path / "outer.yaml",
        "dialect: process\nname: Outer\nsteps:\n  - child: {workflow: Inner}\n  - complete: 1\n",
    )
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(outer)
        run = await engine.start("Outer")
        await run.result(DEADLINE_S)
        (child,) = (await run.show())["children"]
        assert (await (await engine.run(child)).show())["result"] == 5
        await assert_replays(engine)
