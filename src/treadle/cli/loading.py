"""What a FILE, FILE.py:NAME, folder, NAME or NAME@VERSION on the command line means.

Everything that compiles is imported when it is needed: `treadle --help` needs none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.kernel.errors import TreadleError

from .output import Output, Usage

if TYPE_CHECKING:
    from treadle.client.protocol import TreadleClient
    from treadle.engine import Engine
    from treadle.lang.definition import Definition


def is_file(target: str) -> bool:
    """Whether a target names a file (or FILE.py:NAME); otherwise it names a deployed workflow."""
    from treadle.definitions.files import SUFFIXES, split_target

    path, _ = split_target(target)
    return path.exists() or path.suffix.lower() in (*SUFFIXES, ".py")


def one(engine: TreadleClient, target: str, *, strict: bool = False) -> Definition | str:
    """The one definition that a target means: compiled from a file, or a deployed name."""
    from treadle.definitions.files import split_target
    from treadle.kernel.roles import CellMachine

    if not is_file(target):
        return target
    path, _ = split_target(target)
    if path.is_dir():
        raise Usage(f"{target} is a folder; name one file in it, or deploy it with: treadle deploy {target}")
    found = engine.load(target, strict=strict)
    if found and isinstance(engine.dialects[found[0].dialect].machine, CellMachine):
        raise Usage(
            f"{target} is a reactive application: events start it. Try: treadle publish EVENT --app {target}"
        )
    if len(found) != 1:
        names = ", ".join(definition.name for definition in found) or "none"
        raise Usage(f"{target} holds {len(found)} workflows ({names}); choose one with {path}:NAME")
    return found[0]


# Warnings about what this very run will not do as it was meant; the others are for `treadle check`.
_ABOUT_A_RUN = frozenset(
    (
        "name_unknown",
        "name_out_of_scope",
        "workload_key_unknown",
        "field_unknown",
        "field_misplaced",
        "retry_misplaced",
        "code_template",
        "kind_unknown",
    )
)


def warn(out: Output, definition: Definition, given: Any, target: str) -> None:
    """Says of a file that is about to run what its author should know. What the input brings is known."""
    brought = [repr(key) for key in given] if isinstance(given, dict) else []
    shown = [
        problem
        for problem in definition.warnings
        if problem.code in _ABOUT_A_RUN and not any(name in problem.message for name in brought)
    ]
    if shown and not out.as_json:
        from msgspec.structs import asdict

        out.problems([asdict(problem) for problem in shown])
        others = len(definition.warnings) - len(shown)
        if others > 0:
            out.note(f"[dim]{others} more: treadle check {target}[/]")


def application(target: str) -> Any:
    """The reactive application that FILE.py:ATTR names (or the only one in FILE.py)."""
    from treadle.definitions.files import load_python, split_target
    from treadle.dialects.reactive.app import App

    path, name = split_target(target)
    _existing(path, target)
    if path.suffix != ".py":
        raise Usage(f"{target} is no reactive application; those are Python: name one as FILE.py:ATTR")
    found = [item for item in load_python(path, name) if isinstance(item, App)]
    if len(found) != 1:
        names = ", ".join(app.name for app in found) or "none"
        raise Usage(f"{target} holds {len(found)} applications ({names}); name one as FILE.py:ATTR")
    return found[0]


def attach(engine: Engine, app: str) -> None:
    """Makes the code of a reactive application known to an engine, and its file to the store."""
    from treadle.definitions.files import split_target

    path, _ = split_target(app)
    _existing(path, app)
    engine.deploy(app)


def attach_known(engine: Engine, out: Output) -> None:
    """Loads the code of the definitions that the store has seen, from the files they came from."""
    from rich.markup import escape

    for file in _files_with_code(engine):
        try:
            engine.load(file)
        except TreadleError as error:
            out.note(f"[yellow]the application {escape(file)} cannot be loaded:[/] {escape(error.message)}")


def _files_with_code(engine: Engine) -> list[str]:
    """Asked before the engine starts: what is open in the store is handed out as soon as it does."""
    from treadle.store.open import Place

    place = Place.of(engine.store_url)
    if not place.shared or not place.has_store():
        return []
    with closing(place.reader()) as reads:
        origins = reads.origins()
    dialects = engine.dialects
    return [file for dialect, file in origins if dialect in dialects and dialects[dialect].has_code]


def add_skills(engine: Engine, files: Sequence[str]) -> None:
    """Registers the skills of FILE.py[:NAME] with an engine that has not been started."""
    from treadle.performers.agent.skill_files import skills_in

    for target in files:
        for skill in skills_in(target):
            engine.register(skill)


def _existing(path: Path, target: str) -> None:
    if not path.is_file():
        raise Usage(f"{target}: there is no file {path}")
