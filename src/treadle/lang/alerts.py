"""Which workflow is started when a run fails, stalls or is late: `alerts:` of a definition, or of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from treadle.kernel.errors import DefinitionError

from .duration import parse_duration

_OCCASIONS: Final = ("failed", "stalled", "late")


class Alerts(msgspec.Struct, frozen=True):
    failed: str | None = None
    stalled: str | None = None
    late: str | None = None
    # How long after its start a run that has not ended is late.
    after_ns: int = 0

    @staticmethod
    def read(value: object) -> Alerts:
        """`{failed: WORKFLOW, stalled: WORKFLOW, late: {after: 1h, workflow: WORKFLOW}}`, each if it is wanted."""
        if not isinstance(value, Mapping):
            raise _wrong(None, "is a mapping of failed, stalled, late to a workflow")
        for key in value:
            if key not in _OCCASIONS:
                raise _wrong(str(key), f"there is no such occasion; known are {', '.join(_OCCASIONS)}")
        found: dict[str, Any] = {
            key: _workflow(key, value[key]) for key in ("failed", "stalled") if key in value
        }
        if "late" in value:
            late = value["late"]
            if not isinstance(late, Mapping) or set(late) != {"after", "workflow"}:
                raise _wrong("late", "is {after: 1h, workflow: NAME}")
            try:
                found["after_ns"] = parse_duration(late["after"])
            except DefinitionError as error:
                raise _wrong("late", error.message) from error
            found["late"] = _workflow("late", late["workflow"])
        return Alerts(**found)

    def over(self, other: Alerts) -> Alerts:
        """These, and where they say nothing, others."""
        late = self if self.late is not None else other
        return Alerts(self.failed or other.failed, self.stalled or other.stalled, late.late, late.after_ns)


NO_ALERTS: Final = Alerts()


def _workflow(field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(field, "is the name of a workflow")
    return value


def _wrong(field: str | None, message: str) -> DefinitionError:
    return DefinitionError(
        f"alerts{'' if field is None else '.' + field}: {message}", code="ALERTS_INVALID", where=field
    )
