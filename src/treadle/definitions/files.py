"""From a file, a folder or a Python object to definitions; the dialect is found by shape."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from msgspec.structs import asdict

from treadle.kernel.errors import DefinitionError
from treadle.kernel.showing import shown
from treadle.kernel.stops import is_stop
from treadle.kernel.values import digest
from treadle.lang import standing
from treadle.lang.definition import Definition, Dialect
from treadle.lang.problems import Problem, Problems
from treadle.lang.text import Document, parse

SUFFIXES = (".yaml", ".yml", ".json")
_SHAPES = """a `workflow:` list is a playbook, `nodes:` with `edges:` an agent workflow, `dialect: process` (or `steps:` \
with `tasks:`) a process, FILE.py:NAME a builder or an application"""

_HINT = "import it with python itself to see the whole traceback"


def dialect_of(document: Document, dialects: Mapping[str, Dialect]) -> Dialect:
    value = document.value
    if isinstance(value, dict) and isinstance(name := value.get("dialect"), str):
        if name in dialects:
            return dialects[name]
        problems = Problems(document)
        problems.error(
            "UNKNOWN_DIALECT", ("dialect",), f"no dialect {name!r}", hint=f"one of {', '.join(dialects)}"
        )
        problems.raise_errors()
    for dialect in dialects.values():
        if dialect.recognises(value):
            return dialect
    problems = Problems(document)
    problems.error("UNKNOWN_SHAPE", (), "this is no workflow that Treadle knows", hint=_SHAPES)
    problems.raise_errors()
    raise AssertionError("raise_errors raised")


def compile_text(
    text: str, dialects: Mapping[str, Dialect], *, file: str | None = None, strict: bool = False
) -> tuple[Definition | None, Problems]:
    document = parse(text, file=file)
    dialect = dialect_of(document, dialects)
    definition, problems = dialect.compile(document, strict=strict)
    if definition is not None:
        standing.check(definition.name, dialect.standing(definition.body), problems)
    return definition, problems


def named_in(text: str, dialects: Mapping[str, Dialect], path: Path) -> tuple[str, str, str | None]:
    """Dialect, name and version of a text that does not compile, as far as they can be read."""
    try:
        document = parse(text)
        dialect = dialect_of(document, dialects).name
    except DefinitionError:
        return "unknown", path.stem, None
    about: Any = document.value
    if isinstance(metadata := about.get("metadata"), dict):
        about = {**about, **metadata}
    name, version = about.get("name") or about.get("id"), about.get("version")
    return dialect, name if isinstance(name, str) else path.stem, None if version is None else str(version)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DefinitionError(f"there is no file {path}", code="FILE_NOT_FOUND", where=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(
            f"cannot read {path}: {error}", code="FILE_UNREADABLE", where=str(path)
        ) from error


def files_in(target: str) -> Iterator[Path]:
    """The definition files of a folder, or the file itself."""
    path = there(target)
    if path.is_dir():
        yield from sorted(p for p in path.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    else:
        yield path


def there(target: str) -> Path:
    """A path that can be looked at. A text that no file can have for its name is refused; so is none, which would be
    the folder at hand."""
    try:
        os.stat(target)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        if not target or isinstance(error, ValueError):
            raise DefinitionError(f"there is no file {shown(target, 80)}", code="FILE_NOT_FOUND") from error
    except OSError as error:
        said = f"cannot read {target:.80}: {error.strerror}"
        raise DefinitionError(said, code="FILE_UNREADABLE", where=target[:80]) from error
    return Path(target)


def split_target(target: str) -> tuple[Path, str | None]:
    """`FILE.py:NAME` in its two parts."""
    file, sign, name = target.rpartition(":")
    return (Path(file), name) if sign and file.endswith(".py") else (Path(target), None)


class FreshLoader(SourceFileLoader):
    """A file's code as it stands there now. Bytecode that Python kept goes by seconds and size: a file that was written
    twice within a second would be deployed as it is and run as it was."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def run_python(path: Path, kind: str) -> ModuleType:
    """A file of Python, run as a module. Its code has the file's whole path: by that it is the same file next time,
    whatever folder it is named from."""
    whole = os.path.abspath(path)
    name = f"treadle_{kind}_{path.stem}_{digest(str(path.resolve()))[7:19]}"
    loader = FreshLoader(name, whole)
    import importlib.util  # most engines load no file of Python

    spec = importlib.util.spec_from_file_location(name, whole, loader=loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    sys.path.insert(0, folder)
    try:
        loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def load_python(path: Path, name: str | None) -> list[Any]:
    """The builders and applications of a Python file: the named one, or all of them."""
    if not there(str(path)).exists():
        raise DefinitionError(f"there is no file {path}", code="FILE_NOT_FOUND", where=str(path))
    try:
        module = run_python(path, "file")
    except DefinitionError:
        raise
    except BaseException as error:  # also `sys.exit()`, which would end the whole process
        if is_stop(error):
            raise
        raise _unimportable(path, error) from error
    if name is not None:
        if not hasattr(module, name):
            raise DefinitionError(f"{path} has no {name!r}", code="PYTHON_NAME", where=str(path))
        return [getattr(module, name)]
    return [
        v for v in vars(module).values() if hasattr(v, "__treadle_definitions__") and not isinstance(v, type)
    ]


def _unimportable(path: Path, error: BaseException) -> DefinitionError:
    """Why a file cannot be imported, with the line of it at which that came out."""
    whole = os.path.abspath(path)
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == whole else None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == whole:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    message = f"{path} cannot be imported: {type(error).__name__}: {error}"
    problem = Problem("error", "PYTHON_IMPORT", message, file=str(path), line=line, hint=_HINT)
    where = str(path) if line is None else f"{path}:{line}"
    return DefinitionError(
        message, code="PYTHON_IMPORT", where=where, details={"problems": [asdict(problem)]}
    )


def definitions_of(value: Any, *, file: str | None) -> list[Definition]:
    """What a Python object (a process builder, a reactive application) says it is."""
    make = getattr(value, "__treadle_definitions__", None)
    if make is None or isinstance(value, type):
        raise DefinitionError(
            f"{type(value).__name__} is no workflow: pass a file, a folder, a process or an application",
            code="NOT_A_WORKFLOW",
        )
    found: list[Definition] = make(file=file)
    return found
