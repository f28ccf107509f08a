"""run, resume, show, state, events, journal, trace, graph: start runs and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.draw import FORMATS

from . import completing, finding, inputs
from .command import RUN, App, Commands, Session
from .driving import drive
from .loading import is_file, one, warn
from .output import Usage, worst
from .plain_help import NUMBER_MAX
from .reach import EITHER
from .view import describe, event_line, outcome

if TYPE_CHECKING:
    from treadle.client.protocol import TreadleClient
    from treadle.lang.definition import Dialect
    from treadle.lang.graph import Graph

commands = Commands(RUN)

RunId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The run's id.", show_default=False, autocompletion=completing.runs),
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE|NAME[@VERSION]",
        help="A file, FILE.py:NAME, or a deployed workflow.",
        show_default=False,
    ),
]
Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "-i", metavar="KEY=VALUE", help="One input; JSON if it parses, else text.", show_default=False
    ),
]
Input = Annotated[
    str | None,
    typer.Option("--input", metavar="JSON|@FILE", help="The whole input; -i adds keys.", show_default=False),
]
Id = Annotated[
    str | None, typer.Option("--id", help="The run's id; the same again is the same run.", show_default=False)
]
Key = Annotated[
    str | None, typer.Option("--key", help="Once per key: the run's id is WORKFLOW/KEY.", show_default=False)
]
Reference = Annotated[
    str | None, typer.Option("--reference", help="Business reference, to find it by.", show_default=False)
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="SPEC", help="PROVIDER[:ARG], e.g. scripted:script.json.", show_default=False
    ),
]
Templates = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        metavar="NAME=SOURCE",
        help="A further Source of an agent run: text, ./file or URL.",
        show_default=False,
    ),
]
SecretsFile = Annotated[
    Path | None,
    typer.Option("--secrets", metavar="FILE", help="dotenv, YAML or JSON.", show_default=False),
]
SkillFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--skills",
        metavar="FILE.py[:NAME]",
        help="Skills of Python for an agent run; repeatable.",
        show_default=False,
    ),
]
UntilWait = Annotated[bool, typer.Option("--until-wait", help="Return also when only timers are left.")]
HelpOthers = Annotated[
    bool, typer.Option("--help-others", help="Do the open work of other runs too, meanwhile.")
]
UNFINISHED = ("running", "waiting", "queued", "stalled")


@commands(
    examples=[
        "treadle run flow.yaml",
        "treadle run flow.yaml -i day=2026-11-15 -i retries=3 --id etl-2026-11-15",
        "treadle run triage.yaml --model scripted:script.json --json",
        "treadle run orders.py:renewal --input @start.json --until-wait",
        "treadle run PolicyRenewal@1.2.0 --input '{\"policy_id\": 7}'",
    ],
    reach=EITHER,
    logs=True,
)
async def run(
    cli: Session,
    target: Target,
    pairs: Pairs = None,
    input: Input = None,
    id: Id = None,
    key: Key = None,
    reference: Reference = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            metavar="P",
            help="Of those who wait for a place, -100 to 100: the more urgent first.",
            show_default=False,
        ),
    ] = None,
    model: Model = None,
    template: Templates = None,
    secrets: SecretsFile = None,
    skills: SkillFiles = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Stop where a condition would choose.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Refuse sources that need the network.")] = False,
    until_wait: UntilWait = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print each event as one JSON line.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Only the canonical spelling.")] = False,
    help_others: HelpOthers = False,
    app: App = None,
) -> int:
    """Compile, start, and drive a run to its end with live progress.

    Returns when the run has ended, or when only people or outside signals can move it on (exit 3).
    """
    from treadle.engine import new_id

    data = inputs.merged(inputs.value(input, "--input"), pairs or [], "--input")
    secrets_path = inputs.secrets_file(secrets)
    if cli.server is None and not is_file(target) and not cli.has_store():
        cli.store = "memory:"  # nothing is deployed where there is no store: say so, and make none
    engine = await cli.client(app, help_others=help_others)
    workflow = one(engine, target, strict=strict)
    if not isinstance(workflow, str):
        warn(cli.out, workflow, data, target)
        if dry_run:
            _rehearses(engine.dialects[workflow.dialect])
    if key is not None and id is None:
        id = f"{workflow.partition('@')[0] if isinstance(workflow, str) else workflow.name}/{key}"
    id = id or new_id()
    await engine.want(id)
    cli.on_interrupt = f"If the run had begun, it is safe{cli.goes_on(id)}"
    async with cli.started(engine):
        if dry_run:
            _rehearses(engine.dialects[(await engine.definition(workflow)).dialect])
        started = await engine.start(
            workflow,
            data,
            id=id,
            key=key,
            reference=reference,
            priority=priority,
            model=model,
            secrets=secrets_path,
            offline=offline,
            dry_run=dry_run,
            templates=inputs.sources(template or [], "--template"),
            skills=skills or (),
        )
        document = await drive(cli, engine, started, until_wait=until_wait, stream=stream)
        if stream:
            cli.out.as_json = False
        return outcome(cli.out, document, quiet=stream)


def _rehearses(dialect: Dialect) -> None:
    """Better no run than a rehearsal that does the work."""
    if not dialect.rehearses:
        raise Usage(
            f"--dry-run is for agent workflows; a {dialect.name} would do its work. Nothing was started"
        )


@commands(
    examples=["treadle resume", "treadle resume etl-2026-11-15", "treadle resume --app shop.py:app --json"],
    reach=EITHER,
    logs=True,
)
async def resume(
    cli: Session,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completing.runs,
            metavar="[ID]...",
            help="Runs; none: all that are unfinished.",
            show_default=False,
        ),
    ] = None,
    until_wait: UntilWait = False,
    skills: SkillFiles = None,
    help_others: HelpOthers = False,
    app: App = None,
) -> int:
    """Drive unfinished runs on. With ids only those, and the runs that they called."""
    helps = help_others or not ids
    if cli.server is not None and skills:
        raise Usage("--skills: a server has its own; give them to `treadle serve`")
    async with cli.acts(app, creates=False, skills=skills or (), help_others=helps) as engine:
        if ids and len(ids) == 1:
            return outcome(
                cli.out, await drive(cli, engine, await finding.run_of(engine, ids[0]), until_wait=until_wait)
            )
        found = ids or await finding.ids_of(engine, status=UNFINISHED)
        cli.out.lines = True
        cli.on_interrupt = "The runs are safe and go on with: treadle resume"
        runs = [await finding.run_of(engine, id) for id in found]
        await engine.want(*(run.id for run in runs))
        codes = []
        for started in runs:
            codes.append(
                outcome(cli.out, await drive(cli, engine, started, until_wait=until_wait), quiet=True)
            )
        if not runs:
            cli.out.note("nothing to do: no run is unfinished")
        return worst(codes)


@commands(
    examples=[
        "treadle show etl-2026-11-15",
        "treadle show etl-2026-11-15 --step load",
        "treadle show etl-2026-11-15 --engine --json",
    ],
    reach=EITHER,
)
async def show(
    cli: Session,
    id: RunId,
    engine_state: Annotated[
        bool,
        typer.Option("--engine", help="Add the engine's own state: waits, frames, timers, resume pointer."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Long lists and texts too, uncut.")] = False,
    step: Annotated[
        str | None,
        typer.Option(
            "--step",
            metavar="NAME",
            help="One step: its input, output, attempts and logs.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show one run: status, state, result, error, what it waits for."""
    async with cli.asks(code=True) as engine:
        found = await finding.run_of(engine, id)
        if step is not None:
            from .logs import show_step

            await show_step(cli.out, found, step, full=full)
            return
        document = await found.show(engine=engine_state)
    if cli.out.as_json:
        cli.out.document(document)
    else:
        describe(cli.out, document, full=full)


