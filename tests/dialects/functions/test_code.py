"""Code that is missing, has changed, or does not do the same again: the run stalls, untouched, and goes on later."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, TreadleError
from treadle.dialects.function.steps import STEPS
from treadle.testing import assert_replays

FILE = """
from treadle import flow

SEEN = []

@flow.step
def a(n: int) -> int:
    return n + 1

@flow.step
def b(n: int) -> int:
    return n * 10

@flow.workflow(version="1")
async def flowing(ctx: flow.Context, n: int) -> int:
    n = await a(n)
    ctx.state["n"] = n
    await ctx.signal("go")
    return await b(n)
"""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test has a file of its own, and a step's name belongs to one file."""
    yield
    for name in ("a", "b"):
        STEPS.pop(name, None)


def write(path: Path, text: str) -> str:
    path.write_text(textwrap.dedent(text))
    return str(path)


async def begun(store: str, file: str) -> None:
    async with Engine(store) as engine:
        engine.deploy(file)
        run = await engine.start("flowing", 1, id="r")
        await run.settled(timeout=30)


@pytest.mark.house
async def test_looking_at_a_run_needs_no_code_and_a_signal_waits_for_it(tmp_path: Path) -> None:
    store, file = f"sqlite:///{tmp_path}/t.db", write(tmp_path / "flowing.py", FILE)
    await begun(store, file)
    async with Engine(store) as engine:
        run = await engine.run("r")
        shown = await run.show()
        assert shown["state"] == {"n": 2}
        seq = shown["version_no"]
        answer = await engine.signal("r", "go")
        assert answer["status"] == "stalled"
        shown = await run.show()
        assert (shown["status"], shown["error"]["code"], shown["version_no"]) == (
            "stalled",
            "CODE_MISSING",
            seq,
        )
        assert [row["status"] for row in await engine.list()] == ["stalled"]
    async with Engine(store) as engine:
        engine.deploy(file)
        run = await engine.run("r")
        assert await run.result(30) == 20
        await assert_replays(engine)


@pytest.mark.house
async def test_a_deploy_takes_a_stalled_run_on_at_once(tmp_path: Path) -> None:
    store, file = f"sqlite:///{tmp_path}/t.db", write(tmp_path / "flowing.py", FILE)
    await begun(store, file)
    async with Engine(store) as engine:
        await engine.signal("r", "go")
        engine.deploy(file)
        assert await (await engine.run("r")).result(30) == 20


