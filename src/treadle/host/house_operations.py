"""Operations that most engines are never asked for, with the code behind them. `operations.py` imports this beside the core's
thread, for the first who asks for one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import InputInvalid
from treadle.runtime import (
    bulks,
    collecting,
    commands,
    dead_letters,
    keeping,
    payloads,
    pools,
    quotas,
    remembered,
    retention,
    traced,
)
from treadle.runtime.commands import Operate

if TYPE_CHECKING:
    from treadle.runtime.desk import Handing


def perform(desk: Handing, asked: Operate) -> Any:
    match asked.name:
        case "limit":
            return quotas.perform(desk, asked.body)
        case "deadletter":
            return dead_letters.perform(desk, asked.body)
        case remembered.KIND:
            return remembered.perform(desk, asked.body)
        case bulks.KIND:
            return bulks.perform(desk, asked.body)
        case commands.REMOVE:
            return keeping.perform_remove(desk, asked.body)
        case commands.FORK:
            return keeping.perform_fork(desk, asked.body)
        case commands.COLLECT:
            return collecting.perform(desk, asked.body)
        case payloads.KEEP:
            return payloads.perform_keep(desk, asked.body)
        case traced.KIND:
            return traced.perform(desk, asked.body)
        case pools.SHARE:
            return pools.perform(desk, asked.body)
        case retention.KIND:
            return retention.perform(desk, asked.body)
        case name:
            raise InputInvalid(f"no operation {name!r} is known")
