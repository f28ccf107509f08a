"""patch, signal, cancel, retry, fork: act on one run, on several, or on all that a filter finds.

One run: its document, and its exit code. Several: one line each, and the exit code of the worst.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.kernel.errors import RunFailed, TreadleError

from . import completing, inputs
from .command import NUMBER_MAX, STEER, App, Commands, Session
from .driving import drive
from .loading import one
from .output import EXIT_OK, Usage, worst
from .runs import ids_of
from .view import outcome

if TYPE_CHECKING:
    from treadle.engine import Engine

commands = Commands(STEER)

CANCEL_WAIT_S = 30.0

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...", help="One or several runs.", show_default=False, autocompletion=completing.runs
    ),
]
AllFailed = Annotated[bool, typer.Option("--all-failed", help="All failed and stalled runs.")]
AllStatus = Annotated[
    list[str] | None,
    typer.Option("--status", help="All runs with this status; repeatable.", show_default=False),
]
OfWorkflow = Annotated[
    str | None,
    typer.Option("--workflow", help="With a filter: only runs of this workflow.", show_default=False),
]
By = Annotated[str | None, typer.Option("--user", help="Who does this; recorded.", show_default=False)]


@dataclass(slots=True)
class Bulk:
    """The runs that a command is about."""

    ids: Sequence[str]
    all_failed: bool = False
    status: Sequence[str] = ()
    workflow: str | None = None

    @property
    def filtered(self) -> bool:
        return self.all_failed or bool(self.status) or self.workflow is not None

    async def find(self, engine: Engine) -> list[str]:
        if self.ids and self.filtered:
            raise Usage("name runs, or choose them by a filter, not both")
        if self.ids:
            return list(dict.fromkeys(self.ids))
        if not self.filtered:
            raise Usage("name a run, or choose several with --all-failed, --status or --workflow")
        status = [*self.status, *(("failed", "stalled") if self.all_failed else ())]
        return await ids_of(engine, status=status, workflow=self.workflow)


Act = Callable[["Engine", str], Awaitable[dict[str, Any]]]


async def each(cli: Session, engine: Engine, bulk: Bulk, act: Act, *, exits: bool = True) -> int:
    """Does `act` to each run and reports; a run that refuses does not stop the others."""
    ids = await bulk.find(engine)
    if len(ids) == 1 and not bulk.filtered:
        code = outcome(cli.out, await act(engine, ids[0]))
        return code if exits else EXIT_OK
    cli.out.lines = True
    codes = []
    for id in ids:
        try:
            code = outcome(cli.out, await act(engine, id), quiet=True)
            codes.append(code if exits else EXIT_OK)
        except TreadleError as error:
            error.where = error.where or id
            codes.append(cli.out.error(error))
    if not ids:
        cli.out.note("no run matches")
    return worst(codes)


@commands(
    examples=[
        "treadle patch etl-1 approved=true",
        'treadle patch etl-1 --ctx \'{"approved": true, "by": "ann"}\'',
        "treadle patch etl-1 etl-2 approved=true",
    ]
)
async def patch(
    cli: Session,
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID... KEY=VALUE...", help="Runs, then keys to set.", show_default=False),
    ] = None,
    ctx_json: Annotated[
        str | None,
        typer.Option("--ctx", metavar="JSON|@FILE", help="Keys to set, as an object.", show_default=False),
    ] = None,
    all_failed: AllFailed = False,
    status: AllStatus = None,
    workflow: OfWorkflow = None,
    app: App = None,
) -> int:
    """Change a playbook's ctx from outside; gates are looked at again and the run goes on."""
    ids = [item for item in what or [] if "=" not in item]
    data = {**inputs.mapping(ctx_json, "--ctx"), **inputs.pairs([item for item in what or [] if "=" in item])}
    if not data:
        raise Usage("nothing to patch: give key=value, or --ctx JSON")

    async def act(engine: Engine, id: str) -> dict[str, Any]:
        await engine.patch(id, data)
        return await drive(cli, engine, await engine.run(id), quiet=True)

    async with cli.engine(app, creates=False) as engine:
        return await each(cli, engine, Bulk(ids, all_failed, status or (), workflow), act)


@commands(
    examples=[
        "treadle signal renewal-7 documents --data '{\"pages\": 3}'",
        "treadle signal renewal-7 documents --key upload-991",
        "treadle signal --reference P-7 documents",
    ]
)
async def signal(
    cli: Session,
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID... NAME", help="Runs, then the signal's name.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="JSON|@FILE", help="What the signal carries.", show_default=False),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference", help="Every run with this reference that waits for it.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The same key again is a duplicate.", show_default=False)
    ] = None,
    expected_version: Annotated[
        int | None,
        typer.Option(
            "--expected-version",
            metavar="N",
            min=0,
            max=NUMBER_MAX,
            help="Refuse if version_no is another.",
            show_default=False,
        ),
    ] = None,
    all_failed: AllFailed = False,
    status: AllStatus = None,
    workflow: OfWorkflow = None,
    app: App = None,
) -> int:
    """Send a signal to a run and drive it on to its next wait."""
    if not what:
        raise Usage("name the run and the signal: treadle signal ID NAME")
    *ids, name = what
    payload = inputs.value(data, "--data")

    async def act(engine: Engine, id: str) -> dict[str, Any]:
        answer = await engine.signal(id, name, payload, key=key, expected_version=expected_version)
        return marked(await drive(cli, engine, await engine.run(id), quiet=True), answer)

    async with cli.engine(app, creates=False) as engine:
        if reference is None:
            return await each(cli, engine, Bulk(ids, all_failed, status or (), workflow), act)
        if ids:
            raise Usage("with --reference name only the signal: treadle signal --reference R NAME")
        reached = await engine.signal_reference(reference, name, payload)
        cli.out.lines = True
        return worst(
            [
                outcome(cli.out, await drive(cli, engine, await engine.run(id), quiet=True), quiet=True)
                for id in reached
            ]
        )


