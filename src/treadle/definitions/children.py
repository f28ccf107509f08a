"""Children that are named by file: found when their caller is loaded, never while it runs.

A name that comes from data is the name of something deployed, never a path: otherwise whoever writes
an input could have any file of the machine run. Only names that stand in the definition itself are looked
for, in the folder of its file or below, and only among workflow files; code (`.py`) is never found so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.lang.definition import Definition

from .files import SUFFIXES, split_target


def literal_names(definition: Definition) -> list[str]:
    """The workflows that a definition names outright; what a template makes of data is not known yet."""
    found = (
        name for name in _named(definition.dialect, definition.body) if "{{" not in name and "{%" not in name
    )
    return list(dict.fromkeys(found))


def _named(dialect: str, body: Any) -> Iterator[str]:
    match dialect:
        case "process":
            yield from body["requires"]["children"]
        case "playbook":
            for step in body["workflow"]:
                for task in step.get("tool") or ():
                    if task["kind"] in ("playbook", "workflow"):
                        named = (task.get(key) for key in ("path", "workflow", "name"))
                        yield from [name for name in named if isinstance(name, str)][:1]
        case "agent":
            for node in body["nodes"].values():
                if isinstance(run := node.get("run"), dict) and isinstance(run.get("workflow"), str):
                    yield run["workflow"]


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
