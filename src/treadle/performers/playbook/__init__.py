"""A playbook's step-runs: pipelines of tasks, their checkpoints, policies and results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle.work.performers import Performs

if TYPE_CHECKING:
    from treadle.performers import House


def performers(house: House) -> Iterable[Performs]:
    from .performer import PipelinePerformer

    async def file_of(digest: str) -> str | None:
        row = await house.read(lambda reads: reads.definition(digest))
        return None if row is None else row.file

    pipeline = PipelinePerformer(house.tools, house.secrets, file_of=file_of)
    return [Performs("step", pipeline, pipeline.never_waits)]
