"""How a command is made: what all of them share is written here once.

A subject has one `Commands`, which collects functions whose first parameter is a `Session`. Every
command so made takes `--store` or `--server` and `--json`, shows examples in its help, turns errors into exit codes and JSON, and
ends cleanly on Ctrl-C. Importing this module imports no engine: `treadle --help` stays quick.
"""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from treadle.kernel.errors import TreadleError

from . import moments, stdout
from .as_written import PlainGroup
from .interrupts import Interrupts
from .log_lines import Form, LogOption, written
from .output import EXIT_INTERRUPTED, EXIT_OK, EXIT_TERMINATED, Output, Usage, unforeseen
from .plain_help import NUMBER_MAX, PlainCommand, say_plainly
from .reach import Destination, Reach, ServerAddress, ServerOption, TokenOption, address_of

if TYPE_CHECKING:
    from treadle.client.protocol import TreadleClient
    from treadle.engine import Engine

C = TypeVar("C", bound="TreadleClient")

DEFAULT_STORE: Final = "sqlite:///treadle.db"
# How long a process that is done finishes what it does for the runs of others.
LEAVE_S: Final = 30
NAMED_MAX: Final = 3

# Panels of `treadle --help`, in the order a newcomer needs them.
RUN: Final = "Run and look"
STEER: Final = "Steer"
DEFINE: Final = "Definitions"
REACT: Final = "Reactive applications"
PROVE: Final = "Replay and compare"
HOUSE: Final = "Keep house"

_STORE = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"Where runs live. Env TREADLE_STORE, default {DEFAULT_STORE}.",
        rich_help_panel="Common",
        show_default=False,
    ),
]
_JSON = Annotated[
    bool, typer.Option("--json", help="Machine-readable output on standard output.", rich_help_panel="Common")
]

_UTC = Annotated[
    bool,
    typer.Option(
        "--utc", help="Show and read times in UTC instead of the local zone.", rich_help_panel="Common"
    ),
]

_USER = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="USER",
        envvar="TREADLE_USER",
        help="Who does this; recorded. Default: who is logged in.",
        rich_help_panel="Common",
        show_default=False,
    ),
]

App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="FILE:ATTR",
        help="The reactive application whose code is needed.",
        show_default=False,
    ),
]

Apps = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="FILE:ATTR",
        help="Code that is needed: an application, a builder, functions. Repeat it for several.",
        show_default=False,
    ),
]

Actor = Annotated[
    str | None, typer.Option("--user", metavar="USER", help="Who does this; recorded.", show_default=False)
]


@dataclass(slots=True)
class Defaults:
    """Options given before the command: `treadle --store URL list`."""

    store: str | None = None
    as_json: bool = False
    utc: bool = False
    server: str | None = None
    token: str | None = None


