"""`pure` on a real engine: the same runs with fewer commits, whatever happens in between."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests import nursery

from treadle import Engine
from treadle.agent import TurnReply, TurnRequest
from treadle.testing import assert_replays

PATIENCE_S = 60
STEPS = 60

PLAYBOOK: dict[str, Any] = {
    "metadata": {"name": "count"},
    "workload": {"rounds": STEPS},
    "workflow": [
        {
            "step": "s",
            "tool": {"kind": "add", "n": "{{ args.n | default(0) }}"},
            "next": {
                "arcs": [
                    {
                        "step": "s",
                        "when": "{{ event.result < workload.rounds }}",
                        "args": {"n": "{{ event.result }}"},
                    }
                ]
            },
        }
    ],
}
PROCESS = """
dialect: process
name: Count
version: 1.0.0
steps:
  - set: {state.n: 0}
  - repeat:
      while: {$: state.n < start.rounds}
      max: 1000
      do:
        - call: {transport: add, payload: {$: state.n}, into: n}
        - set: {state.n: {$: result.n}}
  - complete: {$: state.n}
"""


def made(folder: Path, kind: str, *, pure: bool) -> tuple[Engine, str]:
    engine = Engine(f"sqlite:///{folder}/{kind}-{pure}.db")

    def add(n: int = 0) -> int:
        return n + 1

    engine.tool("add", pure=pure)(add)
    engine.transport("add", pure=pure)(add)
    file = folder / ("count.json" if kind == "playbook" else "count.yaml")
    file.write_text(json.dumps(PLAYBOOK) if kind == "playbook" else PROCESS)
    (definition,) = engine.deploy(str(file))
    return engine, definition.name


@pytest.mark.parametrize("kind", ["playbook", "process"])
async def test_pure_steps_are_recorded_as_any_others_are(tmp_path: Path, kind: str) -> None:
    journals: list[list[tuple[str, Any]]] = []
    for pure in (False, True):
        engine, name = made(tmp_path, kind, pure=pure)
        async with engine:
            run = await engine.start(name, {"rounds": STEPS}, id="one")
            assert await run.result(PATIENCE_S) == STEPS
            journals.append([(r["kind"], r["event"].get("value")) for r in await run.journal()])
            await assert_replays(engine)
    assert journals[0] == journals[1]
    assert len(journals[0]) == STEPS + 1


async def test_a_task_may_declare_itself_pure(tmp_path: Path) -> None:
    """Inline code too: it cannot be seen from outside whether it touches anything."""
    book = {
        "metadata": {"name": "inline"},
        "workflow": [
            {
                "step": "a",
                "tool": {"kind": "python", "pure": True, "code": "result = 20 + 1"},
                "next": {"arcs": [{"step": "b", "args": {"n": "{{ a }}"}}]},
            },
            {"step": "b", "tool": [{"kind": "double", "pure": True, "n": "{{ args.n }}"}, {"kind": "noop"}]},
        ],
    }
    file = tmp_path / "inline.json"
    file.write_text(json.dumps(book))
    engine = Engine(f"sqlite:///{tmp_path}/inline.db")
    seen: list[dict[str, Any]] = []

    @engine.tool("double")
    def double(n: int, **more: Any) -> int:
        seen.append(more)
        return 2 * n

    (definition,) = engine.deploy(str(file))
    async with engine:
        run = await engine.start(definition.name)
        shown = await run.settled(timeout=PATIENCE_S)
        assert shown["status"] == "completed"
        assert shown["state"]["steps"]["b"]["status"] == "done"
        assert seen == [{}], "`pure` is no argument of a function"
        await assert_replays(engine)


async def test_a_call_of_inline_code_may_be_pure_and_one_that_goes_outside_may_not(tmp_path: Path) -> None:
    text = """
dialect: process
name: P
version: 1.0.0
steps:
  - call: {transport: %s, %s, pure: true, into: r}
  - complete: {$: result.r}
