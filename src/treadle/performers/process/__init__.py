"""A process's calls: transports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle.work.performers import Performs

if TYPE_CHECKING:
    from treadle.performers import House


def performers(house: House) -> Iterable[Performs]:
    return [Performs("call", house.transports, house.transports.never_waits)]
