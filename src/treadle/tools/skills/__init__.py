"""Built-in skills: they work offline, and each says what it may touch.

`files` stays below one folder, `duckdb` too; `http` reaches public addresses only; `shell` is there
when the operator says so; `workflows` starts other Treadle workflows.
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.work.agent_skill import Skill

from .duckdb import duckdb_skill
from .files import files_skill
from .http import http_skill
from .shell import shell_skill
from .workflows import Runs, workflows_skill


def built_in(runs: Runs) -> Iterable[Skill]:
    return [files_skill(), shell_skill(), http_skill(), duckdb_skill(), workflows_skill(runs)]
