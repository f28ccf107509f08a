"""Tokens that are limited to some workflows: what they may not see is not there.

A route says how the limit binds it (`Routes.answers(within=…)`). A run, task or definition of another workflow is
answered exactly as one that does not exist; a list leaves it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from treadle.kernel.errors import UnknownWorkflow
from treadle.runtime import document, tasks
from treadle.runtime.registry import not_deployed
from treadle.store.rows import DefinitionRow

from .problems import RequestRefused
from .routing import actor_of

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


def sees(request: Request, workflow: str) -> bool:
    """Whether a workflow is there for whoever asks."""
    limited = actor_of(request).workflow
    return limited is None or workflow.startswith(limited)


async def run(request: Request) -> None:
    """The path names a run."""
    await check_run(request, request.path_params["id"])


async def check_run(request: Request, id: str) -> None:
    def ask(reads: Reads) -> str:
        return document.row_of(reads, id).workflow

    if not sees(request, await request.app.state.engine.read(ask)):
        raise document.no_run(id)


async def task(request: Request) -> None:
    """The path names a task."""
    id: str = request.path_params["id"]

    def ask(reads: Reads) -> str:
        return tasks.found(reads, id).workflow

    if not sees(request, await request.app.state.engine.read(ask)):
        raise tasks.no_task(id)


async def definition(request: Request) -> None:
    """The path names a definition, by name or by digest."""
    await check_workflow(request, request.path_params["name"])


async def check_workflow(request: Request, asked: str) -> None:
    try:
        name: str | None = (await request.app.state.engine.definition(asked)).name
    except UnknownWorkflow:
        name = None
    if name is None or not sees(request, name):
        raise RequestRefused("DEFINITION_NOT_FOUND", not_deployed(asked).message)


async def check_start(request: Request, asked: str) -> None:
    """A body names a workflow, by name, version or digest."""
    if actor_of(request).workflow is None:
        return
    found: DefinitionRow = await request.app.state.engine.definition(asked)
    if not sees(request, found.name):
        raise not_deployed(asked)


async def workflow(request: Request) -> None:
    """The path begins with the name of a workflow."""
    name: str = request.path_params["workflow"]
    if not sees(request, name):
        raise RequestRefused("DEFINITION_NOT_FOUND", not_deployed(name).message)


async def by_itself(request: Request) -> None:
    """The route leaves out what may not be seen, or shows nothing of workflows."""
