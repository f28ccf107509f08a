"""`limits:` of a workflow: how many of its runs may be under way at once, how fast they may begin, how many may wait.

What is beyond a limit is not refused but waits in a line; only a line that is full refuses. With `per` there is one
such line for each value of a template over what a run was started with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from treadle.kernel.errors import DefinitionError, InputInvalid, TreadleError
from treadle.kernel.values import Value

from .duration import parse_duration

PRIORITY_MAX: Final = 100
COUNT_MAX: Final = 1_000_000
# As many instants are kept of a line as may begin in one period.
RATE_MAX: Final = 1_000
KEY_CHARS_MAX: Final = 200
_FIELDS: Final = ("concurrency", "per", "rate", "queue", "priority", "while")
RUNNING: Final = "running"
# Patterns are texts: compiled when the first limit is read, not at every start of a process.
_RATE: Final = r"\s*(\d{1,9})\s*/\s*(\S.*?)\s*"
_UNITS: Final = ("s", "m", "h", "d")
_TEMPLATE: Final = r"\{\{\s*([\w-]+(?:\.[\w-]+)*)\s*\}\}"
# What a template may begin with.
_ROOTS: Final = ("input", "reference", "run")


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"while_": "while"}):
    """Limits that were read: all of one workflow or, with `per`, of each of its lines."""

    concurrency: int | None = None
    per: str | None = None
    rate: str | None = None
    queue: int | None = None
    priority: int = 0
    # `running`: a run has its place only while it is not waiting.
    while_: str | None = None

    @staticmethod
    def read(value: object) -> Quota:
        """`{concurrency: N, per: "{{ input.x }}", rate: 10/s, queue: N, priority: P, while: running}`, each if it is
        wanted."""
        if not isinstance(value, Mapping):
            raise _wrong(None, 'is a mapping, as in {concurrency: 5, rate: "10/s", queue: 100}')
        for key in value:
            if key not in _FIELDS:
                raise _wrong(str(key), f"there is no such limit; known are {', '.join(_FIELDS)}")
        given = {key: item for key, item in value.items() if item is not None}
        if "concurrency" not in given and "rate" not in given:
            raise _wrong(None, "says neither concurrency nor rate, so it limits nothing")
        for field, least in (("concurrency", 1), ("queue", 0)):
            if field in given:
                _whole(field, given[field], least, COUNT_MAX)
        if "priority" in given:
            check_priority(given["priority"])
        if "per" in given:
            _check_per(given["per"])
        if given.get("while", RUNNING) != RUNNING:
            raise _wrong("while", f"is {RUNNING}, or is not said: then a run has its place until it ends")
        quota = Quota.of(given)
        if "rate" in given:
            quota.pace()
        return quota

    @staticmethod
    def of(value: Mapping[str, Any]) -> Quota:
        """One that was read before, from its stored form."""
        said = dict(value)
        return Quota(while_=said.pop("while", None), **said)

    @property
    def rests(self) -> bool:
        """Whether a run that waits gives its place back meanwhile."""
        return self.while_ == RUNNING

    def to_value(self) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.to_builtins(self))

    def pace(self) -> tuple[int, int] | None:
        """How many may begin in how many nanoseconds; None for as many as come."""
        if self.rate is None:
            return None
        found = re.fullmatch(_RATE, self.rate) if isinstance(self.rate, str) else None
        if found is None:
            raise _wrong("rate", 'is a number in a time, as in "10/s", "100/h" or "5/10s"')
        count, period = int(found[1]), found[2]
        if not 1 <= count <= RATE_MAX:
            raise _wrong("rate", f"counts 1 to {RATE_MAX}; for more, name a shorter time")
        try:
            period_ns = parse_duration(f"1{period}" if period in _UNITS else period)
        except DefinitionError as error:
            raise _wrong("rate", error.message) from error
        if period_ns <= 0:
            raise _wrong("rate", "counts in a time longer than none")
        return count, period_ns

    def key(self, *, input: Value, reference: str | None, run: str) -> str:
        """Which line a run is in: what `per` makes of it, or the only one."""
        if self.per is None:
            return ""
        about = {"input": input, "reference": reference, "run": run}
        key = re.sub(_TEMPLATE, lambda match: _part(about, match[1]), self.per)
        if len(key) > KEY_CHARS_MAX:
            raise InputInvalid(
                f"limits.per makes a key of {len(key)} characters of this input; at most {KEY_CHARS_MAX} are kept",
                where="limits.per",
            )
        return key


def check_priority(value: object) -> int:
    return _whole("priority", value, -PRIORITY_MAX, PRIORITY_MAX)


def _check_per(value: object) -> None:
    if not isinstance(value, str) or not re.search(_TEMPLATE, value):
        raise _wrong("per", 'is a template over what a run is started with, as in "{{ input.customer }}"')
    rest = re.sub(_TEMPLATE, "", value)
    if "{{" in rest or "}}" in rest or "\0" in rest:
        raise _wrong("per", "names values only, as in {{ input.customer.id }}; it takes no expressions")
    for path in re.findall(_TEMPLATE, value):
        if path.split(".")[0] not in _ROOTS:
            raise _wrong("per", f"{path} begins with none of {', '.join(_ROOTS)}")


def _part(about: Mapping[str, Any], path: str) -> str:
    found: Any = about
    for part in path.split("."):
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, bool):
        return "true" if found else "false"
    if not isinstance(found, str | int | float) or "\0" in str(found):
        raise InputInvalid(
            f"limits.per of this workflow names {path}, which is no text or number in this run",
            where="limits.per",
        )
    return str(found)


def _whole(field: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(field, f"is a whole number from {least} to {most}")
    return value


def _wrong(field: str | None, message: str) -> TreadleError:
    return DefinitionError(
        f"limits{'' if field is None else '.' + field}: {message}", code="LIMITS_INVALID", where=field
    )
