"""What an engine's core can be asked for besides events and tasks: deploys, schedules, house-keeping, and what dialects offer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from treadle.definitions.dialects import Dialects
from treadle.kernel.roles import is_cell, is_code
from treadle.lang import standing
from treadle.runtime import commands, deploys
from treadle.runtime.commands import Operate
from treadle.runtime.fetching import NotAtHand
from treadle.runtime.registry import version_key
from treadle.store.rows import DefinitionRow

from .offers import DialectOffers

if TYPE_CHECKING:
    from treadle.runtime.desk import Desk, Handing

    Perform = Callable[[Handing, Operate], object]


T = TypeVar("T")


class Late(Generic[T]):
    """Code that most engines never need. It is loaded beside the core, for the first who asks."""

    def __init__(self, what: str, load: Callable[[], T]) -> None:
        self._what = what
        self._load = load
        self._code: T | None = None

    def at_hand(self) -> T:
        if self._code is None:
            raise NotAtHand(self._what, self._fetch)
        return self._code

    def _fetch(self) -> None:
        self._code = self._load()


def _house_keeping() -> Perform:
    from .house_operations import perform

    return perform


def _access() -> Perform:
    from treadle.access.operations import perform

    return perform


def _schedules() -> ModuleType:
    from treadle.runtime import schedules

    return schedules


def _returns() -> Perform:
    from treadle.runtime import returns

    return lambda desk, asked: returns.perform(desk, asked.body)


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
        self._house = Late("the code of house-keeping", _house_keeping)
        self._access = Late("the code of tokens and hooks", _access)
        self._schedules = Late("the code of schedules", _schedules)
        self._returns = Late("the code of archives", _returns)

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
            case commands.SCHEDULE:
                return self._schedules.at_hand().perform(desk, asked)
            case "audit" | "hook" | "token":
                return self._access.at_hand()(desk, asked)
            case "secret" | "server" | "store":
                # Secrets and servers are beside the journal, and a backup only reads it: what is written here is who
                # did it.
                return None
            case commands.RETURN:
                return self._returns.at_hand()(desk, asked)
            case name if name in self._offers:
                return self._offers.for_operation(name).perform(desk, asked)
            case _:
                return self._house.at_hand()(desk, asked)

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
            said = self._dialects[row.dialect].standing(row.body)
            if "schedule" in said or desk.store.documents(commands.SCHEDULE):
                self._schedules.at_hand().follow(desk, row, standing.schedule_of(row.name, said))
