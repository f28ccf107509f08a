"""The steps of durable functions, and what they send to other runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle.work.performers import Performs

if TYPE_CHECKING:
    from treadle.performers import House


def performers(house: House) -> Iterable[Performs]:
    from .steps import StepPerformer

    steps = StepPerformer(house)
    return [
        Performs("step", steps, steps.threaded, reads=True, close=steps.close),
        Performs("send", steps.send),
        Performs("publish", steps.publish),
    ]
