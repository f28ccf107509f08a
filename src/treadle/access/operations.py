"""What the core is asked for of tokens, hooks and the log of who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import InputInvalid
from treadle.runtime.commands import Operate

from . import hooks, tokens, trail

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk


def perform(desk: Desk, asked: Operate) -> Any:
    match asked.name:
        case "audit":
            return trail.perform(desk, asked.body)
        case "hook":
            return hooks.perform(desk, asked.body)
        case "token":
            return tokens.perform(desk, asked.body)
        case name:
            raise InputInvalid(f"no operation {name!r} is known")