@commands(examples=["treadle state etl-1", "treadle state etl-1 --at 12 --json"], reach=EITHER)
async def state(
    cli: Session,
    id: RunId,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="SEQ",
            min=1,
            max=NUMBER_MAX,
            help="As it was after this record.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a run's state, now or at any record of its journal (time travel)."""
    async with cli.asks(code=True) as engine:
        document = await (await finding.run_of(engine, id)).show(at=at)
    if cli.out.as_json:
        cli.out.document(document["state"])
    else:
        cli.out.value(document["state"])


@commands(
    examples=[
        "treadle events etl-1",
        "treadle events etl-1 --follow",
        "treadle events etl-1 --json | jq .type",
    ],
    reach=EITHER,
)
async def events(
    cli: Session,
    id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    after: Annotated[
        int,
        typer.Option(
            "--after",
            metavar="SEQ",
            min=0,
            max=NUMBER_MAX,
            help="Only events after this one.",
        ),
    ] = 0,
) -> None:
    """List a run's events in order; with --json one per line."""
    cli.on_interrupt = ""
    async with cli.asks() as engine:
        found = await finding.run_of(engine, id)
        console = cli.out.console
        async for event in found.events(after=after, follow=follow):
            if cli.out.as_json:
                cli.out.line(event)
            else:
                console.print(event_line(event), soft_wrap=True)


@commands(examples=["treadle journal etl-1", "treadle journal etl-1 --json | jq '.[].kind'"], reach=EITHER)
async def journal(cli: Session, id: RunId) -> None:
    """List a run's journal: the records that are its truth."""
    async with cli.asks() as engine:
        records = await (await finding.run_of(engine, id)).journal()
    columns = {
        "seq": "SEQ",
        "at": "AT",
        "kind": "KIND",
        "status": "STATUS",
        "opened": "OPENED",
        "cancelled": "CANCELLED",
    }
    if not cli.out.as_json:
        records = [
            {
                **record,
                "opened": [
                    f"{o.get('kind')} {(o.get('params') or {}).get('name') or o.get('ref') or ''}".strip()
                    for o in record.get("opened") or ()
                ],
            }
            for record in records
        ]
    cli.out.rows(records, columns, empty="the journal is empty")


@commands(
    examples=[
        "treadle graph flow.yaml -o flow.svg",
        "treadle graph etl-2026-11-15 --format png -o run.png",
        "treadle graph flow.yaml --format mermaid",
    ],
    reach=EITHER,
)
async def graph(
    cli: Session,
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|ID|NAME", help="A file, a run, or a deployed workflow.", show_default=False
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            autocompletion=completing.one_of(*FORMATS),
            help="Default: by the file's suffix, else svg.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write here instead of standard output.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Draw a definition, or a run with its tokens and states."""
    from dataclasses import asdict

    from treadle.draw.formats import render

    wanted = format or {".png": "png", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid"}.get(
        output.suffix.lower() if output else "", "svg"
    )
    if wanted not in FORMATS:
        raise Usage(f"there is no picture format {wanted!r}; choose one of {', '.join(FORMATS)}")
    async with cli.asks(code=True) as engine:
        picture = await _picture(engine, target)
    if cli.out.as_json:
        cli.out.document(asdict(picture))
        return
    drawn = render(picture, wanted)
    if output is None:
        cli.out.raw(drawn)
        return
    try:
        output.write_bytes(drawn if isinstance(drawn, bytes) else drawn.encode())
    except OSError as error:
        raise Usage(f"cannot write {output}: {error.strerror}") from error
    cli.out.note(f"wrote {output}")


async def _picture(engine: TreadleClient, target: str) -> Graph:
    """The graph of a run, a workflow, or of all workflows of a reactive application at once."""
    from treadle.kernel.roles import CellMachine
    from treadle.lang.graph import Graph

    found = engine.load(target) if is_file(target) and not Path(target).is_dir() else []
    if len(found) < 2 or not isinstance(engine.dialects[found[0].dialect].machine, CellMachine):
        return await engine.graph(one(engine, target))
    parts = [await engine.graph(definition) for definition in found]
    whole = Graph(parts[0].title)
    for part in parts[1:]:
        whole.nodes += [node for node in part.nodes if node not in whole.nodes]
        whole.edges += [edge for edge in part.edges if edge not in whole.edges]
    return whole
