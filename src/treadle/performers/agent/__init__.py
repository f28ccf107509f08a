"""An agent workflow's outside: models, skills, MCP servers, sources, and the visits that use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.performers import House
    from treadle.work.performers import Performs


def performers(house: House) -> Iterable[Performs]:
    return house.agents.performs()
