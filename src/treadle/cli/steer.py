"""patch, signal, cancel, retry, fork, delete: act on one run, on several, or on all that a filter finds (`bulk`)."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.kernel.errors import RunFailed, TreadleError

from . import completing, inputs
from .bulk import AtOnce, Bulk, Chosen, each
from .command import STEER, App, Commands, Session
from .driving import drive, last_event, moved_since
from .loading import one
from .output import Usage, worst
from .plain_help import NUMBER_MAX
from .reach import EITHER
from .view import outcome

if TYPE_CHECKING:
    from treadle.client.protocol import RunHandle, TreadleClient

commands = Commands(STEER)

CANCEL_WAIT_S = 30.0
# What a command is called with in Python; on the command line the options fill it.
NONE = Chosen()

Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...", help="One or several runs.", show_default=False, autocompletion=completing.runs
    ),
]


Raised = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        metavar="[NODE.]usd|tokens=N",
        help="Raise the budget of an agent run to this; repeatable.",
        show_default=False,
    ),
]


@commands(
    examples=[
        "treadle patch etl-1 approved=true",
        'treadle patch etl-1 --ctx \'{"approved": true, "by": "ann"}\'',
        "treadle patch etl-1 etl-2 approved=true",
        "treadle patch triage-1 --budget usd=5 --budget classify.tokens=20000",
    ],
    reach=EITHER,
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
    budget: Raised = None,
    choice: Chosen = NONE,
    app: App = None,
) -> int:
    """Change a playbook's ctx, or the budget of an agent run, from outside; the run goes on."""
    ids = [item for item in what or [] if "=" not in item]
    data = {**inputs.mapping(ctx_json, "--ctx"), **inputs.pairs([item for item in what or [] if "=" in item])}
    if budget:
        data["budget"] = inputs.budget(budget)
    if not data:
        raise Usage("nothing to patch: give key=value, --ctx JSON, or --budget for an agent run")

    bulk = Bulk(ids, choice)

    async def act(engine: TreadleClient, id: str) -> dict[str, Any]:
        await engine.patch(id, data, by=choice.user)
        return await then(cli, engine, await engine.run(id), bulk, quiet=True)

    async with cli.acts(app, creates=False, help_others=False) as engine:
        return await each(cli, engine, bulk, act)


@commands(
    examples=[
        "treadle signal renewal-7 documents --data '{\"pages\": 3}'",
        "treadle signal renewal-7 documents --key upload-991",
        "treadle signal --reference P-7 documents",
    ],
    reach=EITHER,
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
    choice: Chosen = NONE,
    app: App = None,
) -> int:
    """Send a signal to a run and drive it on to its next wait."""
    if not what:
        raise Usage("name the run and the signal: treadle signal ID NAME")
    *ids, name = what
    payload = inputs.value(data, "--data")

    async def follow(engine: TreadleClient, id: str) -> dict[str, Any]:
        return await then(cli, engine, await engine.run(id), bulk, quiet=True)

    async def act(engine: TreadleClient, id: str) -> dict[str, Any]:
        answer = await engine.signal(
            id, name, payload, key=key, expected_version=expected_version, by=choice.user
        )
        return marked(await follow(engine, id), answer)

    bulk = Bulk(ids, choice)
    if expected_version is None:
        bulk.at_once = AtOnce("signal", {"name": name, "data": payload, "key": key}, follow)
    async with cli.acts(app, creates=False, help_others=False) as engine:
        if reference is None:
            return await each(cli, engine, bulk, act)
        if ids:
            raise Usage("with --reference name only the signal: treadle signal --reference R NAME")
        reached = await engine.signal_reference(reference, name, payload, by=choice.user)
        cli.out.lines = True
        return worst(
            [
                outcome(cli.out, await drive(cli, engine, await engine.run(id), quiet=True), quiet=True)
                for id in reached
            ]
        )


