"""Files that come over HTTP: a folder of their own, nothing outside it.

They are written into a fresh folder, compiled there, and kept by the store in canonical form; the folder goes.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec.structs import asdict

from treadle.engine import Engine
from treadle.kernel.errors import TreadleError
from treadle.lang.definition import Definition

from .access import ADMIN, Caller, may
from .bodies import File
from .problems import RequestRefused


class Bundles:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def deploy(
        self, files: Sequence[File], *, by: str | None, validation: str | None
    ) -> list[Definition]:
        """Compiles all of them and claims their versions; all or nothing. With `warn`, what does not compile is kept
        as unavailable."""
        return await asyncio.to_thread(self._deploy, files, by, validation or self._engine.validation)

    def _deploy(self, files: Sequence[File], by: str | None, validation: str) -> list[Definition]:
        # Every problem is found before anything is claimed.
        found = self._load(files, keeps=validation == "warn")
        for path, definition in found:
            with _named(path):
                self._engine.deploy(definition, by=by, validation=validation)
        return [definition for _, definition in found]

    async def check(self, files: Sequence[File]) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._check, files)

    def _check(self, files: Sequence[File]) -> list[dict[str, Any]]:
        with _unpacked(files) as folder:
            found = [asdict(problem) for problem in self._engine.check(str(folder))]
        for problem in found:
            if problem.get("file"):
                problem["file"] = str(problem["file"]).removeprefix(f"{folder}/")
        return found

    async def main(self, files: Sequence[File], main: str | None, actor: Caller) -> Definition:
        """The workflow to start out of posted files; it brings code, so it needs who may deploy."""
        if not may(actor.roles, ADMIN):
            raise RequestRefused(
                "FORBIDDEN", "files bring code: this needs the role admin", cls="authorization"
            )
        found = [definition for _, definition in await asyncio.to_thread(self._load, files)]
        if main is not None:
            found = [d for d in found if main == d.name]
        if len(found) != 1:
            names = ", ".join(d.name for d in found) or "none"
            raise RequestRefused(
                "INPUT_INVALID", f"say which workflow is meant (main); there is {names}", where="main"
            )
        return found[0]

    def _load(self, files: Sequence[File], *, keeps: bool = False) -> list[tuple[str, Definition]]:
        """The definitions of posted files, and the names of those. They belong to no folder: what they came in is
        gone at once, and nothing that is told names it."""
        with _unpacked(files) as folder:
            inside = f"{folder}/"
            try:
                found = self._engine.load(str(folder)) if not keeps else self._kept(str(folder))
            except TreadleError as error:
                error.where = error.where and error.where.removeprefix(inside)
                error.message = error.message.replace(inside, "")
                for problem in error.details.get("problems") or ():
                    problem["file"] = problem["file"] and problem["file"].removeprefix(inside)
                raise
            if not found:
                raise RequestRefused(
                    "INPUT_INVALID", "none of the files is a definition (.yaml, .yml, .json)", where="files"
                )
            return [((d.file or "").removeprefix(inside), replace(d, file=None)) for d in found]

    def _kept(self, folder: str) -> list[Definition]:
        found, unsound = self._engine.library.load_or_keep(folder, strict=False)
        return [*found, *unsound]


@contextmanager
def _named(path: str) -> Iterator[None]:
    """What is refused of a posted file is told with its name."""
    try:
        yield
    except TreadleError as error:
        error.where = error.where or path or None
        raise


@contextmanager
def _unpacked(files: Sequence[File]) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="treadle-files-"))
    try:
        for file in files:
            path = folder / _inside(file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, "utf-8")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\\" in name:
        raise RequestRefused(
            "INPUT_INVALID", f"{name!r} is not a name inside the posted folder", where="files.path"
        )
    if path.suffix == ".py":
        raise RequestRefused(
            "CODE_NOT_TAKEN",
            f"{name}: Python is not taken over HTTP; load it with serve --app",
            where="files.path",
        )
    return path
