"""What the engine is made of: which dialects, which performers for which intents.

Everything is imported when it is first needed, so that `import treadle` and short commands stay
fast, and a missing extra only matters to those who use it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.kernel.errors import TreadleError, Unsupported, ValueRefused
from treadle.kernel.limits import HOT_RUNS_MAX, PAYLOAD_INLINE_BYTES_MAX
from treadle.kernel.machine import Machine
from treadle.kernel.model import Event, event_value, make_reference
from treadle.kernel.values import Value, digest_bytes, encode, to_value
from treadle.lang.definition import Definition, Dialect
from treadle.lang.fields import Declared, nothing_declared
from treadle.lang.problems import Problem
from treadle.runtime import deploys, tasks
from treadle.runtime.messages import check_name
from treadle.runtime.ports import SystemClock
from treadle.store.protocol import DefinitionRow

if TYPE_CHECKING:
    from treadle.runtime.commands import Operate
    from treadle.runtime.core import Core

    from .engine import Engine

DIALECTS = ("playbook", "agent", "process", "reactive")


class Dialects(Mapping[str, Dialect]):
    """The dialects of one engine, each imported on first use. Those that check which transports a
    definition calls (`knowing`) are told what this engine has, those that name skills (`finding`)
    where such are found, those that hold tasks to their tools' fields (`declaring`) what tools declare."""

    def __init__(
        self, transports: Callable[[], Collection[str]] = tuple, declared: Declared = nothing_declared
    ) -> None:
        self._loaded: dict[str, Dialect] = {}
        self._transports, self._declared = transports, declared

    def __getitem__(self, name: str) -> Dialect:
        if name not in self._loaded:
            if name not in DIALECTS:
                raise KeyError(name)
            dialect = import_module(f"treadle.dialects.{name}").DIALECT
            if knowing := getattr(dialect, "knowing", None):
                dialect = knowing(self._transports)
            if declaring := getattr(dialect, "declaring", None):
                dialect = declaring(self._declared)
            if finding := getattr(dialect, "finding", None):
                dialect = finding(_finds_skill)
            self._loaded[name] = dialect
        return self._loaded[name]

    def __setitem__(self, name: str, dialect: Dialect) -> None:
        """For tests and plug-ins: a dialect of one's own."""
        self._loaded[name] = dialect

    def __contains__(self, name: object) -> bool:
        return name in DIALECTS or name in self._loaded

    def __iter__(self) -> Iterator[str]:
        return iter([*DIALECTS, *(name for name in self._loaded if name not in DIALECTS)])

    def __len__(self) -> int:
        return len(list(iter(self)))


def _finds_skill(id: str, file: str | None) -> bool | str:
    from .performers.agent.skill_finding import is_there

    return is_there(id, None if file is None else str(Path(file).resolve().parent))


def register_performers(engine: Engine, dialect: str) -> None:
    """Who performs which intents of a dialect; called when the first of them comes."""
    register = engine.worker.register
    if dialect == "playbook":
        from .performers.playbook.performer import PipelinePerformer

        pipeline = PipelinePerformer(
            engine.tools, engine.secrets, file_of=lambda digest: _file_of(engine, digest)
        )
        register("step", pipeline, dialect=dialect, threaded=pipeline.never_waits)
    if dialect == "process":
        calls = engine.transports
        register("call", calls, dialect=dialect, threaded=calls.never_waits)
    if dialect == "agent":
        engine.agents.register(engine.worker)
    if dialect == "reactive":
        from .performers.reactive.effects import EffectPerformer

        register("*", EffectPerformer(engine.tools, engine.applications.machine), dialect=dialect)
        engine.worker.signing.add(dialect)


async def _file_of(engine: Engine, digest: str) -> str | None:
    row = await engine.read(lambda reads: reads.definition(digest))
    return None if row is None else row.file


def register(engine: Engine, plugin: Any) -> None:
    from .performers.agent.skill import Skill

    if isinstance(plugin, Skill):
        engine.agents.skills.register(plugin)
    elif isinstance(getattr(plugin, "kind", None), str) and callable(getattr(plugin, "run", None)):
        engine.tools.register(plugin)
    else:
        raise TreadleError(
            f"{type(plugin).__name__} is neither a skill (treadle.agent.Skill) nor a tool "
            "(an object with `kind` and `async run(config, call)`); register one of these",
            cls="definition",
            code="PLUGIN_INVALID",
        )


def attach(dialect: Dialect, definition: Definition) -> None:
    """Hands live code to the machine that needs it (a reactive application)."""
    dialect.machine.attach(definition.code)  # type: ignore[attr-defined]


class EngineOperations:
    """What an engine's core can be asked for besides events."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def perform(self, core: Core, asked: Operate) -> Any:
        match asked.name:
            case "deploy":
                return perform_deploy(self._engine, core, asked.body)
            case "learn":
                return deploys.learn(core, asked.body)
            case "task":
                return tasks.perform(core, asked)
            case _:
                return self._engine.applications.operate(core, asked)

    def pinned(self, core: Core) -> Iterable[str]:
        return self._engine.applications.pinned(core)


def perform_deploy(engine: Engine, core: Core, body: dict[str, Any]) -> dict[str, Any]:
    """Deploys, on the core thread. What was left alone for want of this code gets another chance."""
    deploy = deploys.Deploy.from_value(body)
    if deploy.row.dialect == "reactive":
        engine.applications.check_owner(core.store, deploy.row)
    answer = deploys.perform(core, deploy)
    if deploy.row.dialect == "reactive":
        engine.applications.learn(deploy.row)
        core.readable()
        engine.worker.try_again(deploy.row.dialect)
    return answer


def positive(name: str, value: object) -> int:
    """A number of the engine's, given in code or in the environment."""
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueRefused(f"{name} is a whole number from 1 on, not {value!r:.40}", details={"path": name})
    return number


