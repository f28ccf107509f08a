"""What a model may ask of the files skill, in a folder of odd things: pipes, sockets, links that lead to themselves or out,
names that are no text. Each call comes to an end, with an answer or words of ours, and nothing outside is touched."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from treadle.kernel.errors import ToolError
from treadle.kernel.values import encode
from treadle.performers.agent.handlers import run_handler
from treadle.performers.agent.skill import ToolContext
from treadle.performers.agent.skills.files import files_skill

DEADLINE_S = 60.0
SKILL = files_skill()
# Paths that are refused, whatever is asked; all others may be answered.
REFUSED = (
    *("../outside/kept", "out/kept", "kept", "gone", "device", "/etc/passwd", "//etc/passwd", "sub/../../outside/kept"),
    *("itself", "to each other", ".env", ".ENV", "innocent", "a\0b", "\ud800", "x" * 5000, "y/" * 3000),
)  # fmt: skip
NO_FILES = ("pipe", "to the pipe", "socket", "sub", "", ".", "a.txt/..")
ANY = (
    "a.txt",
    "a.txt/",
    "./a.txt",
    "sub/../a.txt",
    "~/x",
    "%2e%2e/x",
    "cafe\u0301.txt",
    "-rf",
    "*",
    "new\n",
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside, root / "sub"):
        folder.mkdir()
    (outside / "kept").write_text("kept")
    (root / "a.txt").write_text("needle")
    (root / ".env").write_text("KEY=needle")
    (root / "caf\u00e9.txt").write_text("")
    Path(os.fsdecode(os.fsencode(root) + b"/b\xe9.txt")).write_text("needle")
    os.mkfifo(root / "pipe")
    links = {"out": "../outside", "kept": "../outside/kept", "gone": "../outside/gone", "device": "/dev/zero"}
    links |= {"itself": "itself", "to each other": "from each other", "from each other": "to each other"}
    for name, target in {**links, "innocent": ".env", "to the pipe": "pipe"}.items():
        os.symlink(target, root / name)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(root / "socket"))
        yield root


async def _ask(root: Path, tool: str, **input: Any) -> Any:
    context = ToolContext(
        config={"FILES_ROOT": str(root)},
        logger=logging.getLogger("probe"),
        idempotency_key="k",
        run_id="r",
        node="n",
        progress=lambda text: None,
        base=str(root),
        _options={},
    )
    async with asyncio.timeout(DEADLINE_S):
        found = await run_handler(SKILL.tools[tool], input, context, lambda: None)
    encode(found)  # the model can be told
    return found


async def test_no_odd_path_leads_out_or_holds_a_call_up(place: Path) -> None:
    for tool, more in (
        ("read_file", {}),
        ("write_file", {"text": "w"}),
        ("list_files", {}),
        ("search_files", {"text": "e"}),
    ):
        reads_files = tool in ("read_file", "write_file")
        for path in (*REFUSED, *(NO_FILES if reads_files else ())):
            with pytest.raises(ToolError) as refused:
                await _ask(place, tool, path=path, **more)
            assert str(place) not in refused.value.message
        for path in ANY:
            with suppress(ToolError):
                await _ask(place, tool, path=path, **more)
    assert (place.parent / "outside" / "kept").read_text() == "kept"
    assert [found.name for found in (place.parent / "outside").iterdir()] == ["kept"]


async def test_one_odd_thing_in_a_folder_hides_nothing_else(place: Path) -> None:
    assert set((await _ask(place, "list_files"))["files"]) == {"a.txt", "b\ufffd.txt", "caf\u00e9.txt"}
    assert {match["file"] for match in (await _ask(place, "search_files", text="needle"))["matches"]} == {
        *("a.txt", "b\ufffd.txt")
    }


async def test_a_text_that_cannot_be_written_costs_no_file_its_contents(place: Path) -> None:
    with pytest.raises(ToolError, match="half a character"):
        await _ask(place, "write_file", path="a.txt", text="a\ud800")
    assert (place / "a.txt").read_text() == "needle"


@pytest.mark.parametrize("pattern", ["**/" * 160 + "*", "[" * 500, "*a" * 250, "\0", "[!-]*]", "?" * 500])
async def test_a_pattern_costs_little_whatever_it_is(place: Path, pattern: str) -> None:
    assert "files" in await _ask(place, "list_files", pattern=pattern)
