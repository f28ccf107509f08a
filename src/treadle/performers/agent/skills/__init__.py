"""Built-in skills: they work offline, and each says what it may touch.

`files` stays below one folder, `duckdb` too; `http` reaches public addresses only; `shell` is there
when the operator says so; `workflows` starts other Treadle workflows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from treadle.performers.agent.skill import Skill
from treadle.store.open import store_path

from .duckdb import duckdb_skill
from .files import files_skill
from .http import http_skill
from .shell import shell_skill
from .workflows import Runs, workflows_skill


class Home(Runs, Protocol):
    """What the built-in skills need of an engine."""

    store_url: str


def built_in(home: Home) -> Iterable[Skill]:
    store = store_path(home.store_url)
    return [files_skill(store), shell_skill(), http_skill(), duckdb_skill(store), workflows_skill(home)]
