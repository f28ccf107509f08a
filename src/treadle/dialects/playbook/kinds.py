"""Whether somebody here can do the work: the kinds that a playbook's tasks name, against those known.

A warning, never an error: the tool may be registered, or its plug-in installed, where the run is driven.
Which kinds there are is told from outside; this dialect knows only those it interprets itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from treadle.kernel.values import Value
from treadle.lang.slips import nearest
from treadle.lang.text import Path

from .model import SUSPENDING
from .reading import Reader

Kinds = Callable[[], Collection[str]]

# Kinds without a tool behind them, and those that come with Treadle: for these nobody is asked, since
# the answer looks through the installed packages.
_OWN = SUSPENDING | {"workbook", "noop", "python", "shell", "http", "postgres", "duckdb", "artifact"}


def unknown_kinds(reader: Reader, body: dict[str, Value], kinds: Kinds) -> None:
    """Warns of each task whose kind nobody here knows."""
    strange = [(path, kind) for path, kind in _used(body) if kind not in _OWN]
    known = kinds() if strange else ()
    for path, kind in strange:
        if kind not in known and known:
            near = nearest(kind, sorted({*known, *_OWN}))
            guess = f"did you mean {near[0]}? Else " if near else ""
            reader.warning(
                "kind_unknown",
                path,
                f"no tool of kind {kind!r} is known here, so the task stays open until there is one",
                hint=f"{guess}register it with @engine.tool({kind!r}), or install its plug-in",
                rule="INTERFACES §2",
            )


def _used(body: dict[str, Value]) -> Iterator[tuple[Path, str]]:
    for index, step in enumerate(body["workflow"]):
        for place, task in enumerate(step.get("tool") or ()):
            yield ("workflow", index, "tool", place, "kind"), task["kind"]
