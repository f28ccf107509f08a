"""A playbook's step-runs: pipelines of tasks, their checkpoints, policies and results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle.work.performers import Performs

if TYPE_CHECKING:
    from treadle.performers import House


def performers(house: House) -> Iterable[Performs]:
    from .performer import PipelinePerformer

    pipeline = PipelinePerformer(house.tools, house.secrets, file_of=lambda job: job.definition_file())
    return [Performs("step", pipeline.perform, pipeline.never_waits, pure=pipeline.is_pure)]
