"""What a model must not write: files that somebody loads or runs later.

Whoever may write such a file may run commands, without the `shell` skill: a SKILL.md names a server that
the next run starts, a git hook runs with the next commit, a module beside a workflow is imported by it, a
workflow is deployed again. So these are refused, by where they really are:

- every name that begins with a dot: settings of programs (`.treadle`, `.claude`, `.git`, `.github`, …)
- the folders in which skills are found, and what links in them lead to
- modules of Python below the workflow's folder, which is where its functions are imported from
- the files of deployed workflows, of the run's own skills, and of every module that is loaded here
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from treadle.kernel.errors import ToolError
from treadle.performers.agent.skill import ToolContext
from treadle.performers.agent.skill_finding import FOLDERS

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


CODE: Final = (".py", ".pyc", ".pyd", ".so", ".pth", ".pyi")


def refuse_loaded(path: Path, root: Path, ctx: ToolContext, definitions: Iterable[str]) -> None:
    """Refuses to write `path`, a real path below `root`, if it is one of these."""
    why = _why(path, root, ctx, definitions)
    if why is not None:
        raise ToolError(
            f"{path.relative_to(root)} is not for models to write: {why}. Write elsewhere, or give the skill "
            "a folder of its own with FILES_ROOT",
            code="FILE_PROTECTED",
        )


def _why(path: Path, root: Path, ctx: ToolContext, definitions: Iterable[str]) -> str | None:
    if any(part.startswith(".") for part in path.relative_to(root).parts):
        return "names that begin with a dot hold settings of programs"
    if any(path.is_relative_to(place) for place in _skill_places(ctx.base)):
        return "skills are loaded from there"
    base = Path(ctx.base or ".").resolve()
    if path.suffix.lower() in CODE and path.is_relative_to(base):
        return "Python is imported from the workflow's folder"
    if str(path) in {os.path.realpath(file) for file in (*definitions, *_given(ctx), *_modules())}:
        return "it is loaded by Treadle"
    return None


def _skill_places(base: str | None) -> Iterator[Path]:
    """Where skills are found, and what links in there lead to."""
    for root in dict.fromkeys((base, os.getcwd())):
        for name in FOLDERS if root is not None else ():
            folder = Path(root or "", name)
            yield folder.resolve()
            for skill in folder.iterdir() if folder.is_dir() else ():
                yield skill.resolve()
                yield (skill / "SKILL.md").resolve()


def _given(ctx: ToolContext) -> Iterator[str]:
    for target in ctx._options.get("skills") or ():
        path, colon, _ = str(target).rpartition(":")
        yield path if colon and path.endswith(".py") else str(target)


def _modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        if isinstance(file := getattr(module, "__file__", None), str):  # a module may be any object
            yield file


def definition_files(reads: Reads, run: str) -> list[str]:
    """The files of a run's workflow, of those that called it, and of every deployed one."""
    digests = [version.digest for version in reads.versions()]
    row = reads.run(run)
    while row is not None:
        digests.append(row.definition)
        row = reads.run(row.parent) if row.parent is not None else None
    rows = [reads.definition(digest) for digest in dict.fromkeys(digests)]
    return [found.file for found in rows if found is not None and found.file]