def marked(document: dict[str, Any], answer: object) -> dict[str, Any]:
    """The run document, with `stale` when the engine said that nothing changed."""
    stale = isinstance(answer, dict) and answer.get("stale")
    return {**document, "stale": True} if stale else document


@commands(
    examples=[
        "treadle cancel etl-1",
        "treadle cancel etl-1 --reason 'wrong day'",
        "treadle cancel --status waiting --workflow etl",
    ]
)
async def cancel(
    cli: Session,
    ids: Ids = None,
    reason: Annotated[str, typer.Option("--reason", help="Recorded with the run.")] = "",
    all_failed: AllFailed = False,
    status: AllStatus = None,
    workflow: OfWorkflow = None,
) -> int:
    """Cancel a run and its children. A run that has ended stays as it is."""

    async def act(engine: Engine, id: str) -> dict[str, Any]:
        await engine.cancel(id, reason)
        run = await engine.run(id)
        # Compensation takes its time; what else its parents and children do is not waited for.
        with suppress(RunFailed, TimeoutError):
            await run.result(timeout=CANCEL_WAIT_S)
        return await run.show()

    async with cli.engine(creates=False) as engine:
        bulk = Bulk(ids or (), all_failed, status or (), workflow)
        return await each(cli, engine, bulk, act, exits=False)


@commands(
    examples=[
        "treadle retry etl-1",
        "treadle retry etl-1 --from load",
        "treadle retry renewal-7 --skip --value '{\"total\": 0}'",
        "treadle retry --all-failed --workflow etl",
        "treadle retry triage-1 --budget usd=5 --budget classify.tokens=20000",
    ]
)
async def retry(
    cli: Session,
    ids: Ids = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="STEP", help="Go back to this step.", show_default=False)
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="JSON|@FILE", help="Replace the failed call's payload.", show_default=False
        ),
    ] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Go on as if it had succeeded.")] = False,
    value: Annotated[
        str | None,
        typer.Option(
            "--value", metavar="JSON|@FILE", help="With --skip: the result to go on with.", show_default=False
        ),
    ] = None,
    fail: Annotated[
        str | None,
        typer.Option(
            "--fail", metavar="TEXT", help="Give up: the run fails with this text.", show_default=False
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            "--budget",
            metavar="[NODE.]usd|tokens=N",
            help="Raise the budget of an agent run to this; repeatable.",
            show_default=False,
        ),
    ] = None,
    all_failed: AllFailed = False,
    status: AllStatus = None,
    workflow: OfWorkflow = None,
    app: App = None,
) -> int:
    """Move a stalled or failed run on: again, from a step, with other input, skipping, or failing it."""
    how: dict[str, Any] = {}
    if from_ is not None:
        how["from"] = from_
    if input is not None:
        how["input"] = inputs.value(input, "--input")
    if skip:
        how["skip"] = inputs.value(value, "--value")
    if fail is not None:
        how["fail"] = fail
    if len(how) > 1:
        raise Usage("--from, --input, --skip and --fail exclude one another; give one of them")
    if budget:
        how["budget"] = inputs.budget(budget)
    if value is not None and not skip:
        raise Usage("--value is the result to skip with; add --skip")

    async def act(engine: Engine, id: str) -> dict[str, Any]:
        await engine.retry(id, **how)
        return await drive(cli, engine, await engine.run(id))

    async with cli.engine(app, creates=False) as engine:
        return await each(cli, engine, Bulk(ids or (), all_failed, status or (), workflow), act)


@commands(
    examples=[
        "treadle fork etl-1 --at 12",
        "treadle fork etl-1 --at 12 --definition fixed.yaml --id etl-1-fixed",
    ]
)
async def fork(
    cli: Session,
    ids: Ids = None,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="SEQ",
            min=1,
            max=NUMBER_MAX,
            help="The record to go on from; default the last.",
            show_default=False,
        ),
    ] = None,
    definition: Annotated[
        str | None,
        typer.Option(
            "--definition", metavar="FILE", help="Go on with another definition.", show_default=False
        ),
    ] = None,
    id: Annotated[str | None, typer.Option("--id", help="The new run's id.", show_default=False)] = None,
    all_failed: AllFailed = False,
    status: AllStatus = None,
    workflow: OfWorkflow = None,
    app: App = None,
) -> int:
    """Start a new run from the state another one had at a record, and drive it on."""
    if id is not None and len(ids or ()) != 1:
        raise Usage("--id names one new run; fork one run with it")

    async def act(engine: Engine, source: str) -> dict[str, Any]:
        other = one(engine, definition) if definition is not None else None
        return await drive(cli, engine, await engine.fork(source, at=at, definition=other, new_id=id))

    async with cli.engine(app, creates=False) as engine:
        return await each(cli, engine, Bulk(ids or (), all_failed, status or (), workflow), act)
