"""Children that are named by file: found when their caller is loaded, never while it runs.

A name that comes from data is the name of something deployed, never a path: otherwise whoever writes
an input could have any file of the machine run. Only names that stand in the definition itself are looked
for, in the folder of its file or below, and only among workflow files; code (`.py`) is never found so.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .files import SUFFIXES, split_target


def literal_names(names: Iterable[str]) -> list[str]:
    """Those of the names in a definition that stand there outright; what a template makes of data is not
    known yet."""
    return list(dict.fromkeys(name for name in names if "{{" not in name and "{%" not in name))


def file_beside(name: str, caller: str) -> Path | None:
    """The workflow file that a name means, in the folder of its caller's file or below."""
    folder = split_target(caller)[0].resolve().parent
    for suffix in ("", *SUFFIXES):
        try:
            path = (folder / (name + suffix)).resolve()
            if path.suffix in SUFFIXES and path.is_relative_to(folder) and path.is_file():
                return path
        except (OSError, ValueError):  # a text that cannot even be the name of a file
            continue
    return None