def cache_size(given: object) -> tuple[str, object]:
    """How many runs are kept in memory, and who says so."""
    if given is not None:
        return "hot_runs", given
    return "TREADLE_CELL_CACHE_SIZE", os.environ.get("TREADLE_CELL_CACHE_SIZE") or HOT_RUNS_MAX


def checked_statuses(status: str | Sequence[str], statuses: tuple[str, ...]) -> tuple[str, ...]:
    """One status or several. A word that is none would find nothing, and say nothing."""
    asked = (status,) if isinstance(status, str) else tuple(status or ())
    if unknown := [word for word in asked if word not in statuses]:
        raise ValueRefused(f"{unknown[0]!r} is no status; choose from {', '.join(statuses)}")
    return asked


def check_start(
    id: object, model: object, config: object, secrets: object, templates: object, skills: Sequence[str]
) -> None:
    """Refuses what cannot be an option of a run, before anything of it is there."""
    if id == "":
        raise ValueRefused("a run's id is empty; leave it out, and one is made", details={"path": "id"})
    for name, value, kind in (
        ("id", id, str),
        ("model", model, str),
        ("config", config, Mapping),
        ("secrets", secrets, str | Path),
        ("templates", templates, Mapping),
    ):
        if value is not None and not isinstance(value, kind):
            wanted = "a mapping" if kind is Mapping else "text"
            raise ValueRefused(f"{name} must be {wanted}, not {type(value).__name__}", details={"path": name})
    if secrets is not None:
        from .secrets.files import read_secrets_file

        read_secrets_file(Path(str(secrets)))  # a file that cannot be read is told now, not by every use
    if isinstance(skills, str) or not all(isinstance(target, str) for target in skills):
        raise ValueRefused("skills is a list of FILE.py or FILE.py:NAME", details={"path": "skills"})
    for target in skills:
        from .performers.agent.skill_files import skills_in

        skills_in(target)


def check_model(
    engine: Engine, row: DefinitionRow, loaded: Any, options: Mapping[str, Any], *, works: bool
) -> None:
    """Refuses a run that can ask nobody, before it is there: its provider cannot be made, or none is chosen
    and this engine does the work itself. Where others work, one of them may have a model."""
    spec = options.get("model")
    # A script may be wrong for the agents that another dialect calls, too.
    scripted = spec is not None and spec.partition(":")[0] == "scripted"
    own = row.dialect == "agent" and engine.owns
    if scripted or (own and (spec or (works and loaded.needs_model))):
        engine.agents.providers.check(options)


def checked_event(event: Event) -> Event:
    """Refuses an event that a caller has filled with what it cannot hold: `signal("r", name=5)`."""
    try:
        msgspec.convert(event_value(event), type(event), builtin_types=(bytes,))
    except (msgspec.ValidationError, TypeError, OverflowError, RecursionError) as error:
        raise ValueRefused(f"{event.kind}: {error}") from error
    check_name(event)
    return event


def checked_actor(user: object, roles: object, to: object = None) -> tuple[str | None, tuple[str, ...]]:
    if not isinstance(roles, list | tuple | set | frozenset) or any(type(role) is not str for role in roles):
        raise ValueRefused("roles must be a list of texts", details={"path": "roles"})
    for name, who in (("to", to), ("user", user)):
        if who is not None and (not isinstance(who, str) or not who):
            raise ValueRefused(
                f"{name} must be the name of somebody, not {who!r:.40}", details={"path": name}
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
    if row.file is not None:
        options["base"] = str(Path(row.file).resolve().parent)
    return options


def _absolute(target: str) -> str:
    from .performers.agent.skill_files import split

    path, name = split(target)
    return f"{path.resolve()}:{name}" if name is not None else str(path.resolve())


def checked_input(dialect: Dialect, loaded: Any, input: object, options: dict[str, Any]) -> Value:
    """The input a run starts with. What an agent workflow declares is told before anything else,
    all of it at once: also where a value is one that could not be stored."""
    if dialect.machine.by_events:
        raise Unsupported(
            "events bring a reactive workflow to life: engine.publish(event), or treadle publish SCHEMA"
        )
    try:
        return dialect.check_input(loaded, to_value(input), options)
    except ValueRefused:
        if dialect.name == "agent" and isinstance(input, dict):
            dialect.check_input(loaded, {key: _as_far_as(item) for key, item in input.items()}, options)
        raise


def _as_far_as(value: object) -> object:
    try:
        return to_value(value)
    except ValueRefused:
        return value


def externalised(value: Value, machine: Machine) -> tuple[Value, dict[str, bytes]]:
    """An input for the journal: itself, or a reference and the payload behind it if it is large and the
    machine takes that."""
    body = encode(value) if machine.large_input else b""
    if len(body) <= PAYLOAD_INLINE_BYTES_MAX:
        return value, {}
    checksum = digest_bytes(body)
    # People see what is behind a reference that its dialect keeps for itself.
    hint = machine.dialect if machine.large_data else None
    return make_reference(checksum=checksum, size=len(body), schema_hint=hint), {checksum: body}


def as_problem(error: TreadleError, file: str) -> Problem:
    return Problem("error", error.code, error.message, file=file)


def new_id() -> str:
    """A run id that sorts by time (48 bits of milliseconds, 80 of chance), in Crockford's base 32."""
    value = int.from_bytes((SystemClock().now_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10), "big")
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[value >> shift & 31] for shift in range(125, -1, -5))