async def then(
    cli: Session,
    engine: TreadleClient,
    run: RunHandle,
    bulk: Bulk,
    *,
    after: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """What comes after a run was told something: it is driven on, unless nobody wants to wait."""
    if bulk.choice.no_wait:
        if not bulk.many:
            await engine.want(run.id)
        return await run.show()
    many = bulk.many
    return await drive(cli, engine, run, after=after, quiet=quiet or many, wanted=many, brief=bulk.brief)


def marked(document: dict[str, Any], answer: object) -> dict[str, Any]:
    """The run document, with `stale` when the engine said that nothing changed."""
    stale = isinstance(answer, dict) and answer.get("stale")
    return {**document, "stale": True} if stale else document


@commands(
    examples=[
        "treadle cancel etl-1",
        "treadle cancel etl-1 --reason 'wrong day'",
        "treadle cancel --status waiting --workflow etl",
    ],
    reach=EITHER,
)
async def cancel(
    cli: Session,
    ids: Ids = None,
    reason: Annotated[str, typer.Option("--reason", help="Recorded with the run.")] = "",
    choice: Chosen = NONE,
) -> int:
    """Cancel a run and its children. A run that has ended stays as it is."""

    async def follow(engine: TreadleClient, id: str) -> dict[str, Any]:
        run = await engine.run(id)
        if choice.no_wait:
            return await run.show()
        # Compensation takes its time; what else its parents and children do is not waited for.
        with suppress(RunFailed, TimeoutError):
            await run.result(timeout=CANCEL_WAIT_S)
        return await run.show()

    async def act(engine: TreadleClient, id: str) -> dict[str, Any]:
        await engine.cancel(id, reason, by=choice.user)
        return await follow(engine, id)

    async with cli.acts(creates=False, help_others=False) as engine:
        bulk = Bulk(ids or (), choice, AtOnce("cancel", {"reason": reason}, follow))
        return await each(cli, engine, bulk, act, exits=False)


def _how(
    from_: str | None,
    input: str | None,
    skip: bool,
    value: str | None,
    fail: str | None,
    budget: list[str] | None,
) -> dict[str, Any]:
    """How a run is moved on, as the options say; those that exclude one another are refused."""
    how: dict[str, Any] = {}
    if from_ is not None:
        how["from"] = from_
    if input is not None:
        how["input"] = inputs.value(input, "--input")
    if skip:
        how["skip"] = inputs.value(value, "--value")
    if fail is not None:
        how["fail"] = fail
    if len(how.keys() & {"input", "skip", "fail"}) > 1:
        raise Usage("--input, --skip and --fail exclude one another; give one of them")
    if budget:
        how["budget"] = inputs.budget(budget)
    if value is not None and not skip:
        raise Usage("--value is the result to skip with; add --skip")
    return how


@commands(
    examples=[
        "treadle retry etl-1",
        "treadle retry etl-1 --from load",
        "treadle retry etl-1 --definition etl-fixed.yaml",
        "treadle retry renewal-7 --skip --value '{\"total\": 0}'",
        "treadle retry --all-failed --workflow etl --since 2h --dry-run",
        "treadle retry --status failed --error TIMEOUT --no-wait --user ann",
        "treadle retry triage-1 --budget usd=5 --budget classify.tokens=20000",
    ],
    reach=EITHER,
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
    budget: Raised = None,
    definition: Annotated[
        str | None,
        typer.Option(
            "--definition",
            metavar="FILE",
            help="Go on from where it stopped under this mended definition.",
            show_default=False,
        ),
    ] = None,
    choice: Chosen = NONE,
    app: App = None,
) -> int:
    """Move a stalled or failed run on: again, from a step, with other input, mended, skipping, or failing it."""
    how = _how(from_, input, skip, value, fail, budget)
    began = datetime.now(UTC)

    async def follow(engine: TreadleClient, id: str, before: int = 0) -> dict[str, Any]:
        return await then(cli, engine, await engine.run(id), bulk, after=before)

    async def act(engine: TreadleClient, id: str) -> dict[str, Any]:
        # Only one run shows what it does; of many there is a bar.
        before = 0 if bulk.many else await last_event(engine, id)
        other = one(engine, definition) if definition is not None else None
        try:
            await engine.retry(id, by=choice.user, definition=other, **how)
        except TreadleError as error:
            # Code that was brought along takes a stalled run up by itself, perhaps before we ask.
            taken_up = error.code in ("NOT_STALLED", "RUN_ENDED") and not how and other is None
            if not taken_up or not await moved_since(engine, id, began):
                raise
        return await follow(engine, id, before)

    bulk = Bulk(ids or (), choice)
    if definition is None:
        asked = {**how, "skip": True, "value": how["skip"]} if "skip" in how else how
        bulk.at_once = AtOnce("retry", asked, follow)
    async with cli.acts(app, creates=False, help_others=False) as engine:
        return await each(cli, engine, bulk, act)


@commands(
    examples=[
        "treadle fork etl-1 --at 12",
        "treadle fork etl-1 --at 12 --definition fixed.yaml --id etl-1-fixed",
    ],
    reach=EITHER,
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
    choice: Chosen = NONE,
    app: App = None,
) -> int:
    """Start a new run from the state another one had at a record, and drive it on."""
    if id is not None and len(ids or ()) != 1:
        raise Usage("--id names one new run; fork one run with it")

    async def act(engine: TreadleClient, source: str) -> dict[str, Any]:
        other = one(engine, definition) if definition is not None else None
        forked = await engine.fork(source, at=at, definition=other, new_id=id, by=choice.user)
        return await then(cli, engine, forked, Bulk((forked.id,), choice))  # nobody has asked for it yet

    async with cli.acts(app, creates=False, help_others=False) as engine:
        return await each(cli, engine, Bulk(ids or (), choice), act)
