"""What an engine's core can be asked for besides events: deploys, tasks, and what dialects offer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from treadle import access
from treadle.definitions.dialects import Dialects
from treadle.kernel.roles import is_cell, is_code
from treadle.lang import standing
from treadle.runtime import (
    bulks,
    collecting,
    dead_letters,
    deploys,
    keeping,
    payloads,
    pools,
    quotas,
    remembered,
    retention,
    schedules,
    tasks,
    traced,
)
from treadle.runtime.commands import Operate
from treadle.runtime.desk import Desk, Handing
from treadle.runtime.registry import version_key
from treadle.store.protocol import DefinitionRow

from .offers import DialectOffers


class EngineOperations:
    """`offers` are the operations of dialects; `try_again` hands out once more what a dialect's work lacked code for; `help`
    has the work of some runs done here, or of all."""

    def __init__(
        self,
        dialects: Dialects,
        offers: DialectOffers,
        try_again: Callable[[str], None],
        help: Callable[[list[str] | None], None],
    ) -> None:
        self._help = help
        self._dialects = dialects
        self._offers = offers
        self._try_again = try_again

    def perform(self, desk: Handing, asked: Operate) -> Any:
        match asked.name:
            case "deploy":
                return self._deploy(desk, deploys.Deploy.from_value(asked.body), asked.fetched)
            case "help":
                runs = asked.body.get("runs")
                self._help(None if runs is None else [str(run) for run in runs])
                return None
            case "learn":
                return deploys.learn(desk, asked.body)
            case "schedule":
                return schedules.perform(desk, asked)
            case "limit":
                return quotas.perform(desk, asked.body)
            case tasks.KIND:
                return tasks.perform(desk, asked)
            case "audit":
                return access.trail.perform(desk, asked.body)
            case "deadletter":
                return dead_letters.perform(desk, asked.body)
            case "hook":
                return access.hooks.perform(desk, asked.body)
            case "secret" | "server" | "store":
                # Secrets and servers are beside the journal, and a backup only reads it: what is written here is who
                # did it.
                return None
            case "token":
                return access.tokens.perform(desk, asked.body)
            case remembered.KIND:
                return remembered.perform(desk, asked.body)
            case bulks.KIND:
                return bulks.perform(desk, asked.body)
            case keeping.REMOVE:
                return keeping.perform_remove(desk, asked.body)
            case keeping.FORK:
                return keeping.perform_fork(desk, asked.body)
            case collecting.COLLECT:
                return collecting.perform(desk, asked.body)
            case payloads.KEEP:
                return payloads.perform_keep(desk, asked.body)
            case traced.KIND:
                return traced.perform(desk, asked.body)
            case pools.SHARE:
                return pools.perform(desk, asked.body)
            case keeping.RETURN:
                from treadle.runtime import returns  # with all that archives are made of

                return returns.perform(desk, asked.body)
            case retention.KIND:
                return retention.perform(desk, asked.body)
            case name:
                return self._offers.for_operation(name).perform(desk, asked)

    def only_hands_on(self, asked: Operate) -> bool:
        return tasks.only_hands_on(asked)

    def recheck(self, desk: Desk, asked: Operate) -> None:
        tasks.recheck(desk, asked)

    def _deploy(self, desk: Desk, deploy: deploys.Deploy, fetched: Collection[str]) -> deploys.DeployAnswer:
        """Deploys. What was left alone for want of this code gets another chance."""
        row = deploy.row
        machine = self._dialects.at_hand(row.dialect).machine if row.dialect in self._dialects else None
        offered = self._offers.for_dialect(row.dialect)
        if offered is not None:
            offered.check_owner(desk.store, row)
        answer = deploys.perform(desk, deploy)
        if offered is not None:
            offered.learn(row, fetched)
        if machine is not None and not is_cell(machine) and answer["status"] == "available":
            self._follow(desk, row, answer["version"])
        if machine is not None and is_code(machine):
            desk.readable()
            self._try_again(row.dialect)
        return answer

    def _follow(self, desk: Desk, row: DefinitionRow, version: str) -> None:
        """What the latest version asks of the house is so from now on."""
        if all(version_key(other.version) <= version_key(version) for other in desk.store.versions(row.name)):
            said = standing.read(row.name, self._dialects[row.dialect].standing(row.body))
            schedules.follow(desk, row, said.schedule)
