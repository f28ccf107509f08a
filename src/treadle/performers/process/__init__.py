"""A process's calls: transports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle.work.performers import Performs

if TYPE_CHECKING:
    from treadle.performers import House


def performers(house: House) -> Iterable[Performs]:
    from .calls import Calls

    transports = house.transports
    return [
        Performs(
            "call", Calls(transports).perform, transports.never_waits, pure=transports.is_pure, reads=True
        ),
    ]