@dataclass(slots=True)
class Session:
    """One invocation: where to look, how to answer, what to say when interrupted."""

    store: str
    out: Output
    # Printed on Ctrl-C: how to go on.
    on_interrupt: str = ""
    # Who does it, as the audit log has it.
    user: str = "local"
    # The server to ask in place of the store.
    server: ServerAddress | None = None
    # The form of `--log`, if it was given: then standard error holds such lines and nothing else.
    log: Form | None = None
    # How long work of other runs may take that is in hand when the command is done.
    leave_s: int = LEAVE_S

    @property
    def stopped(self) -> str:
        """What is said on Ctrl-C."""
        return f"stopped. {self.on_interrupt}".rstrip()

    @property
    def where(self) -> str:
        """Where runs are looked for, for people."""
        from treadle.store.open import shown

        return f"store {shown(self.store)}" if self.server is None else f"server {self.server.url}"

    def goes_on(self, id: str) -> str:
        """How a run goes on that nobody here waits for any longer."""
        if self.server is None:
            return f" and goes on with: treadle resume {id}"
        return f" and goes on at the server; follow it with: treadle events {id} --follow"

    async def client(self, app: str | None = None, **options: Any) -> TreadleClient:
        """Whoever holds the runs, not opened yet: an engine on the store, or the server."""
        if self.server is None:
            return await self.prepare(app, **options)
        from treadle.client.http import HttpClient

        if app:
            raise Usage(f"--app: a server has its own code; start it with: treadle serve --app {app}")
        return HttpClient(
            self.server.url,
            token=self.server.token,
            user=self.server.user,
            validation=options.get("validation"),
        )

    @asynccontextmanager
    async def acts(
        self, app: str | None = None, *, creates: bool = True, lingers: bool = True, **options: Any
    ) -> AsyncIterator[TreadleClient]:
        """Whoever holds the runs, for a command that changes something: see `engine`."""
        if self.server is None:
            async with self.engine(app, creates=creates, lingers=lingers, **options) as engine:
                yield engine
            return
        async with await self.client(app) as server:
            yield server

    @asynccontextmanager
    async def asks(self, app: str | None = None, *, code: bool = False) -> AsyncIterator[TreadleClient]:
        """Whoever holds the runs, for questions only: see `look`."""
        if self.server is None:
            async with self.look(app, code=code) as engine:
                yield engine
            return
        async with await self.client(app) as server:
            yield server

    async def prepare(self, app: str | None = None, **options: Any) -> Engine:
        """An engine that has not been started: it can compile, and has not touched the store."""
        from treadle.engine import Engine

        from .loading import attach, attach_known

        engine = Engine(self.store, **options)
        attach_known(engine, self.out)
        if app:
            attach(engine, app)
        return engine

    @asynccontextmanager
    async def engine(
        self,
        app: str | None = None,
        *,
        creates: bool = True,
        lingers: bool = True,
        skills: Sequence[str] = (),
        **options: Any,
    ) -> AsyncIterator[Engine]:
        """A started engine on the store: it owns it if nobody else does, and sets its work going.
        A command that `creates` nothing makes no store either: where there is none, there is no run."""
        if not creates and not self.has_store():
            self.store = "memory:"
        prepared = await self.prepare(app, **options)
        if skills:
            from .loading import add_skills

            add_skills(prepared, skills)
        async with self.started(prepared, lingers=lingers) as engine:
            yield engine

    @asynccontextmanager
    async def started(self, client: C, *, lingers: bool = True) -> AsyncIterator[C]:
        """Opens whoever holds the runs; whoever is done with an engine leaves in good order."""
        from treadle.engine import Engine

        async with client:
            yield client
            if lingers and isinstance(client, Engine):
                await self._let_go(client)

    async def _let_go(self, engine: Engine) -> None:
        """As owner of the store we do the work of other processes' runs, too. What is in hand is
        finished before we leave: dropped, it would be paid twice, or be in doubt."""
        import asyncio

        from rich.markup import escape

        held = engine.worker.take_no_more()
        if not held:
            return
        named = [f"{work.run} ({work.intent.kind} {work.intent.name})" for work in held[:NAMED_MAX]]
        more = f" and {len(held) - NAMED_MAX} more" if len(held) > NAMED_MAX else ""
        told = f"{escape(', '.join(named))}{more}"
        self.out.note(f"[dim]done; finishing work of other runs first, at most {self.leave_s} s: {told}[/]")
        task = asyncio.current_task()
        assert task is not None
        try:
            if not await engine.worker.finish(self.leave_s):
                self.out.note("[dim]not finished in time; whoever drives those runs on does it again[/]")
        except asyncio.CancelledError:
            task.uncancel()  # Ctrl-C: leave at once. What this command was for is done.

    def has_store(self) -> bool:
        from treadle.store.open import has_store

        return has_store(self.store)

    @asynccontextmanager
    async def look(self, app: str | None = None, *, code: bool = False) -> AsyncIterator[Engine]:
        """An engine for questions only: it sets nothing going. `code`: the question needs the code
        of reactive applications."""
        from treadle.engine import Engine

        from .loading import attach_known

        onlooker = Engine(self.store, readonly=True)
        if code:
            attach_known(onlooker, self.out)
        if app:
            onlooker.load(app)
        async with onlooker:
            yield onlooker


