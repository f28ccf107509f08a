"""The effects of reactive applications."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle.work.performers import ANY, Performs

if TYPE_CHECKING:
    from treadle.performers import House


def performers(house: House) -> Iterable[Performs]:
    from treadle.dialects.reactive.dialect import DIALECT
    from treadle.dialects.reactive.machine import ReactiveMachine

    from .effects import EffectPerformer

    machine = house.dialects[DIALECT.name].machine
    assert isinstance(machine, ReactiveMachine)
    return [Performs(ANY, EffectPerformer(house.tools, machine), signed=machine.traits.signed)]
