"""A schedule as people write it: on the command line, over HTTP, or as `schedule:` in a definition's metadata.

`Schedule.read` takes a mapping and refuses what it cannot mean, naming the field. What it gives is complete: every
default is filled in, and two texts that mean the same are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, cast, get_args

import msgspec

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value
from treadle.lang.handed import from_caller

from .duration import instant_text, parse_duration, parse_instant, seconds_text
from .recurrence import SECOND_NS, Cron, Every, OneTime, Recurrence, jitter_ns

CatchUp = Literal["none", "last", "all"]
Overlap = Literal["allow", "skip", "queue", "cancel"]
NAME_CHARS_MAX: Final = 150
INPUT_BYTES_MAX: Final = 64 * 1024
_NAME: Final = r"[^\s@\x00-\x1f\x7f][^@\x00-\x1f\x7f]*\Z"
_WHEN: Final = ("cron", "every", "at")
_FIELDS: Final = (
    *_WHEN,
    *("name", "workflow", "input", "timezone", "offset", "jitter", "catch_up", "overlap", "paused"),
)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When which workflow is started, and what happens to ticks that were missed or come too early."""

    name: str
    workflow: str
    input: Value = None
    cron: str | None = None
    every: str | None = None
    at: str | None = None
    timezone: str = "UTC"
    offset: str = "0s"
    jitter: str = "0s"
    catch_up: CatchUp = "last"
    overlap: Overlap = "skip"
    paused: bool = False

    @staticmethod
    def read(value: Mapping[str, Any]) -> Schedule:
        given = {key: item for key, item in value.items() if item is not None}
        if unknown := given.keys() - set(_FIELDS):
            raise _wrong(
                sorted(map(str, unknown))[0], f"there is no such field; known are {', '.join(_FIELDS)}"
            )
        if len([word for word in _WHEN if word in given]) != 1:
            raise _wrong("cron", "say when: exactly one of cron, every, at")
        for field in ("name", "workflow", "cron", "at", "timezone"):
            if field in given and (not isinstance(given[field], str) or not given[field]):
                raise _wrong(field, "is a text")
        for field in ("name", "workflow"):
            if field not in given:
                raise _wrong(field, "is missing")
        if len(given["name"]) > NAME_CHARS_MAX or re.match(_NAME, given["name"]) is None:
            raise _wrong("name", f"is 1 to {NAME_CHARS_MAX} characters without @; its runs are NAME@instant")
        for field, kinds in (("catch_up", get_args(CatchUp)), ("overlap", get_args(Overlap))):
            if given.get(field, kinds[0]) not in kinds:
                raise _wrong(field, f"is one of {', '.join(kinds)}")
        if not isinstance(given.get("paused", False), bool):
            raise _wrong("paused", "is true or false")
        for field in ("every", "offset", "jitter"):
            if field in given:
                given[field] = _duration(field, given[field])
        if "at" in given:
            try:
                given["at"] = instant_text(parse_instant(given["at"]))
            except OverflowError as error:
                raise _wrong("at", "is in no year from 1 to 9999, by the clock of UTC") from error
        if "input" in given:
            given["input"] = from_caller(given["input"])
        made = Schedule(**given)
        if made.recurrence.after(0) is None and made.at is None:
            raise _wrong("cron", "never comes")
        return made

    @property
    def recurrence(self) -> Recurrence:
        if self.cron is not None:
            return Cron(self.cron, self.timezone)
        if self.at is not None:
            return OneTime(parse_instant(self.at))
        interval = parse_duration(self.every)
        if interval < SECOND_NS:
            raise _wrong("every", "is at least a second")
        return Every(interval, parse_duration(self.offset) % interval)

    def starts_ns(self, tick_ns: int) -> int:
        """When the run of a tick is started: a little later than its name says, where there is jitter."""
        return tick_ns + jitter_ns(self.name, tick_ns, parse_duration(self.jitter))

    def to_value(self) -> dict[str, Any]:
        return cast("dict[str, Any]", msgspec.to_builtins(self, builtin_types=(bytes,)))

    def shown(self) -> dict[str, Any]:
        """With its defaults written out; the ways of saying when that it does not use are left out."""
        value = {name: getattr(self, name) for name in _FIELDS}
        unused = [word for word in (*_WHEN, "offset") if value[word] in (None, "0s")]
        return {name: item for name, item in value.items() if name not in unused}


def run_id(name: str, tick_ns: int) -> str:
    """The run of a tick: one id, whoever starts it."""
    return f"{name}@{instant_text(tick_ns)[:19]}Z"


def trigger_id(name: str, now_ns: int) -> str:
    """The run of a start by hand."""
    return f"{name}@{instant_text(now_ns)[:23]}Z"


def _duration(field: str, value: object) -> str:
    try:
        parse_duration(value)
    except DefinitionError as error:
        raise _wrong(field, error.message) from error
    return value.replace(" ", "") if isinstance(value, str) else seconds_text(cast("float", value))


def _wrong(field: str, message: str) -> DefinitionError:
    return DefinitionError(f"{field}: {message}", code="SCHEDULE_INVALID", where=field)