@pytest.mark.house
async def test_changed_code_that_makes_the_past_again_takes_the_run_over(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    await begun(store, write(path, FILE))
    write(path, FILE.replace("return await b(n)", "return await b(n) + 1"))
    async with Engine(store) as engine:
        engine.deploy(str(path))
        await engine.signal("r", "go")
        run = await engine.run("r")
        assert await run.result(30) == 21
        kinds = [record["kind"] async for record in _journal(engine, "r")]
        assert kinds.count("apply") == 1
        await assert_replays(engine)


@pytest.mark.house
async def test_comments_docstrings_and_lines_are_no_change(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    await begun(store, write(path, FILE))
    text = FILE.replace("    n = await a(n)", '    """Says more."""\n\n    # and more\n    n = await a(n)')
    write(path, text)
    async with Engine(store) as engine:
        engine.deploy(str(path))
        await engine.signal("r", "go")
        assert await (await engine.run("r")).result(30) == 20
        assert "apply" not in [record["kind"] async for record in _journal(engine, "r")]
        await assert_replays(engine)


@pytest.mark.house
async def test_changed_code_that_does_not_is_code_changed_until_it_is_mended(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    await begun(store, write(path, FILE))
    write(path, FILE.replace("n = await a(n)", "n = await b(n)"))
    async with Engine(store) as engine:
        engine.deploy(str(path))
        await engine.signal("r", "go")
        run = await engine.run("r")
        shown = await run.show()
        assert (shown["status"], shown["error"]["code"]) == ("stalled", "CODE_CHANGED")
        assert "step a" in shown["error"]["message"]
        assert "step b" in shown["error"]["message"]
        write(path, FILE.replace("return await b(n)", "return -await b(n)"))
        engine.deploy(str(path))
        assert await run.result(30) == -20
        await assert_replays(engine)


@pytest.mark.house
async def test_a_patch_guards_a_change_while_runs_are_in_flight(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    await begun(store, write(path, FILE))
    write(
        path,
        FILE.replace("n = await a(n)", "n = await (b(n) if ctx.patched('b first') else a(n))"),
    )
    async with Engine(store) as engine:
        engine.deploy(str(path))
        await engine.signal("r", "go")
        assert await (await engine.run("r")).result(30) == 20
        fresh = await engine.start("flowing", 1, id="s")
        await engine.signal("s", "go")
        assert await fresh.result(30) == 100
        await assert_replays(engine)


@pytest.mark.house
async def test_another_version_is_never_tried(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    await begun(store, write(path, FILE))
    write(path, FILE.replace('version="1"', 'version="2"'))
    async with Engine(store) as engine:
        engine.deploy(str(path))
        await engine.signal("r", "go")
        shown = await (await engine.run("r")).show()
        assert (shown["status"], shown["error"]["code"]) == ("stalled", "CODE_MISSING")
        assert (await engine.cancel("r"))["status"] == "cancelled"


async def test_a_file_that_was_written_twice_within_a_second_is_what_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python keeps bytecode by seconds and size; what is deployed goes by what is written there."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "twice.py"
    text = "from treadle import flow\n\n@flow.workflow\nasync def twice(ctx: flow.Context) -> int:\n    return 1\n"
    for number in (1, 2):
        write(path, text.replace("return 1", f"return {number}"))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        async with Engine(f"sqlite:///{tmp_path}/{number}.db") as engine:
            engine.deploy(str(path))
            assert await (await engine.start("twice")).result(timeout=60) == number


def test_a_file_is_the_same_from_whatever_folder_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.py", FILE)
    Engine("memory:").load("a.py")
    Engine("memory:").load(str(tmp_path / "a.py"))  # else its steps would be taken for those of another file


RANDOM = """
from treadle import flow
import {module}

@flow.workflow
async def careless(ctx: flow.Context) -> str:
    return str({call})
"""


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("time", "time.time()"),
        ("datetime", "datetime.datetime.now()"),
        ("random", "random.random()"),
        ("uuid", "uuid.uuid4()"),
        ("os", "os.environ['HOME']"),
        ("os", "os.getcwd()"),
        ("io", "open('/etc/hosts')"),
        ("threading", "threading.Thread()"),
        ("subprocess", "subprocess.run(['true'])"),
    ],
)
def test_what_the_source_names_is_refused_at_decoration(tmp_path: Path, module: str, call: str) -> None:
    file = write(tmp_path / "careless.py", RANDOM.format(module=module, call=call))
    with pytest.raises(TreadleError) as caught:
        Engine("memory:").load(file)
    assert "careless.py:7" in str(caught.value)


@pytest.mark.house
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("__import__('time').time()", "time.time"),
        ("getattr(__import__('random'), 'random')()", "random.random"),
        ("getattr(__import__('os'), 'getpid')()", "os.getpid"),
        ("getattr(__import__('uuid'), 'uuid4')()", "os.urandom"),
        ("getattr(__import__('socket'), 'gethostname')()", "socket.gethostname"),
    ],
)
async def test_what_it_hides_is_seen_when_it_runs(tmp_path: Path, call: str, name: str) -> None:
    text = (
        RANDOM.format(module="json", call="hidden()")
        + f"\ndef hidden():\n    try:\n        return {call}\n    except BaseException:\n        return 1\n"
    )
    file = write(tmp_path / "careless.py", text)
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        engine.deploy(file)
        with pytest.raises(TreadleError) as caught:
            await engine.start("careless", id="r")
        assert caught.value.code == "NOT_DETERMINISTIC"
        assert name in caught.value.message
        assert "careless.py:" in str(caught.value.where)
        assert await engine.list() == []


async def _journal(engine: Engine, id: str) -> Any:
    from treadle.runtime import document

    for record in await engine.read(lambda reads: list(document.journal(reads, document.row_of(reads, id)))):
        yield record


# --- stalled, in every way that a function can be other than it was ---

LATER = """
from treadle import flow

@flow.step
def a(n: int) -> int:
    return n + 1

@flow.workflow(version="1", guard={guard})
async def flowing(ctx: flow.Context, n: int) -> int:
    await ctx.signal("go")
    {line}
    return await a(n)
"""
OFFENCES = {
    "clock": ("getattr(__import__('time'), 'time')()", "time.time", "ctx.now()"),
    "chance": ("getattr(__import__('random'), 'random')()", "random.random", "ctx.random"),
    "file": ("getattr(__import__('io'), 'open')('/etc/hosts')", "open", "@flow.step"),
    "socket": ("getattr(__import__('socket'), 'socket')()", "socket", "@flow.step"),
    "process": ("getattr(__import__('subprocess'), 'run')(['true'])", "", "@flow.step"),
    "thread": ("getattr(__import__('threading'), 'Thread')(target=print).start()", "Thread", "create_task"),
    "environment": ("getattr(__import__('os'), 'environ')['HOME']", "os.environ", "@flow.step"),
    "executor": (
        "__import__('asyncio').get_running_loop().run_in_executor(None, print)",
        "run_in_executor",
        "step",
    ),
}


@pytest.mark.house
@pytest.mark.parametrize("kind", OFFENCES)
async def test_what_is_not_recorded_stalls_the_run_until_the_code_is_mended(
    kind: str, tmp_path: Path
) -> None:
    line, name, remedy = OFFENCES[kind]
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    write(path, LATER.format(guard=True, line=line))
    await begun(store, str(path))
    async with Engine(store) as engine:
        engine.deploy(str(path))
        run = await engine.run("r")
        seq = (await run.show())["version_no"]
        await engine.signal("r", "go")
        shown = await run.show()
        error = shown["error"]
        assert (shown["status"], error["code"]) == ("stalled", "NOT_DETERMINISTIC")
        assert name in error["message"]
        assert remedy in error["message"]
        assert error["where"] == "flowing.py:11"
        assert shown["version_no"] == seq, "no record is written"
        write(path, LATER.format(guard=True, line="n += 1"))
        engine.deploy(str(path))
        assert await run.result(30) == 3, "mended code takes it up, and the signal had waited"
        await assert_replays(engine)


@pytest.mark.house
async def test_without_the_guard_a_function_may_look_at_the_clock(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    write(path, LATER.format(guard=False, line=OFFENCES["clock"][0]))
    await begun(store, str(path))
    async with Engine(store) as engine:
        engine.deploy(str(path))
        await engine.signal("r", "go")
        assert await (await engine.run("r")).result(30) == 2


CHANCY = """
import pathlib
from treadle import flow

@flow.step
def a(n: int) -> int:
    return n + 1

@flow.step
def b(n: int) -> int:
    return n * 10

@flow.workflow(version="1", guard=False)
async def flowing(ctx: flow.Context, n: int) -> int:
    if pathlib.Path(__file__).with_name("other").exists():
        await b(n)
    n = await a(n)
    await ctx.signal("go")
    return n
"""


@pytest.mark.house
async def test_code_that_does_something_else_is_stalled_with_both_lines_and_retried(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    write(path, CHANCY)
    await begun(store, str(path))
    other = tmp_path / "other"
    other.touch()
    async with Engine(store) as engine:
        engine.deploy(str(path))
        run = await engine.run("r")
        seq = (await run.show())["version_no"]
        await engine.signal("r", "go")
        error = (await run.show())["error"]
        assert error["code"] == "NOT_DETERMINISTIC"
        assert {
            key: error["details"][key] for key in ("seq", "expected", "got", "expected_at", "got_at")
        } == {
            "seq": 1,
            "expected": "step a",
            "got": "step b",
            "expected_at": "flowing.py:17",
            "got_at": "flowing.py:16",
        }
        assert (await run.show())["version_no"] == seq
        other.unlink()
        await engine.retry("r")
        assert await run.result(30) == 2
        await assert_replays(engine)


NEWER = """
from treadle import flow

@flow.workflow(version="{version}")
async def flowing(ctx: flow.Context, n: int) -> str:
    await ctx.signal("go")
    if n < {rounds}:
        ctx.continue_as(n + 1)
    return "{version} {rounds}"
"""


@pytest.mark.house
async def test_a_run_that_continues_as_itself_takes_the_newest_code(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/t.db", tmp_path / "flowing.py"
    write(path, NEWER.format(version="1", rounds=5))
    async with Engine(store) as engine:
        engine.deploy(str(path))
        run = await engine.start("flowing", 1, id="r")
        await engine.signal("r", "go")
        write(path, NEWER.format(version="2", rounds=3))
        engine.deploy(str(path))
        await engine.signal("r", "go")  # decided by the old code, which continues as the new
        await engine.signal("r", "go")
        assert await run.result(30) == "2 3"
        assert (await run.show())["version"] == "2"
        assert [row["version"] for row in await engine.list()] == ["2"]
        (started,) = [record["seq"] for record in await run.journal() if record["kind"] == "started"]
        assert (await run.show(at=started))["version"] == "1"
        assert "apply" in [record["kind"] for record in await run.journal()]
        await assert_replays(engine)


def test_a_name_of_a_step_belongs_to_one_file(tmp_path: Path) -> None:
    engine = Engine("memory:")
    engine.load(write(tmp_path / "one.py", FILE))
    engine.load(write(tmp_path / "one.py", FILE))
    with pytest.raises(TreadleError) as caught:
        engine.load(write(tmp_path / "two.py", FILE))
    assert caught.value.code == "NAME_TAKEN"


def test_check_warns_of_walking_over_a_set(tmp_path: Path) -> None:
    text = RANDOM.format(module="json", call="[x for x in {1, 2}]")
    (problem,) = Engine("memory:").check(write(tmp_path / "careless.py", text))
    assert (problem.severity, problem.code, problem.line) == ("warning", "SET_ORDER", 7)
