"""What a definition asks of the house that runs it, whatever its dialect: when to start it (`schedule`), whom to
tell of a run that fails, stalls or is late (`alerts`), how many of its runs may be under way at once (`limits`), how
long those that have ended are kept (`retention`).

A dialect says where these stand in its texts (`Dialect.standing`); here they are read, and what they cannot mean
becomes a problem at its place. They are part of the canonical body, and so of the digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value

from .alerts import NO_ALERTS, Alerts
from .problems import Problems
from .quota import Quota
from .retention import Retention
from .text import Path

if TYPE_CHECKING:
    from .schedules import Schedule

# Where each of them stands in a text, and what it says.
Said = Mapping[str, tuple[Path, Value]]


class StandingOrders(msgspec.Struct, frozen=True):
    """What is asked of a run; when to start one, `schedule_of` says."""

    alerts: Alerts = NO_ALERTS
    limits: Quota | None = None
    retention: Retention | None = None


# Of a definition that asks for nothing.
NO_ORDERS = StandingOrders()


def read(name: str, said: Said) -> StandingOrders:
    """What a workflow's definition asks for. Raises a DefinitionError whose `where` is a field."""
    return StandingOrders(
        alerts=Alerts.read(said["alerts"][1]) if "alerts" in said else NO_ALERTS,
        limits=Quota.read(said["limits"][1]) if "limits" in said else None,
        retention=Retention.read(said["retention"][1]) if "retention" in said else None,
    )


def schedule_of(name: str, said: Said) -> Schedule | None:
    """When a workflow's definition has it started. Most say nothing of that, so its code is imported for those who do."""
    return _schedule(name, said["schedule"][1]) if "schedule" in said else None


def check(name: str, said: Said, problems: Problems) -> None:
    """Adds what is wrong with it."""
    for field, (path, value) in said.items():
        try:
            read(name, {field: (path, value)})
            schedule_of(name, {field: (path, value)})
        except DefinitionError as error:
            inner: Any = value if isinstance(value, dict) else {}
            place = (*path, error.where) if error.where is not None and error.where in inner else path
            problems.error(error.code, place, error.message)


def _schedule(name: str, value: Value) -> Schedule:
    if not isinstance(value, dict):
        raise DefinitionError(
            'schedule: is a mapping, as in {cron: "30 2 * * *", timezone: Europe/Zurich}',
            code="SCHEDULE_INVALID",
        )
    from .schedules import Schedule

    if "workflow" in value:
        raise DefinitionError("workflow: it is this one", code="SCHEDULE_INVALID", where="workflow")
    return Schedule.read({"name": name, **value, "workflow": name})
