"""`retention`: how long runs that have ended are kept, by how they ended. A definition says it of its own runs, operators
of the runs of a workflow or of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from treadle.kernel.errors import DefinitionError
from treadle.kernel.model import TERMINAL

from .duration import parse_duration, seconds_text

FOREVER: Final = "forever"
# A date that is never reached: the last one that a store can write down.
NEVER_NS: Final = 2**63 - 1
# In their order, for people.
STATUSES: Final = tuple(sorted(TERMINAL))


class Retention(msgspec.Struct, frozen=True):
    """Ages as they were written, by status; of a status that is not among them nothing is said."""

    ages: dict[str, str]
    # The same in nanoseconds, which each end of a run asks for; NEVER_NS: for ever.
    ages_ns: dict[str, int]

    @staticmethod
    def read(value: object) -> Retention:
        """`30d`, `forever`, or `{completed: 7d, failed: 90d, cancelled: forever}`. Raises a DefinitionError."""
        if isinstance(value, Mapping):
            if not value:
                raise _wrong(None, f"says an age for at least one of {', '.join(STATUSES)}")
            for status in value:
                if status not in TERMINAL:
                    raise _wrong(str(status), f"runs do not end so; they end as one of {', '.join(STATUSES)}")
            said = dict(value)
        else:
            said = dict.fromkeys(STATUSES, value)
        return Retention.of({status: _age(status, said[status]) for status in STATUSES if status in said})

    @staticmethod
    def of(value: Mapping[str, Any]) -> Retention:
        """One that was read before, from its stored form."""
        ages = {str(status): str(age) for status, age in value.items()}
        return Retention(ages, {status: _age_ns(age) for status, age in ages.items()})

    def to_value(self) -> dict[str, Any]:
        return dict(self.ages)


def _age_ns(age: str) -> int:
    return NEVER_NS if age == FOREVER else parse_duration(age)


def _age(status: str, value: object) -> str:
    if value == FOREVER:
        return FOREVER
    try:
        parse_duration(value)
    except DefinitionError as error:
        raise _wrong(status, f"{error.message}, or {FOREVER}") from error
    return seconds_text(value) if isinstance(value, int | float) else str(value).strip()


def _wrong(field: str | None, message: str) -> DefinitionError:
    return DefinitionError(
        f"retention{'' if field is None else '.' + field}: {message}", code="RETENTION_INVALID", where=field
    )