"""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(text % ("python", "code: 'result = 42'"))
    bad.write_text(text % ("http", "url: 'http://127.0.0.1:1'"))
    engine = Engine(f"sqlite:///{tmp_path}/p.db")
    (definition,) = engine.deploy(str(good))
    assert [problem.code for problem in engine.check(str(bad))] == ["UNKNOWN_FIELD"]
    async with engine:
        assert await (await engine.start(definition.name)).result(PATIENCE_S) == 42
        await assert_replays(engine)


class Rules:
    """A model that only computes."""

    default_model: str | None = None
    small_model: str | None = None
    keeps_history = False
    instant = True

    def __init__(self, *, pure: bool) -> None:
        self.pure = pure

    async def turn(self, request: TurnRequest) -> TurnReply:
        return TurnReply(data={"node": request.node, "seen": len(await request.context())})

    async def close(self) -> None:
        """Nothing is held open."""


async def agent_run(folder: Path, name: str, *, pure: bool, skills: list[str]) -> tuple[list[Any], int]:
    """A chain of nodes: its journal, and how many commits it took."""
    engine = Engine(f"sqlite:///{folder}/{name}.db")
    engine.models["rules"] = Rules(pure=pure)
    names = [f"n{index}" for index in range(STEPS)]
    chain = {
        "id": "chain",
        "name": "Chain",
        "entry": names[0],
        "skills": {"tone": {"name": "Tone", "instruction": "Be kind."}} if skills else {},
        "nodes": {name: {"name": name, "instruction": f"Do {name}.", "skills": skills} for name in names},
        "edges": [{"from": a, "to": b} for a, b in itertools.pairwise(names)],
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(chain))
    engine.deploy(str(file))
    async with engine:
        run = await engine.start("chain", model="rules", id="one")
        found = await run.result(PATIENCE_S)
        assert found["results"][names[-1]]["data"] == {"node": names[-1], "seen": STEPS}
        journal = [(r["kind"], r["event"].get("value")) for r in await run.journal()]
        await assert_replays(engine)
        return journal, sum(engine.meter.commit_seconds.counts)


async def test_turns_of_a_model_that_touches_nothing_outside_share_commits(tmp_path: Path) -> None:
    """The model says so. The journal is the same, with the context that is too large for an intent in it."""
    plain, commits = await agent_run(tmp_path, "plain", pure=False, skills=[])
    pure, fewer = await agent_run(tmp_path, "pure", pure=True, skills=[])
    assert pure == plain
    assert len(plain) == STEPS + 2
    assert commits >= STEPS > fewer


async def test_a_node_with_skills_is_never_begun_before_its_commit(tmp_path: Path) -> None:
    """Whatever its model says: a skill may start a server."""
    _, commits = await agent_run(tmp_path, "skilled", pure=True, skills=["tone"])
    assert commits >= STEPS


async def test_pure_work_reads_what_is_too_large_for_the_journal(tmp_path: Path) -> None:
    """Of the input, and of the step before it, although neither is durable when it is decided."""
    engine = Engine(f"sqlite:///{tmp_path}/large.db")
    engine.transport("twice", pure=True)(lambda text: 2 * text)
    engine.transport("size", pure=True)(len)
    file = tmp_path / "large.yaml"
    file.write_text(
        """
dialect: process
name: Large
version: 1.0.0
steps:
  - call: {transport: twice, payload: {$: start.text}, into: a}
  - call: {transport: twice, payload: {$: result.a}, into: b}
  - call: {transport: size, payload: {$: result.b}, into: n}
  - complete: {$: result.n}
"""
    )
    (definition,) = engine.deploy(str(file))
    async with engine:
        run = await engine.start(definition.name, {"text": 100_000 * "x"})
        assert (await run.settled(timeout=PATIENCE_S))["status"] == "completed"
        assert await run.result(PATIENCE_S) == 400_000
        await assert_replays(engine)


async def test_a_pure_function_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/hangs.db")
    go = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(payload: Any) -> Any:
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(PATIENCE_S)
        return payload

    engine.transport("hang", pure=True)(hang)
    engine.transport("quick", pure=True)(lambda payload: payload)
    for name, first in (("Slow", "quick"), ("Fast", "quick")):
        file = tmp_path / f"{name}.yaml"
        second = "hang" if name == "Slow" else "quick"
        calls = f"  - call: {{transport: {first}, payload: 1}}\n  - call: {{transport: {second}, payload: 2, into: r}}\n"
        file.write_text(
            f"dialect: process\nname: {name}\nversion: 1.0.0\nsteps:\n{calls}  - complete: {{$: result.r}}\n"
        )
        engine.deploy(str(file))
    async with engine:
        slow = await engine.start("Slow")
        assert await (await engine.start("Fast")).result(PATIENCE_S) == 2
        with engine.watch(slow.id) as watch:
            while len(await slow.journal()) < 2:  # what came before it is durable by itself, soon
                await watch.changed(poll_s=0.05)
        go.set()
        assert await slow.result(PATIENCE_S) == 2
        await assert_replays(engine)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from treadle import Engine

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
engine = Engine(f"sqlite:///{folder}/killed.db")

def add(n: int = 0) -> int:
    if n == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return n + 1

def note(n: int = 0) -> int:
    with open(folder / "witness", "a") as file:
        file.write(f"{n}\\n")
    return n + 1

engine.transport("add", pure=True)(add)
engine.transport("note")(note)
engine.deploy(str(folder / "mixed.yaml"))

async def main() -> None:
    async with engine:
        run = await engine.start("Mixed", {"rounds": 40}, id="one")
        print(await run.result(60))

asyncio.run(main())
"""
MIXED = """
dialect: process
name: Mixed
version: 1.0.0
steps:
  - set: {state.n: 0}
  - repeat:
      while: {$: state.n < start.rounds}
      max: 1000
      do:
        - if: {$: state.n % 5 == 4}
          then: [{call: {transport: note, payload: {$: state.n}, into: n}}]
          else: [{call: {transport: add, payload: {$: state.n}, into: n}}]
        - set: {state.n: {$: result.n}}
  - complete: {$: state.n}
"""


def test_a_process_killed_in_the_middle_of_pure_work_goes_on_from_what_is_durable(
    tmp_path: Path,
) -> None:
    (tmp_path / "mixed.yaml").write_text(MIXED)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    for kill_at in (0, 8, 21, 38):
        died = nursery.run([script, tmp_path, str(kill_at)], timeout=PATIENCE_S)
        assert died.returncode == -signal.SIGKILL
        noted = [int(line) for line in (tmp_path / "witness").read_text().split()] if kill_at > 4 else []
        assert noted == list(range(4, kill_at, 5)), "what touches the outside was done once, and is durable"
    last = nursery.run([script, tmp_path, "-1"], timeout=PATIENCE_S)
    assert last.stdout.strip() == "40", last.stderr

    async def look() -> None:
        async with Engine(f"sqlite:///{tmp_path}/killed.db") as engine:
            assert len(await (await engine.run("one")).journal()) == 41
            await assert_replays(engine)

    asyncio.run(look())
