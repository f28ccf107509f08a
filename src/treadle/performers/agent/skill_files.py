"""Skills in a file of Python: `--skills FILE.py[:NAME]`.

The path is recorded with the run, so whoever drives it on can load the same skills.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from treadle.definitions.files import run_python
from treadle.kernel.errors import TreadleError

from .skill import Skill


def skills_in(target: str) -> list[Skill]:
    """The skills of FILE.py, or the one (or the list of them) that FILE.py:NAME names."""
    path, name = split(target)
    found = vars(_module(path))
    if name is not None and name not in found:
        raise _unusable(f"{path} has no {name!r}")
    values = list(found.values()) if name is None else [found[name]]
    skills = [skill for value in values for skill in _flat(value) if isinstance(skill, Skill)]
    if not skills:
        raise _unusable(f"{target} holds no skill: make one with treadle.agent.Skill(...)")
    for skill in skills:
        skill.check()
    return skills


def split(target: str) -> tuple[Path, str | None]:
    file, colon, name = target.rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else (Path(target), None)


def _flat(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else (value,)


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise _unusable(f"there is no file {path}")
    if path.suffix != ".py":
        raise _unusable(f"{path} is no file of Python; write --skills FILE.py or FILE.py:NAME")
    try:
        return run_python(path, "skills")
    except TreadleError:
        raise
    except Exception as error:  # a module may raise anything while it is imported
        raise _unusable(f"{path} cannot be imported: {type(error).__name__}: {error}") from error


def _unusable(message: str) -> TreadleError:
    return TreadleError(message, cls="definition", code="SKILL_INVALID")
