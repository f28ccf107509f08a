"""What callers may hand to an engine: every argument is checked before anything of a run is there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from treadle.kernel.errors import Unsupported, ValueRefused
from treadle.kernel.limits import HOT_RUNS_MAX, PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.machine import Machine
from treadle.kernel.model import (
    Event,
    Started,
    disarmed,
    event_value,
    may_look_like_ours,
    put_away,
)
from treadle.kernel.roles import CellMachine, has_role
from treadle.kernel.showing import shown
from treadle.kernel.tracing import OPTION, parse_traceparent
from treadle.kernel.values import Value, encode, is_slight, to_value
from treadle.lang.definition import Dialect
from treadle.lang.handed import copied_from_caller, from_caller
from treadle.lang.quota import check_priority
from treadle.runtime.commands import check_name
from treadle.runtime.ports import SystemClock

from .store.rows import DefinitionRow

if TYPE_CHECKING:
    from treadle.performers.agent.api import Provider

# More than any id, name or reference that a person looks for; SQLite refuses patterns above 50,000 bytes.
SEARCH_CHARS_MAX: Final = 10_000
_DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
# What holds other values; not what a text may be.
_NESTS: Final = (list, tuple, dict, set, frozenset)


if TYPE_CHECKING:

    class StartOptions(TypedDict, total=False):
        """What a start takes by name, besides the workflow and its input."""

        id: str | None
        key: Value
        reference: str | None
        priority: int | None
        model: str | Provider | None
        config: Mapping[str, Any] | None
        secrets: str | None
        offline: bool
        dry_run: bool
        templates: Mapping[str, Any] | None
        skills: Sequence[str]
        traceparent: str | None

    class RunFilters(TypedDict, total=False):
        """Which runs are meant: each that is given must hold. `state` names values of a run's state, by dotted names."""

        status: str | Sequence[str]
        workflow: str | None
        reference: str | None
        since_ns: int | None
        until_ns: int | None
        search: str | None
        state: Mapping[str, Any] | None

    class TaskFilters(TypedDict, total=False):
        """Which tasks of the inbox are meant; those that are open or claimed if no status is given."""

        role: str | None
        assignee: str | None
        status: str | Sequence[str]
        reference: str | None
        run: str | None


def positive(name: str, value: object) -> int:
    """A number of the engine's, given in code or in the environment."""
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueRefused(f"{name} is a whole number from 1 on, not {shown(value)}", details={"path": name})
    return number


def whole(name: str, value: object, least: int = 0) -> int | None:
    """The number of a record, or of how many are asked for; None where the caller named none."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueRefused(
            f"{name} is a whole number from {least} on, not {shown(value)}", details={"path": name}
        )
    return value


def retried(how: Mapping[str, Any]) -> dict[str, Value]:
    """How a run is retried. `from_` stands for `from`, which is a word of Python: a step, a node, by name."""
    given: dict[str, Value] = from_caller(
        {"from" if name == "from_" else name: value for name, value in how.items()}
    )
    if not isinstance(step := given.get("from"), str | None):
        raise ValueRefused(f"from is the name of a step, not {shown(step)}", details={"path": "from"})
    return given


def cache_size(given: object) -> tuple[str, object]:
    """How many runs are kept in memory, and who says so."""
    if given is not None:
        return "hot_runs", given
    return "TREADLE_CELL_CACHE_SIZE", os.environ.get("TREADLE_CELL_CACHE_SIZE") or HOT_RUNS_MAX


def checked_validation(given: str | None) -> str:
    """Whether a definition that does not compile is refused, or kept with its reasons."""
    found = given or os.environ.get("TREADLE_VALIDATION") or "strict"
    if found not in ("strict", "warn"):
        raise Unsupported(f"validation is 'strict' or 'warn', not {found!r}")
    return found


def checked_statuses(status: str | Sequence[str], statuses: tuple[str, ...]) -> tuple[str, ...]:
    """One status or several. A word that is none would find nothing, and say nothing."""
    if not isinstance(status or (), str | Sequence | Set):
        raise ValueRefused(f"a status is one of {', '.join(statuses)}, or a list of them")
    asked = (status,) if isinstance(status, str) else tuple(status or ())
    if unknown := [word for word in asked if word not in statuses]:
        raise ValueRefused(f"{shown(unknown[0])} is no status; choose from {', '.join(statuses)}")
    return asked


def check_filters(**texts: object) -> None:
    """Filters that are compared with texts."""
    for name, value in texts.items():
        if not isinstance(value, str | None):
            raise ValueRefused(f"{name} is text, not {shown(value)}", details={"path": name})
    search = texts.get("search")
    if isinstance(search, str) and len(search) > SEARCH_CHARS_MAX:
        raise ValueRefused(f"search has at most {SEARCH_CHARS_MAX:,} characters", details={"path": "search"})


def named(what: str, value: object) -> str:
    """A name that a caller has to give."""
    if not isinstance(value, str):
        raise ValueRefused(f"{what} is text, not {shown(value)}", details={"path": what})
    check_text(what, value)
    return value


def signal_once(run: object, key: object) -> tuple[str, str] | None:
    """What a signal with a key is remembered under."""
    return None if key is None else (f"run:{named('run', run)}", f"signal:{named('key', key)}")


def checked_state(state: object) -> dict[str, Value]:
    """Values that a run's state must have, by name."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) and name for name in state):
        raise ValueRefused(
            "state is a mapping of names to values: {'stage': 'done'}", details={"path": "state"}
        )
    return {name: from_caller(value) for name, value in state.items()}


