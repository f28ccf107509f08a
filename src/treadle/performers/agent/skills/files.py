"""`files`: read, write, list and search text files below one folder.

The folder is FILES_ROOT, else the workflow's own, else the current one. Links are followed before
the check, so nothing outside can be reached through them. What `hidden` names, the model must not
see: to it these files are not there. What `loaded` names, it must not write. Looking through a folder ends after so many files and seconds, and
says so, because a thread cannot be stopped from outside.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Final

from treadle.kernel.errors import ToolError
from treadle.kernel.showing import shown
from treadle.performers.agent.skill import Skill, ToolContext

from .hidden import OwnFiles, is_hidden
from .loaded import refuse_loaded

READ_BYTES_MAX: Final = 256 * 1024
FOUND_MAX: Final = 200
FILES_MAX: Final = 50_000
SECONDS_MAX: Final = 20.0
PATTERN_CHARS_MAX: Final = 500
ROOT: Final = {
    "FILES_ROOT": {
        "description": "Folder that files are read from and written to",
        "env": "TREADLE_FILES_ROOT",
    }
}
_WRITES: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
_PATH: Final = {"type": "string", "description": "Path relative to the folder"}
_PATTERN: Final = {"type": "string", "maxLength": PATTERN_CHARS_MAX}


def root_of(ctx: ToolContext) -> Path:
    return Path(ctx.config.get("FILES_ROOT") or ctx.base or ".").resolve()


def inside(ctx: ToolContext, path: str, own: OwnFiles) -> Path:
    """The real path of a name, which must lie below the root."""
    root = root_of(ctx)
    try:
        found = (root / path).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # a link that leads to itself, half a character
        raise ToolError(f"{shown(path, 80)} cannot be the path of a file") from error
    if not found.is_relative_to(root):
        raise ToolError(f"{path} is outside of the folder that may be used", code="FILE_OUTSIDE_ROOT")
    if is_hidden(str(found), str(root), own):
        raise ToolError(
            f"{path} holds settings or keys, or is Treadle's own, and is not for models",
            code="FILE_OUTSIDE_ROOT",
        )
    try:
        found.stat()
    except (FileNotFoundError, NotADirectoryError):
        return found  # it may be written
    except OSError as error:
        raise ToolError(f"{shown(path, 80)} cannot be used: {error.strerror}") from error
    return found


def is_small(path: Path) -> bool:
    return path.stat().st_size <= READ_BYTES_MAX


class Walk:
    """The files below a folder, in order; `stopped` says why it ended early, if it did."""

    def __init__(
        self,
        folder: Path,
        root: Path,
        own: OwnFiles | None = None,
        *,
        files: int = FILES_MAX,
        seconds: float = SECONDS_MAX,
    ) -> None:
        self._folder = folder
        self._root = root
        self._own = own or OwnFiles()
        self._files = files
        self._seconds = seconds
        self.stopped: str | None = None

    def __iter__(self) -> Iterator[Path]:
        until, seen = time.monotonic() + self._seconds, 0
        for place, folders, names in os.walk(self._folder):
            folders[:] = sorted(name for name in folders if not self._hides(Path(place, name)))
            for name in sorted(names):
                seen += 1
                if seen > self._files:
                    self.stopped = f"only the first {self._files} files were looked at"
                    return
                if time.monotonic() > until:
                    self.stopped = f"after {self._seconds:g} s; only {seen} files were looked at"
                    return
                path = Path(place, name)
                real = Path(os.path.realpath(path))  # which takes a link that leads to itself for what it is
                if real.is_file() and real.is_relative_to(self._root) and not self._hides(real):
                    yield path

    def _hides(self, real: Path) -> bool:
        return is_hidden(str(real), str(self._root), self._own)

    def said(self, found: dict[str, Any]) -> dict[str, Any]:
        return found if self.stopped is None else {**found, "stopped": self.stopped}


def matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a path fits a pattern part by part; `**` is any number of folders. Never more work
    than parts times parts."""

    @cache
    def fits(i: int, j: int) -> bool:
        if j == len(pattern):
            return i == len(path)
        if pattern[j] == "**":
            return fits(i, j + 1) or (i < len(path) and fits(i + 1, j))
        return i < len(path) and fnmatchcase(path[i], pattern[j]) and fits(i + 1, j + 1)

    return fits(0, 0)


async def _nothing(run: str) -> list[str]:
    return []


