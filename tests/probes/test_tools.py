"""Code in warm Python processes that breaks what answers are made with, queries over a folder of odd things, and a secret
that is not there: each call ends with an outcome that says what is wrong, and the next one works."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from treadle import Engine
from treadle.kernel.errors import ToolError
from treadle.kernel.values import encode
from treadle.performers.agent.skills.duckdb import _query
from treadle.testing import assert_replays
from treadle.tools.protocol import ToolCall
from treadle.tools.python import PythonTool

DEADLINE_S = 60.0


def _sends(frame: str) -> str:
    """Code that writes to its channel as if it were the process itself."""
    return (
        "import gc\n"
        "for found in gc.get_objects():\n"
        "    if type(found).__name__ == 'Channel':\n"
        f"        found.send({frame.encode()!r})\n"
    )


# What the code does to its process, and the code of what comes of it; None: it is well.
BROKEN = {
    "a frame that is a list": (_sends("[1, 2]"), "FOREIGN_ANSWER"),
    "a frame that is no JSON": (_sends("{nope"), "FOREIGN_ANSWER"),
    "an answer without its end": (_sends('{"result": 1}'), "FOREIGN_ANSWER"),
    "output of nobody": (_sends('{"out": "x"}'), "FOREIGN_ANSWER"),
    "output that is a number": (_sends('{"out": 1, "stream": "stdout"}'), "FOREIGN_ANSWER"),
    "an error that is a number": (_sends('{"error": 7, "retire": true}'), "FOREIGN_ANSWER"),
    "an error without words": (_sends('{"error": "E", "retire": true}'), "FOREIGN_ANSWER"),
    "JSON that is as deep as the sea": (_sends("[" * 100_000), "FOREIGN_ANSWER"),
    "another JSON": ("import json\njson.dumps = lambda *a, **k: '{}'\nresult = 1", "FOREIGN_ANSWER"),
    "another way to pack": ("import struct\nstruct.pack = lambda *a: bytes(4)\nresult = 1", "FOREIGN_ANSWER"),
    "no JSON any more": ("import json\njson.dumps = None\nresult = 1", "PROCESS_DIED"),
    "all descriptors closed": ("import os\nos.closerange(0, 100)\nresult = 1", "PROCESS_DIED"),
    "half a frame": ("import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'x')\n    except OSError: pass\nos._exit(0)", "PROCESS_DIED"),
    "no print any more": ("import builtins\nbuiltins.print = None\nresult = 1", None),
    "100 MB of prints": ("for _ in range(100): print('x' * 1_000_000)\nresult = 1", None),
    "half a character printed": ("print('\\ud800')\nresult = 1", None),
    "children that stay": ("import os, time\nif os.fork() == 0: time.sleep(600)\nresult = 1", None),
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def python() -> AsyncIterator[PythonTool]:
    tool = PythonTool(processes=1)
    yield tool
    await tool.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("what", BROKEN)
async def test_code_that_breaks_its_process_fails_its_own_call_only(python: PythonTool, what: str) -> None:
    code, wanted = BROKEN[what]
    async with asyncio.timeout(DEADLINE_S):
        outcome = await python.run({"code": code}, ToolCall())
        assert (outcome.error or {"code": None})["code"] == wanted, outcome
        assert (await python.run({"code": "result = 'good'"}, ToolCall())).result == "good"


@pytest.mark.asyncio(loop_scope="module")
async def test_what_a_call_leaves_for_the_end_of_its_process_holds_no_other_up(python: PythonTool) -> None:
    later = "import atexit, time\natexit.register(lambda: time.sleep(600))\nresult = 1"
    async with asyncio.timeout(DEADLINE_S):
        assert (await python.run({"code": later}, ToolCall())).result == 1
        outcome = await python.run({"code": "import json\njson.dumps = None\nresult = 1"}, ToolCall())
    assert outcome.error is not None
    assert outcome.error["code"] == "PROCESS_DIED"


async def test_one_odd_thing_in_a_folder_keeps_no_query_from_the_rest(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    (tmp_path / "a.csv").write_text("x\n1\n")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xe9.csv")).write_text("x\n2\n")
    os.mkfifo(tmp_path / "pipe.csv")
    for name, target in {
        "itself.csv": "itself.csv",
        "gone.csv": "nowhere",
        "device.csv": "/dev/zero",
    }.items():
        os.symlink(target, tmp_path / name)
    asked = "SELECT x, 'nan'::DOUBLE, '-inf'::DOUBLE, (2::HUGEINT ** 80)::HUGEINT FROM '*.csv'"
    async with asyncio.timeout(DEADLINE_S):
        found = await _query(asked, str(tmp_path), None)
        assert found["rows"] == [[1, "nan", "-inf", str(2**80)]]
        encode(found)
        with pytest.raises(ToolError, match="half a character"):
            await _query("SELECT '\ud800'", str(tmp_path), None)


PROCESS = """dialect: process
name: pays
version: '1'
steps:
  - set: {state.n: 1}
  - if: {$: "state.n == 1"}
    then:
      - call:
          transport: http
          url: http://127.0.0.1:9/
          auth: {type: bearer, credential: the_bank}
"""


async def test_a_secret_that_a_process_lacks_is_told_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "pays.yaml"
    file.write_text(PROCESS)
    line = next(n for n, text in enumerate(PROCESS.splitlines(), 1) if "the_bank" in text)
    async with Engine(f"sqlite:///{tmp_path / 't.db'}") as engine:
        run = await engine.start(engine.load(file)[0], None)
        error = (await run.settled(timeout=DEADLINE_S))["error"]
        assert error["code"] == "SECRET_MISSING"
        assert error["message"].startswith(
            f"{file}, line {line}: there is no secret named 'the_bank'; set it"
        )
        await assert_replays(engine)
