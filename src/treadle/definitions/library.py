"""The definitions an engine knows: compiled here, deployed in its store, or named by a file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from treadle.kernel.errors import (
    PASSING,
    DefinitionError,
    EngineStopped,
    OwnershipLost,
    TreadleError,
    UnknownWorkflow,
)
from treadle.kernel.machine import Machine
from treadle.kernel.values import Value
from treadle.lang import standing
from treadle.lang.alerts import NO_ALERTS, Alerts
from treadle.lang.definition import Definition
from treadle.lang.problems import Problem
from treadle.lang.refusing import noting, refuse
from treadle.runtime import deploys
from treadle.runtime.registry import Known, Loaded, Registry
from treadle.store.protocol import DefinitionRow, Reads, VersionRow

from .children import file_beside, literal_names
from .dialects import Dialects, not_installed
from .files import (
    SUFFIXES,
    compile_text,
    definitions_of,
    files_in,
    load_python,
    named_in,
    read_text,
    split_target,
    there,
)

Read = Callable[[Callable[[Reads], Any]], Awaitable[Any]]
# Told by whoever could not decide: there is nobody to look it up either.
_NOBODY_THERE = (*PASSING, EngineStopped, OwnershipLost)


class Library(Known):
    def __init__(self, dialects: Dialects, house_alerts: Alerts = NO_ALERTS) -> None:
        super().__init__()
        self._dialects, self.machines = dialects, dialects.machines
        self.house_alerts = None if house_alerts == NO_ALERTS else house_alerts
        # What names mean: replaced as soon as that may have changed, so that what is found out meanwhile goes with it.
        self._named: dict[str, DefinitionRow] = {}
        # For how long every commit is seen here.
        self._tenure: object | None = None
        # The very objects whose children are known, with their rows: a file may have others when it is read anew.
        self._pinned: dict[str, tuple[Definition, DefinitionRow]] = {}

    # --- compiling ---

    def load(self, target: Any, *, strict: bool = False) -> list[Definition]:
        """Compiles a file, a folder, FILE.py:NAME or a Python object; changes nothing in the store."""
        if isinstance(target, Definition):
            found = [target]
        elif isinstance(target, str | Path):
            found = self._load_path(str(target), strict=strict)
        else:
            found = definitions_of(target, file=None)
        for definition in found:
            self._take(definition, given=definition is target)
        return found

    def _take(self, definition: Definition, *, given: bool) -> None:
        """Learns a definition, and its children unless they are known: by this very object, as when a function is
        started again, or, where a compiled definition is given, by any of its digest, since that may have lost the file
        beside which its children are. Live code counts as it was handed in last."""
        before, row = self._pinned.get(definition.digest) or (None, None)
        if before is definition and row is not None:
            self._know(definition, row)
            return
        self._dialects[definition.dialect].verify(definition)
        row = self._learn(definition)
        if not (given and definition.digest in self.pins):
            self._pin(definition, {})
            self._pinned[definition.digest] = definition, row

    def _pin(self, definition: Definition, seen: dict[Path, str]) -> None:
        """Compiles the children that a definition names by file, and theirs."""
        pins: dict[str, str] = {}
        self.pins.setdefault(definition.digest, pins)
        for child in definition.along():
            pins[f"{child.name}@{child.version}"] = self._learn(child).digest
            if child.digest not in self.pins:
                self._pin(child, seen)
        for name in literal_names(self._dialects[definition.dialect].names(definition.body)):
            path = None if definition.file is None else file_beside(name, definition.file)
            if path is None:
                continue
            if path not in seen:
                try:
                    (child,) = self._load_path(str(path), strict=False)
                except DefinitionError as error:
                    if error.code == "UNKNOWN_SHAPE":
                        continue  # some other file that happens to have this name
                    raise
                seen[path] = self._learn(child).digest
                self._pin(child, seen)
            pins[name] = seen[path]
        if self.pins.get(definition.digest, {}) != pins:
            self.stored.discard(definition.digest)
        self.pins[definition.digest] = pins

    def _load_path(self, target: str, *, strict: bool) -> list[Definition]:
        path, name = split_target(target)
        if path.suffix == ".py":
            file = str(there(str(path)).resolve())
            origin = f"{file}:{name}" if name else file
            found = [d for value in load_python(path, name) for d in definitions_of(value, file=origin)]
            _refuse_twins(found, file)
            return found
        found = []
        refused: list[TreadleError] = []
        for file_path in files_in(target):
            try:
                found.append(self._load_file(file_path, strict=strict))
            except TreadleError as error:
                refused.append(error)
        if refused:
            raise together(refused)
        return found

    def _load_file(self, path: Path, *, strict: bool) -> Definition:
        text = read_text(path)
        definition, problems = compile_text(text, self._dialects, file=str(path), strict=strict)
        problems.raise_errors()
        assert definition is not None, "without errors there is a definition"
        return definition

    def check(self, target: str, *, strict: bool = False) -> list[Problem]:
        """Every problem of a file or folder, errors and warnings."""
        path, _ = split_target(target)
        if path.suffix == ".py":
            return self._check_python(target)
        found: list[Problem] = []
        for file_path in files_in(target):
            try:
                text = read_text(file_path)
                found += compile_text(text, self._dialects, file=str(file_path), strict=strict)[1]
            except TreadleError as error:
                found += _listed(error, str(file_path))
        return found

    def _check_python(self, target: str) -> list[Problem]:
        """What is refused as the file is imported does not end the import: the rest is looked at too."""
        with noting() as found:
            try:
                definitions = self.load(target)
            except TreadleError as error:
                return _in_order([*found, *_listed(error, target)])
        return _in_order(found + [w for definition in definitions for w in definition.warnings])

    def _learn(self, definition: Definition) -> DefinitionRow:
        row = deploys.row_of(definition)
        self._know(definition, row)
        return row

    def _know(self, definition: Definition, row: DefinitionRow) -> None:
        self.known[row.digest] = row
        if definition.code is not None:
            self._dialects[definition.dialect].attach(definition.code)

    def deploy_of(self, definition: Definition, *, validation: str) -> deploys.Deploy:
        deploy = deploys.of(definition, self._dialects[definition.dialect], validation)
        return replace(deploy, family=self.family(definition.digest))

    def load_or_keep(self, target: Any, *, strict: bool) -> tuple[list[Definition], list[Definition]]:
        """For `validation=warn`: what compiles, and what does not. The latter have their text for a
        body, and their errors among the warnings."""
        if not isinstance(target, str | Path) or split_target(str(target))[0].suffix == ".py":
            return self.load(target, strict=strict), []
        found: list[Definition] = []
        kept: list[Definition] = []
        for path in files_in(str(target)):
            try:
                found += self.load(str(path), strict=strict)
            except DefinitionError as error:
                if not path.is_file():
                    raise
                kept.append(self._kept(path, error))
        return found, kept

    def _kept(self, path: Path, error: DefinitionError) -> Definition:
        text = path.read_text(encoding="utf-8", errors="replace")
        dialect, name, version = named_in(text, self._dialects, path)
        listed = [Problem(**problem) for problem in error.details.get("problems", [])]
        problems = tuple(listed or [as_problem(error, str(path))])
        return Definition(dialect, name, version, {"invalid": text}, file=str(path), warnings=problems)

    # --- finding ---

    def registry(self, reads: Reads, *, instead: str | None = None) -> Registry:
        """Definitions by digest and name over one connection, with what is known here on top."""
        return Registry(self.machine_of, reads, self, instead=instead)

    def core_registry(self, reads: Reads) -> Registry:
        """The same for a core, whose thread imports nothing."""
        return Registry(self._machine_at_hand, reads, self)

    def _machine_at_hand(self, dialect: str) -> Machine:
        return self._dialects.machines.get(dialect) or self._dialects.at_hand(dialect).machine

    def machine_of(self, dialect: str) -> Machine:
        if (machine := self._dialects.machines.get(dialect)) is not None:
            return machine
        if dialect not in self._dialects:
            raise not_installed(dialect)
        return self._dialects[dialect].machine

    def committed(self, definitions: Sequence[DefinitionRow], versions: Sequence[VersionRow]) -> None:
        super().committed(definitions, versions)
        if versions:
            self._named = {}

    def _names(self, tenure: object | None) -> dict[str, DefinitionRow] | None:
        if tenure is not None and tenure is not self._tenure:
            self._tenure, self._named = tenure, {}
        return None if tenure is None else self._named

    async def resolve(self, workflow: Any, read: Read, *, tenure: object | None) -> DefinitionRow:
        """The definition behind an object, a digest, a name or name@version. What a name means is remembered for as long as
        all commits are made here, which is what a `tenure` stands for; where others make some it is looked up each time."""
        if not isinstance(workflow, str):
            (definition,) = self.load(workflow)
            return self.known[definition.digest]
        if workflow in self.known:
            return self.known[workflow]
        names = self._names(tenure)
        if names is not None and (found := names.get(workflow)):
            return found
        try:
            row: DefinitionRow = await read(lambda reads: self.registry(reads).resolve(workflow))
        except UnknownWorkflow as error:
            raise _explained(error, workflow) from error
        if names is not None:
            names[workflow] = row
        return row

    async def named_before(
        self, workflow: Any, id: str | None, read: Read, meant: DefinitionRow | None, refusal: TreadleError
    ) -> DefinitionRow:
        """A start was refused by what its name means now. The definition of the run that has this id already, if it was
        asked for by the same bare name and is another one: the same start is the same run, whatever has been deployed
        since. Else the refusal stands."""
        if id is None or not isinstance(workflow, str) or isinstance(refusal, _NOBODY_THERE):
            raise refusal

        def ask(reads: Reads) -> DefinitionRow | None:
            run = reads.run(id)
            return reads.definition(run.definition) if run is not None and run.workflow == workflow else None

        found: DefinitionRow | None = await read(ask)
        if found is None or (meant is not None and found.digest == meant.digest):
            raise refusal
        return found

    def make_ready(self, row: DefinitionRow) -> Loaded:
        """A definition made ready by its machine, kept by its digest."""
        machine = self.machine_of(row.dialect)
        return self.cache.add(row.digest, Loaded.of(row, machine))

    def loaded(self, row: DefinitionRow) -> Any:
        """A definition made ready by its machine; for checks before a run is started."""
        return (self.at_hand(row.digest) or self.make_ready(row)).definition

    def at_hand(self, digest: str) -> Loaded | None:
        """A definition that was made ready before."""
        found = self.cache.get(digest)
        if found is None or found.machine is not self._dialects.machines.get(found.row.dialect):
            return None
        return found

    def check_input(self, loaded: Loaded, input: Value, options: dict[str, Any]) -> Value:
        return self._dialects[loaded.row.dialect].check_input(loaded.definition, input, options)

    def orders(self, loaded: Loaded) -> standing.StandingOrders:
        row = loaded.row
        said = self.said[row.digest] = standing.read(row.name, self._dialects[row.dialect].standing(row.body))
        return said


class ByDigest:
    """Definitions for workers: found by digest, made ready once for the whole engine."""

    def __init__(self, library: Library, ask: Callable[[Callable[[Reads], Any]], Any]) -> None:
        self._library = library
        self._ask = ask
        self.peek = library.at_hand

    def load(self, digest: str) -> Loaded:
        found: Loaded = self._ask(lambda reads: self._library.registry(reads).load(digest))
        return found


def _explained(error: UnknownWorkflow, workflow: str) -> UnknownWorkflow:
    """A name is never a path: it may come from somebody's request. Who meant a file is told what to write."""
    path, _ = split_target(workflow)
    try:
        if path.suffix not in (*SUFFIXES, ".py") or not path.is_file():
            return error
    except OSError:  # a text that cannot even be the name of a file
        return error
    return UnknownWorkflow(
        f"no workflow {workflow!r} is deployed; it is a file: engine.deploy({workflow!r}) and start it by its "
        f"name, or start what the file holds: engine.start(engine.load({workflow!r})[0])"
    )