def files_skill(
    store: Path | None = None, definitions: Callable[[str], Awaitable[list[str]]] = _nothing
) -> Skill:
    """`store`: the engine's own database, which is not for models. `definitions(run)`: the files of the
    workflows that are loaded from there, which are not for models to write."""
    skill = Skill("files", name="Files", description="Text files below one folder", config=ROOT)

    @skill.tool(
        "list_files",
        description="List files below a folder",
        input_schema={"type": "object", "properties": {"path": _PATH, "pattern": _PATTERN}},
        idempotent=True,
    )
    def list_files(input: dict[str, Any], ctx: ToolContext) -> Any:
        own = OwnFiles.of(store, ctx)
        root, folder = root_of(ctx), inside(ctx, input.get("path") or ".", own)
        text = input.get("pattern") or "**/*"
        pattern = Path(text).parts
        if text.startswith("/") or ".." in pattern:
            raise ToolError("a pattern is relative to the folder")
        if pattern and pattern[-1] == "**":
            pattern = (*pattern, "*")
        walk = Walk(folder, root, own)
        found = [p for p in walk if matches(p.relative_to(folder).parts, pattern)]
        listed = [_named(p, root) for p in found[:FOUND_MAX]]
        return walk.said({"files": listed, "more": max(0, len(found) - FOUND_MAX)})

    @skill.tool(
        "read_file",
        description="Read a text file",
        input_schema={"type": "object", "properties": {"path": _PATH}, "required": ["path"]},
        idempotent=True,
    )
    def read_file(input: dict[str, Any], ctx: ToolContext) -> Any:
        path = inside(ctx, input["path"], OwnFiles.of(store, ctx))
        if not path.is_file():
            raise ToolError(f"{input['path']} is not a file")
        with path.open("rb") as file:
            data = file.read(READ_BYTES_MAX + 1)
        return {
            "text": data[:READ_BYTES_MAX].decode("utf-8", "replace"),
            "truncated": len(data) > READ_BYTES_MAX,
        }

    @skill.tool(
        "write_file",
        description="Write a text file, replacing what is there",
        input_schema={
            "type": "object",
            "properties": {"path": _PATH, "text": {"type": "string"}},
            "required": ["path", "text"],
        },
        # Writing the same text twice leaves the same file.
        idempotent=True,
    )
    async def write_file(input: dict[str, Any], ctx: ToolContext) -> Any:
        loaded = await definitions(ctx.run_id)
        return await asyncio.to_thread(
            _write, input["path"], input["text"], ctx, OwnFiles.of(store, ctx), loaded
        )

    @skill.tool(
        "search_files",
        description="Find lines that contain a text",
        input_schema={
            "type": "object",
            "properties": {"text": {"type": "string", "minLength": 1}, "path": _PATH},
            "required": ["text"],
        },
        idempotent=True,
    )
    def search_files(input: dict[str, Any], ctx: ToolContext) -> Any:
        root, own = root_of(ctx), OwnFiles.of(store, ctx)
        walk = Walk(inside(ctx, input.get("path") or ".", own), root, own)
        return walk.said({"matches": list(_lines_with(input["text"], walk, root))})

    return skill


def _write(name: str, text: str, ctx: ToolContext, own: OwnFiles, loaded: list[str]) -> dict[str, Any]:
    path = inside(ctx, name, own)
    refuse_loaded(path, root_of(ctx), ctx, loaded)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"the text for {name} holds half a character; nothing was written") from error
    if path.exists() and not path.is_file():
        raise ToolError(f"{name} is not a file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What became no file in the meantime does not hold us up: a pipe has a reader, or is an error.
        with os.fdopen(os.open(path, _WRITES, 0o666), "wb") as file:
            file.write(data)
    except OSError as error:
        raise ToolError(f"{name} cannot be written: {error.strerror}") from error
    return {"path": name, "bytes": len(data)}


def _named(path: Path, root: Path) -> str:
    """The name of a file as text: systems have names that are none."""
    return os.fsencode(path.relative_to(root)).decode("utf-8", "replace")


def _lines_with(text: str, walk: Walk, root: Path) -> Iterator[dict[str, Any]]:
    count = 0
    for path in walk:
        try:
            lines = path.read_text("utf-8", "replace").splitlines() if is_small(path) else []
        except OSError:  # it is not ours to read, or gone by now
            continue
        for number, line in enumerate(lines, 1):
            if text in line:
                yield {"file": _named(path, root), "line": number, "text": line[:400]}
                count += 1
                if count == FOUND_MAX:
                    return