Body = Callable[..., Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class Command:
    """A command as its module wrote it."""

    name: str
    examples: Sequence[str]
    body: Body
    reach: Reach = Reach.STORE
    # Why there is no such thing at a server.
    why: str = ""
    # Whether it runs for long enough to say what happens meanwhile (`--log`).
    logs: bool = False


@dataclass(slots=True)
class Commands:
    """The commands of one subject. Each is `async def body(cli: Session, …) -> exit code | None`."""

    panel: str
    # The name of a sub-command group (`treadle task …`), or none.
    group: str | None = None
    help: str | None = None
    made: list[Command] = field(default_factory=list)

    def __call__(
        self,
        name: str | None = None,
        *,
        examples: Sequence[str],
        reach: Reach = Reach.STORE,
        why: str = "",
        logs: bool = False,
    ) -> Callable[[Body], Body]:
        def add(body: Body) -> Body:
            called = name or body.__name__.replace("_", "-")
            self.made.append(Command(called, examples, body, reach, why, logs))
            return body

        return add

    @property
    def names(self) -> list[str]:
        """What stands right after `treadle`."""
        return [command.name for command in self.made] if self.group is None else [self.group]

    def install(self, app: typer.Typer, only: str | None = None, *, outline: bool = False) -> None:
        """All of them; or `only` what has this name. In an outline they have no options."""
        home, panel = app, self.panel
        if self.group is not None:
            home = typer.Typer(cls=PlainGroup, no_args_is_help=True, rich_markup_mode="rich", help=self.help)
            app.add_typer(home, name=self.group, rich_help_panel=self.panel)
            panel = "Commands"
        for command in self.made:
            if only is not None and only not in (command.name, self.group):
                continue
            home.command(
                command.name, cls=PlainCommand, epilog="\n".join(command.examples), rich_help_panel=panel
            )(_outlined(command) if outline else _invocable(command))


def _outlined(command: Command) -> Callable[[], None]:
    """A command as a list of them shows it."""

    def invoke() -> None:
        raise AssertionError("an outline is looked at, not called")

    invoke.__doc__ = command.body.__doc__
    return invoke


def _invocable(command: Command) -> Callable[..., None]:
    """The function that Typer sees: the body's options and those that every command takes."""
    body = command.body
    asked = [p for p in inspect.signature(body, eval_str=True).parameters.values() if p.name != "cli"]
    groups: dict[str, type] = {
        p.name: p.annotation for p in asked if isinstance(p.annotation, type) and is_dataclass(p.annotation)
    }
    own = [one for p in asked for one in (_options_of(groups[p.name]) if p.name in groups else [p])]
    asks_user = not any(_has_option(parameter, "--user") for parameter in own)
    # A worker names its servers itself; another door asks for a token of its own.
    own_names = any(_has_option(parameter, name) for parameter in own for name in ("--server", "--token"))
    asks_server = not own_names

    def invoke(ctx: typer.Context, **values: Any) -> None:
        defaults = ctx.obj if isinstance(ctx.obj, Defaults) else Defaults()
        for name, value in values.items():
            if type(value) is int and value > NUMBER_MAX:
                raise typer.BadParameter(f"--{name.replace('_', '-')}: no number is larger than {NUMBER_MAX}")
        store = values.pop("store") or defaults.store
        server = values.pop("server") if asks_server else None
        token = values.pop("server_token") if asks_server else None
        for name, group in groups.items():
            values[name] = group(**{option.name: values.pop(option.name) for option in fields(group)})
        said = _user_of(values, groups) or os.environ.get("TREADLE_USER")
        user = said or _logged_in()
        if asks_user:
            values.pop("user")
        moments.ZONE.set(UTC if values.pop("utc") or defaults.utc else None)
        out = Output(as_json=values.pop("as_json") or defaults.as_json)
        session = Session(store or os.environ.get("TREADLE_STORE") or DEFAULT_STORE, out, user=user)
        if asks_server:
            token = token or defaults.token or os.environ.get("TREADLE_TOKEN")
            asked = Destination(server or defaults.server, store, token, said, user)
            try:
                session.server = address_of(command.name, command.reach, command.why, asked)
            except Usage as error:
                raise typer.Exit(out.error(error)) from error
        session.log = values.pop("log", None)
        with written(session.log):
            code = perform(session, body, values)
        if code:
            raise typer.Exit(code)

    keyword = inspect.Parameter.KEYWORD_ONLY
    shown = [
        *(parameter.replace(kind=keyword) for parameter in own),
        *([inspect.Parameter("user", keyword, default=None, annotation=_USER)] if asks_user else []),
        inspect.Parameter("store", keyword, default=None, annotation=_STORE),
        *(
            inspect.Parameter(name, keyword, default=None, annotation=option)
            for name, option in (("server", ServerOption), ("server_token", TokenOption))
            if asks_server
        ),
        *([inspect.Parameter("log", keyword, default=None, annotation=LogOption)] if command.logs else []),
        inspect.Parameter("as_json", keyword, default=False, annotation=_JSON),
        inspect.Parameter("utc", keyword, default=False, annotation=_UTC),
    ]
    for parameter in shown:
        say_plainly(parameter)
    invoke.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # functions may have one, typeshed does not know
        [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *shown,
        ]
    )
    invoke.__annotations__ = {}
    invoke.__doc__ = body.__doc__
    return invoke


