"""check, deploy, definitions, export: definitions in files and in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from treadle.kernel.errors import DefinitionError, TreadleError

from .command import DEFINE, Actor, Commands, Session
from .output import EXIT_OK, EXIT_USAGE, Usage
from .reach import EITHER, NEITHER
from .validation import Validation, checked

commands = Commands(DEFINE)

Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files, FILE.py:NAME, or folders.", show_default=False)
]
Strict = Annotated[bool, typer.Option("--strict", help="Only the canonical spelling.")]


@commands(
    examples=["treadle check flow.yaml", "treadle check flows/ --strict", "treadle check flow.yaml --json"],
    reach=NEITHER,
)
async def check(cli: Session, files: Files, strict: Strict = False) -> int:
    """Compile and analyse; name each problem with file, line, code, and what to do."""
    from msgspec.structs import asdict

    from treadle.engine import Engine
    from treadle.lang.problems import Problem

    engine = Engine("memory:")
    problems: list[dict[str, Any]] = []
    for file in files:
        _not_empty(file)
        try:
            problems += [asdict(problem) for problem in engine.check(file, strict=strict)]
        except DefinitionError as error:  # a Python file: its builder refused, or it cannot be imported
            whole = Problem("error", error.code, error.message, file=file, path=error.where or "")
            problems += error.details.get("problems") or [asdict(whole)]
    ok = not any(problem["severity"] == "error" for problem in problems)
    if cli.out.as_json:
        cli.out.document({"ok": ok, "problems": problems})
    else:
        cli.out.problems(problems)
        errors = sum(problem["severity"] == "error" for problem in problems)
        warnings = len(problems) - errors
        verdict = "[green]ok[/]" if ok else f"[red]{_count(errors, 'error')}[/]"
        cli.out.note(verdict + (f", {_count(warnings, 'warning')}" if warnings else ""))
    return EXIT_OK if ok else EXIT_USAGE


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _not_empty(target: str) -> None:
    """A folder without definitions is a mistake, not a success."""
    from treadle.definitions.files import SUFFIXES, files_in

    if Path(target).is_dir() and next(files_in(target), None) is None:
        raise Usage(f"the folder {target} holds no definitions ({', '.join(SUFFIXES)})")


@commands(
    examples=[
        "treadle deploy flow.yaml",
        "treadle deploy flows/ orders.py:renewal",
        "treadle deploy flow.yaml --validation warn",
        "treadle deploy flows/ --user ann",
    ],
    reach=EITHER,
)
async def deploy(
    cli: Session,
    files: Files,
    strict: Strict = False,
    validation: Validation = None,
    user: Actor = None,
) -> None:
    """Put definitions into the store under name@version."""
    from msgspec.structs import asdict

    from treadle.definitions.library import together

    mode = checked(validation) or "strict"
    for file in files:
        _not_empty(file)
    digests: set[str] = set()
    # All are compiled before the store is opened: one bad file, and nothing is written.
    engine = await cli.client(work=False, validation=mode)
    refused: list[TreadleError] = []
    for file in files:
        try:
            found = engine.deploy(file, strict=strict, by=user)
        except DefinitionError as error:
            refused.append(error)
            continue
        digests.update(definition.digest for definition in found)
        if not cli.out.as_json:
            cli.out.problems([asdict(problem) for definition in found for problem in definition.warnings])
    if refused:
        raise together(refused)
    async with engine:
        rows = [row for row in await engine.definitions() if row["digest"] in digests]
    cli.out.rows(rows, _COLUMNS, empty="nothing to deploy")


_COLUMNS = {
    "name": "NAME",
    "version": "VERSION",
    "dialect": "DIALECT",
    "status": "STATUS",
    "digest": "DIGEST",
    "reasons": "REASONS",
}


@commands(examples=["treadle definitions", "treadle definitions --json"], reach=EITHER)
async def definitions(cli: Session) -> None:
    """List the deployed definitions."""
    async with cli.asks() as engine:
        rows = await engine.definitions()
    cli.out.rows(rows, _COLUMNS, empty="nothing is deployed; deploy with: treadle deploy FILE")


@commands(
    examples=["treadle schema > playbook.schema.json", "treadle schema --dialect playbook"], reach=NEITHER
)
async def schema(
    cli: Session,
    dialect: Annotated[
        str | None, typer.Option("--dialect", metavar="NAME", help="Whose files it describes.")
    ] = None,
) -> None:
    """Print the JSON Schema of a dialect's files, for editors that check and complete YAML."""
    from treadle.engine import Engine

    engine = Engine("memory:")
    found = {name: known.json_schema() for name, known in engine.dialects.items()}
    described = found.get(dialect) if dialect else next(filter(None, found.values()), None)
    if described is None:
        names = ", ".join(name for name, schema in found.items() if schema is not None)
        raise Usage(f"there is no schema for {dialect!r}; there is one for {names}")
    cli.out.document(described)


@commands(
    examples=[
        "treadle export PolicyRenewal",
        "treadle export PolicyRenewal@1.2.0 --format python -o renewal.py",
        "treadle export flow.yaml --canonical",
    ],
    reach=EITHER,
)
async def export(
    cli: Session,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME[@VERSION]|FILE", help="A deployed definition, or a file.", show_default=False
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option("--format", metavar="yaml|json|python", help="Default yaml.", show_default=False),
    ] = None,
    canonical: Annotated[
        bool, typer.Option("--canonical", help="The normalised form that is digested.")
    ] = False,
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
    """Write a definition out again, as YAML, JSON or Python."""
    from treadle.lang.definition import Definition

    from .loading import one

    wanted = format or ("json" if cli.out.as_json else "yaml")
    async with cli.asks() as engine:
        target = one(engine, name)
        if isinstance(target, str):
            row = await engine.definition(target)
            target = Definition(row.dialect, row.name, row.version, row.body, row.path, row.file)
        text = engine.dialects[target.dialect].export(target, wanted, canonical=canonical)
    if output is None:
        cli.out.raw(text)
        return
    try:
        output.write_text(text, "utf-8")
    except OSError as error:
        raise Usage(f"cannot write {output}: {error.strerror}") from error
    cli.out.note(f"wrote {output}")
