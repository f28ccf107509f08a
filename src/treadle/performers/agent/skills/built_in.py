"""The built-in skills as an engine has them: told of its store, and of what its runs were made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from treadle.performers.agent.skill import Skill
from treadle.store.open import store_path_or_none

from .duckdb import duckdb_skill
from .files import files_skill
from .http import http_skill
from .loaded import definition_files
from .shell import shell_skill
from .workflows import Runs, workflows_skill

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


class Home(Runs, Protocol):
    """What the built-in skills need of an engine."""

    store_url: str

    def read(self, question: Callable[[Reads], Any]) -> Awaitable[Any]: ...


def built_in(home: Home) -> Iterable[Skill]:
    store = store_path_or_none(home.store_url)

    async def definitions(run: str) -> list[str]:
        found: list[str] = await home.read(lambda reads: definition_files(reads, run))
        return found

    return [
        files_skill(store, definitions),
        shell_skill(),
        http_skill(),
        duckdb_skill(store),
        workflows_skill(home),
    ]
