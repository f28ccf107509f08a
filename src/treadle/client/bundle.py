"""Definitions of this machine as files for a server: the file itself and the workflows it names beside it.

A server takes text only. What a builder in Python makes is sent as the text it stands for; code (an application, a
durable function) cannot be sent: the server loads it itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from treadle.definitions.children import file_beside, literal_names
from treadle.definitions.files import read_text, split_target
from treadle.kernel.errors import DefinitionError, TreadleError, Unsupported

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.lang.definition import Definition

CODE: Final = "CODE_NOT_TAKEN"


@dataclass(frozen=True, slots=True)
class Bundle:
    # As `POST /definitions` and `POST /runs` take them.
    files: list[dict[str, str]]
    # The name that the user knows of each file that was sent.
    names: dict[str, str]

    def told(self, error: TreadleError) -> TreadleError:
        """What a server says about a file, with the name that it has here."""
        error.where = self.names.get(error.where or "", error.where)
        for problem in error.details.get("problems") or ():
            problem["file"] = self.names.get(problem.get("file"), problem.get("file"))
        return error


def bundled(near: Engine, definitions: Sequence[Definition]) -> Bundle:
    texts: dict[Path, str] = {}
    made: dict[str, str] = {}
    for definition in definitions:
        _add(near, definition, texts, made)
    root = Path(os.path.commonpath([path.parent for path in texts])) if texts else Path()
    sent = {path.relative_to(root).as_posix(): text for path, text in texts.items()}
    known = {split_target(d.file)[0].resolve(): d.file for d in definitions if d.file is not None}
    names = {path.relative_to(root).as_posix(): known.get(path, str(path)) for path in texts}
    return Bundle([{"path": path, "text": text} for path, text in {**sent, **made}.items()], names)


def _add(near: Engine, definition: Definition, texts: dict[Path, str], made: dict[str, str]) -> None:
    file = None if definition.file is None else split_target(definition.file)[0].resolve()
    if definition.code is not None:
        raise Unsupported(
            f"{definition.name} is Python code, which a server does not take: start it with "
            f"`treadle serve --app {definition.file or 'FILE.py'}`, then name the workflow",
            code=CODE,
        )
    if file is None or file.suffix == ".py":
        name = f"made/{definition.digest[7:23]}.yaml"
        if name not in made:
            made[name] = near.dialects[definition.dialect].export(definition, "yaml", canonical=False)
            for child in definition.along():
                _add(near, child, texts, made)
        return
    if file in texts:
        return
    texts[file] = read_text(file)
    if not definition.sound:
        return  # what it names cannot be told
    for name in literal_names(near.dialects[definition.dialect].names(definition.body)):
        path = file_beside(name, str(file))
        if path is not None and path not in texts:
            for child in _loaded(near, path):
                _add(near, child, texts, made)


def _loaded(near: Engine, path: Path) -> list[Definition]:
    try:
        return near.load(str(path))
    except DefinitionError as error:
        if error.code == "UNKNOWN_SHAPE":
            return []  # some other file that happens to have this name
        raise