def check_start(
    id: object, model: object, config: object, secrets: object, templates: object, skills: Sequence[str]
) -> None:
    """Refuses what cannot be an option of a run, before anything of it is there."""
    if id == "":
        raise ValueRefused("a run's id is empty; leave it out, and one is made", details={"path": "id"})
    if id is not None:
        _check_kind("id", id, str)
    if not (model is config is secrets is templates is None):
        _check_kind("model", model, str)
        _check_kind("config", config, Mapping)
        _check_kind("secrets", secrets, (str, Path))
        _check_kind("templates", templates, Mapping)
    if id is not None:
        from_caller(id)  # text that can be written down
    if secrets is not None:
        from .secrets.files import read_secrets_file

        read_secrets_file(Path(str(secrets)))  # a file that cannot be read is told now, not by every use
    if skills == ():
        return
    if isinstance(skills, str) or not all(isinstance(target, str) for target in skills):
        raise ValueRefused("skills is a list of FILE.py or FILE.py:NAME", details={"path": "skills"})
    for target in skills:
        from .performers.agent.skill_files import skills_in

        skills_in(target)


def _check_kind(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    if value is not None and not isinstance(value, kind):
        wanted = "a mapping" if kind is Mapping else "text"
        raise ValueRefused(f"{name} must be {wanted}, not {type(value).__name__}", details={"path": name})


def checked_event(event: Event) -> Event:
    """Refuses an event that a caller has filled with what it cannot hold: `signal("r", name=5)`."""
    for name in _texts(type(event)):
        # Before anybody walks through it: it may be without a bottom.
        if isinstance(text := getattr(event, name), _NESTS):
            raise ValueRefused(f"{event.kind}: {name} is text, not {shown(text)}")
    fields = event_value(event)
    try:
        msgspec.convert(fields, type(event), builtin_types=(bytes,))
    except (msgspec.ValidationError, TypeError, OverflowError, RecursionError) as error:
        raise ValueRefused(f"{event.kind}: {error}") from error
    for name, value in fields.items():
        # The rest are values, which are looked at whole where they are handed in.
        if type(value) is str and not value.isascii():
            check_text(f"{event.kind}: {name}", value)
    if "by" in fields:
        check_name(event)
    return event


@cache
def _texts(kind: type[Event]) -> tuple[str, ...]:
    """The fields of an event that hold text, or nothing."""
    # By their annotations, which are texts: to make types of them takes longer than the rest of a first start.
    return tuple(
        name for name in kind.__struct_fields__ if kind.__annotations__[name] in ("str", "str | None")
    )


def check_text(what: str, text: str) -> None:
    """Refuses half a character, here where everybody is told the same: the owner of a store, and its guests."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueRefused(f"{what} is text with a lone surrogate", details={"path": what}) from error


def for_operation(value: object) -> Value:
    """`from_caller`, for what goes into an operation: that is written before anything is done about it, and refused there
    if it is no value. A few texts and numbers only need a mapping that is not the caller's."""
    if not is_slight(value):
        return from_caller(value)
    return value.copy() if isinstance(value, dict) else value


def checked_actor(user: object, roles: object, to: object = None) -> tuple[str | None, tuple[str, ...]]:
    if not isinstance(roles, list | tuple | set | frozenset) or any(type(role) is not str for role in roles):
        raise ValueRefused("roles must be a list of texts", details={"path": "roles"})
    for name, who in (("to", to), ("user", user)):
        if who is not None and (not isinstance(who, str) or not who):
            raise ValueRefused(
                f"{name} must be the name of somebody, not {shown(who)}", details={"path": name}
            )
    assert user is None or isinstance(user, str)
    return user, tuple(roles)


def run_options(
    row: DefinitionRow,
    *,
    model: str | None,
    secrets: str | None,
    offline: bool,
    dry_run: bool,
    templates: Mapping[str, Any] | None = None,
    skills: Sequence[str] = (),
    traceparent: str | None = None,
) -> dict[str, Any]:
    """Settings recorded with a run, so that whoever drives it on uses the same: names and absolute
    paths, never values."""
    options: dict[str, Any] = {}
    if model is not None:
        provider, sign, argument = model.partition(":")
        if provider == "scripted" and sign:
            model = f"{provider}:{Path(argument).resolve()}"
        options["model"] = model
    if secrets is not None:
        options["secrets"] = str(Path(secrets).resolve())
    if offline:
        options["offline"] = True
    if dry_run:
        options["dry_run"] = True
    if templates:
        options["templates"] = to_value(templates)
    if skills:
        options["skills"] = [_absolute(target) for target in skills]
    if traceparent is not None:
        if (trace := parse_traceparent(traceparent)) is None:
            raise ValueRefused(
                f"{shown(traceparent, 80)} is no traceparent (W3C Trace Context): 00-TRACE-SPAN-01",
                details={"path": "traceparent"},
            )
        options[OPTION] = str(trace)
    if row.file is not None:
        options["base"] = _folder_of(os.path.abspath(row.file))
    return options


@lru_cache(maxsize=1024)
def _folder_of(file: str) -> str:
    """The folder of a definition's file, found once: a definition stays what it was read from."""
    return os.path.dirname(os.path.realpath(file))


def _absolute(target: str) -> str:
    from .performers.agent.skill_files import split

    path, name = split(target)
    return f"{path.resolve()}:{name}" if name is not None else str(path.resolve())


class CheckedInput(msgspec.Struct, frozen=True):
    """The input a run starts with, and its canonical bytes if its dialect left it as it was handed in."""

    value: Value
    body: bytes | None


def checked_input(dialect: Dialect, loaded: Any, input: object, options: dict[str, Any]) -> CheckedInput:
    """The input a run starts with. What a dialect checks first is told before anything else, all of it at
    once: also where a value is one that could not be stored."""
    if has_role(type(dialect.machine), CellMachine):
        raise Unsupported(
            "events bring a reactive workflow to life: engine.publish(event), or treadle publish SCHEMA"
        )
    if dialect.is_typed:
        input = dialect.given(input)
    try:
        given, body = copied_from_caller(input)
        taken = dialect.check_input(loaded, given, options)
        return CheckedInput(taken, body if taken is given else None)
    except ValueRefused:
        if dialect.checks_input_first and isinstance(input, dict):
            dialect.check_input(loaded, {key: _as_far_as(item) for key, item in input.items()}, options)
        raise


def _as_far_as(value: object) -> object:
    try:
        return to_value(value)
    except ValueRefused:
        return value


def started(
    row: DefinitionRow,
    machine: Machine,
    given: CheckedInput,
    options: dict[str, Any],
    reference: str | None,
    priority: int | None,
) -> tuple[Started, dict[str, bytes]]:
    """The first event of a run under a definition, with the payloads that it refers to."""
    taken, blobs = externalised(given, machine)
    event = Started(
        definition=row.digest,
        input=taken,
        seed=os.urandom(16),
        machine=machine.version,
        reference=reference,
        options=options,
        priority=None if priority is None else check_priority(priority),
    )
    if reference is not None:  # nothing else of it is as a caller wrote it
        checked_event(event)
    return event, blobs


def externalised(given: CheckedInput, machine: Machine) -> tuple[Value, dict[str, bytes]]:
    """An input for the journal, in which nothing is taken for a reference: itself, or a reference and the payload
    behind it if it is large and the machine takes that."""
    value = given.value
    body = encode(value) if given.body is None else given.body
    if may_look_like_ours(body):
        value = disarmed(value)
        body = encode(value)
    if not machine.traits.large_input or len(body) <= PAYLOAD_INLINE_BYTES_MAX:
        return value, {}
    blobs: dict[str, bytes] = {}
    # People see what is behind a reference that its dialect keeps for itself.
    hint = machine.traits.payload_hint if machine.traits.large_data else None
    return put_away(body, blobs, schema_hint=hint), blobs


@cache
def _pairs() -> list[str]:
    """Each value of ten bits as two digits of Crockford's base 32."""
    return [high + low for high in _DIGITS for low in _DIGITS]


def new_id() -> str:
    """A run id that sorts by time (48 bits of milliseconds, 80 of chance), in Crockford's base 32."""
    value = int.from_bytes((SystemClock().now_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10), "big")
    pairs = _pairs()
    return "".join([pairs[value >> shift & 1023] for shift in range(120, -1, -10)])
