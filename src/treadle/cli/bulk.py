"""One run, several, or all that a filter finds: how commands that steer runs go about many of them.

One run: its document, and its exit code. Several: one line of JSON each in the order they were asked for, for
people what did not go well and a summary, and the exit code of the worst. Many go at once, as many as the engine
takes. A command that is stopped in between can be given again: runs that moved on are no longer what the filter
finds. A server is asked once for all of them, and goes on by itself (`POST /bulk`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from treadle.kernel.errors import TreadleError

from . import completing, finding
from .command import Session
from .moments import instant_ns
from .output import EXIT_OK, Usage, exit_code, styled, worst
from .view import outcome

if TYPE_CHECKING:
    from treadle.client.protocol import Row, TreadleClient

# As many runs are followed at once; the engine works on more.
AT_ONCE: Final = 256
# So many lines for people; the summary counts the rest.
TOLD_MAX: Final = 20

Act = Callable[["TreadleClient", str], Awaitable[dict[str, Any]]]


@dataclass(slots=True, kw_only=True)
class Chosen:
    """Which runs, and how to go about them: options of every command that steers runs."""

    all_failed: Annotated[bool, typer.Option("--all-failed", help="All failed and stalled runs.")] = False
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="All runs with this status; repeatable.",
            autocompletion=completing.one_of(*completing.STATUSES),
            show_default=False,
        ),
    ] = None
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", metavar="NAME", help="Only runs of this workflow.", show_default=False),
    ] = None
    error: Annotated[
        str | None,
        typer.Option(
            "--error",
            metavar="CODE",
            help="Only runs whose error has this code or class.",
            show_default=False,
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="WHEN", help="Only runs started since (2h, an instant).", show_default=False
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="WHEN", help="Only runs started until then.", show_default=False),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which runs it would be.")] = False
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for what the runs do next.")] = False
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="USER", help="Who does this; recorded.", show_default=False),
    ] = None

    @property
    def filtered(self) -> bool:
        given = (self.status, self.workflow, self.error, self.since, self.until)
        return self.all_failed or any(option is not None for option in given)


@dataclass(slots=True)
class AtOnce:
    """What a server is asked to do to all of them: an action of `POST /bulk`, and what comes after it for each."""

    action: str
    arguments: dict[str, Any]
    follow: Act


@dataclass(slots=True)
class Bulk:
    """The runs that a command is about."""

    ids: Sequence[str]
    choice: Chosen = field(default_factory=Chosen)
    at_once: AtOnce | None = None
    # Whether it is about several; known once they are found.
    many: bool = False
    # Whether they are so many that only a summary tells of those that go well.
    brief: bool = False

    async def find(self, engine: TreadleClient) -> list[str]:
        choice = self.choice
        if self.ids and choice.filtered:
            raise Usage("name runs, or choose them by a filter, not both")
        if self.ids:
            return list(dict.fromkeys(self.ids))
        if not choice.filtered:
            raise Usage(
                "name a run, or choose several with --all-failed, --status, --workflow, --error or --since"
            )

        def wanted(row: Row) -> bool:
            error = row["error"] or {}
            return choice.error is None or choice.error in (error.get("code"), error.get("class"))

        status = [*(choice.status or ()), *(("failed", "stalled") if choice.all_failed else ())]
        return await finding.ids_of(
            engine,
            status=status,
            workflow=choice.workflow,
            since_ns=instant_ns(choice.since, "--since"),
            until_ns=instant_ns(choice.until, "--until"),
            wanted=wanted,
        )


async def each(cli: Session, engine: TreadleClient, bulk: Bulk, act: Act, *, exits: bool = True) -> int:
    """Does `act` to each run and reports; a run that refuses does not stop the others."""
    ids = await bulk.find(engine)
    bulk.many = len(ids) != 1 or bulk.choice.filtered
    bulk.brief = len(ids) > TOLD_MAX and not cli.out.as_json
    if bulk.choice.dry_run:
        return await _rehearsed(cli, engine, ids)
    if not bulk.many:
        code = outcome(cli.out, await act(engine, await finding.run_id(engine, ids[0])))
        return code if exits else EXIT_OK
    if not ids:
        cli.out.note("no run matches")
        return EXIT_OK
    if not bulk.choice.filtered:
        ids = list(dict.fromkeys([await _meant(engine, id) for id in ids]))
    if cli.server is not None and bulk.at_once is not None:
        act = await _asked_at_once(cli, engine, ids, bulk.at_once)
    else:
        await engine.want(*ids)
    return await _all(cli, engine, ids, act, exits=exits)


async def _meant(engine: TreadleClient, id: str) -> str:
    """The run that an id means; one that means none is refused when its turn comes, and stops no other."""
    try:
        return await finding.run_id(engine, id)
    except TreadleError:
        return id


async def _asked_at_once(cli: Session, engine: TreadleClient, ids: list[str], asked: AtOnce) -> Act:
    """Has a server do it; what is left is to look what became of each."""
    from treadle.client.http import HttpClient

    assert isinstance(engine, HttpClient)
    cli.on_interrupt = "The server goes on with it."
    with Bar(cli, len(ids), asked.action) as bar:
        failed = await engine.bulk(asked.action, ids, asked.arguments, bar.at)

    async def look(engine: TreadleClient, id: str) -> dict[str, Any]:
        if id in failed:
            raise failed[id]
        return await asked.follow(engine, id)

    return look


async def _rehearsed(cli: Session, engine: TreadleClient, ids: list[str]) -> int:
    """What a command would be about; nothing is changed."""
    from rich.markup import escape

    cli.out.lines = True
    for place, id in enumerate(ids):
        document = await (await finding.run_of(engine, id)).show()
        if cli.out.as_json:
            cli.out.document(document)
        elif place < TOLD_MAX:
            status = styled("status", document["status"])
            cli.out.note(f"{status} {escape(document['workflow'])} [dim]{escape(id)}[/]")
    cli.out.note(f"{len(ids)} run{'s' * (len(ids) != 1)}; nothing was changed")
    return EXIT_OK


async def _all(cli: Session, engine: TreadleClient, ids: list[str], act: Act, *, exits: bool) -> int:
    import asyncio

    cli.out.lines = True
    room = asyncio.Semaphore(AT_ONCE)
    told = _Told(cli, len(ids))

    async def one(id: str) -> dict[str, Any] | TreadleError:
        async with room:
            try:
                found: dict[str, Any] | TreadleError = await act(engine, id)
            except TreadleError as error:
                error.where = error.where or id
                found = error
        told.done(found)
        return found

    cli.on_interrupt = (
        "The runs are safe: the same command goes on with the rest, treadle resume with those begun."
    )
    with told:
        tasks = [asyncio.ensure_future(one(id)) for id in ids]
        try:
            codes = [told.tell(await task, exits=exits) for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
    told.summary()
    return worst(codes)


class Bar:
    """How far a command has come: a bar on a terminal, else a line for each tenth."""

    def __init__(self, cli: Session, total: int, what: str = "") -> None:
        self._cli, self._total, self._what = cli, total, what
        self._tenth = 0
        self._shown: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._cli.out.people.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._shown = Progress(*columns, console=self._cli.out.people, transient=True)
            self._task = self._shown.add_task(self._what, total=self._total)
            self._shown.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def at(self, done: int) -> None:
        if self._shown is not None:
            self._shown.update(self._task, completed=done)
        elif self._total > TOLD_MAX and (tenth := 10 * done // self._total) > self._tenth:
            self._tenth = tenth
            self._cli.out.note(f"[dim]{done} of {self._total}[/]")


class _Told(Bar):
    """How far a command has come with many runs, and what came of them."""

    def __init__(self, cli: Session, total: int) -> None:
        super().__init__(cli, total)
        self._finished = 0
        self._lines = 0
        self._counts: Counter[str] = Counter()

    def done(self, found: dict[str, Any] | TreadleError) -> None:
        self._finished += 1
        self._counts["refused" if isinstance(found, TreadleError) else found["status"]] += 1
        self.at(self._finished)

    def tell(self, found: dict[str, Any] | TreadleError, *, exits: bool) -> int:
        """One run's line, for machines always, for people as long as there are few; gives its exit code."""
        out = self._cli.out
        self._lines += 1
        if isinstance(found, TreadleError):
            return out.error(found)
        code = exit_code(found)
        if out.as_json or self._total <= TOLD_MAX or (code != EXIT_OK and self._lines <= TOLD_MAX):
            outcome(out, found, quiet=True)
        return code if exits else EXIT_OK

    def summary(self) -> None:
        counts = ", ".join(
            f"{count} {styled('status', status)}" for status, count in self._counts.most_common()
        )
        self._cli.out.note(f"[bold]{self._total} run{'s' * (self._total != 1)}:[/] {counts}")