def together(refused: list[TreadleError]) -> TreadleError:
    """All that is wrong with the files of a folder, as one error."""
    first, *others = refused
    if not others:
        return first
    listed: list[dict[str, Any]] = []
    for error in refused:
        listed += error.details.get("problems") or [asdict(as_problem(error, error.where or ""))]
    return DefinitionError(
        f"{len(refused)} files are refused, the first because: {first.message}",
        code=first.code,
        where=first.where,
        details={"problems": listed},
    )


def _in_order(found: list[Problem]) -> list[Problem]:
    """As a reader comes to them, each once: a function may be reached from several."""
    return sorted(dict.fromkeys(found), key=lambda problem: (problem.file or "", problem.line or 0))


def _refuse_twins(found: list[Definition], file: str) -> None:
    """Two workflows of one name and version in one file: which of them counts would be chance."""
    seen: dict[tuple[str, str, str | None], Definition] = {}
    for definition in found:
        named = definition.dialect, definition.name, definition.version
        if seen.setdefault(named, definition).digest != definition.digest:
            what = f"{definition.name}@{definition.version}"
            message, hint = (
                f"two workflows of this file are {what}",
                "give one of them another name or version",
            )
            twin = Problem("error", "NAME_TAKEN", message, hint=hint, file=file, line=definition.line)
            refuse(what, [twin], code="NAME_TAKEN")


def _listed(error: TreadleError, file: str) -> list[Problem]:
    listed = error.details.get("problems")
    return [Problem(**problem) for problem in listed] if listed else [as_problem(error, file)]


def as_problem(error: TreadleError, file: str) -> Problem:
    return Problem("error", error.code, error.message, file=file)