def _user_of(values: dict[str, Any], groups: dict[str, type]) -> str | None:
    """Who the command line says does this, in an option of its own or of a group."""
    told = [values.get("user")]
    for name, group in groups.items():
        told += [getattr(values[name], option.name) for option in fields(group) if option.name == "user"]
    return next((user for user in told if user), None)


def _has_option(parameter: inspect.Parameter, name: str) -> bool:
    return any(
        # Inside Annotated the first name stands where a default would.
        isinstance(told, OptionInfo) and name in (told.default, *(told.param_decls or ()))
        for told in get_args(parameter.annotation)
    )


def _logged_in() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "local"


def _options_of(group: type) -> list[inspect.Parameter]:
    """Options that several commands share are the fields of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(option.name, kind, default=option.default, annotation=hints[option.name])
        for option in fields(group)
    ]


def perform(session: Session, body: Body, values: dict[str, Any]) -> int:
    """Runs a command's body to its exit code, whatever happens in it."""
    import asyncio

    from treadle.host.acting import Origin, acting

    out = session.out
    try:
        with (
            stdout.reserved(),
            acting(Origin(session.user)),
            Interrupts(lambda: session.stopped) as interrupts,
        ):
            return asyncio.run(_awaited(body(session, **values), interrupts)) or EXIT_OK
    except TreadleError as error:
        return out.error(error)
    except (KeyboardInterrupt, asyncio.CancelledError) as stop:
        out.note(f"\n{session.stopped}")
        return EXIT_INTERRUPTED if isinstance(stop, KeyboardInterrupt) else EXIT_TERMINATED
    except BrokenPipeError:
        # The reader went away (`treadle events … | head`): nothing is wrong, and nobody to tell.
        stdout.abandon()
        return EXIT_OK
    except Exception as error:
        if os.environ.get("TREADLE_DEBUG"):
            raise
        return out.error(unforeseen(error))


async def _awaited(work: Awaitable[int | None], interrupts: Interrupts) -> int | None:
    import asyncio

    task = asyncio.current_task()
    assert task is not None
    # Windows' loops take no signal handlers, and no other thread may set one: SIGTERM then ends the process,
    # which is safe, only without a word.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    interrupts.begin()
    return await work
