"""Definitions: loaded once by digest, found by name, version or path.

Runs are pinned to a digest. `name` alone means the latest available version in semantic order;
`name@version` the exact one.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from treadle.kernel.errors import DefinitionError, UnknownWorkflow, Unsupported
from treadle.kernel.machine import Machine
from treadle.kernel.values import Value, encode
from treadle.store.protocol import Batch, DefinitionRow, Reads, VersionRow

LOADED_MAX = 512
# Documents that say what a definition means by the names of files beside it.
CHILDREN = "children"


class LoadedCache:
    """Definitions made ready by their machines, by digest: one for all threads of an engine. What a
    machine makes of a definition is never changed, so it may be shared; the least used is dropped."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Loaded] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> Loaded | None:
        with self._lock:
            if found := self._found.get(digest):
                self._found.move_to_end(digest)
            return found

    def add(self, digest: str, loaded: Loaded) -> Loaded:
        with self._lock:
            self._found[digest] = loaded
            while len(self._found) > LOADED_MAX:
                self._found.popitem(last=False)
        return loaded

    def forget(self, digest: str) -> None:
        with self._lock:
            self._found.pop(digest, None)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A definition ready to run."""

    row: DefinitionRow
    machine: Machine
    definition: Any


def version_key(version: str) -> tuple[Any, ...]:
    """Semantic version order; what is not a number sorts as text, a pre-release before its release."""
    core, _, pre = version.partition("-")
    numbers = tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"[.+]", core)
    )
    return (numbers, (1,) if not pre else (0, pre))


@dataclass(frozen=True, slots=True)
class Family:
    """Definitions that belong together: one, and all that it names by file. `pins` are those names, by
    the digest of who uses them."""

    rows: list[DefinitionRow]
    pins: dict[str, dict[str, str]]

    def write(self, batch: Batch, now_ns: int) -> None:
        batch.definitions += [msgspec.structs.replace(row, created_ns=now_ns) for row in self.rows]
        batch.documents += [(CHILDREN, digest, now_ns, encode(pins)) for digest, pins in self.pins.items()]


class Registry:
    def __init__(
        self, machine_of: Callable[[str], Machine], reads: Reads, cache: LoadedCache | None = None
    ) -> None:
        self._machine_of = machine_of
        self._reads = reads
        self._loaded = cache or LoadedCache()
        # Definitions that may not be in the store yet: written with the first run that needs them.
        self.pending: Mapping[str, DefinitionRow] = {}
        self.stored: set[str] = set()
        # Set by the composition root: told after each commit which names it gave to definitions.
        self.renamed: Callable[[Sequence[VersionRow]], None] = lambda versions: None
        # A definition that stands in for every other: to see how a journal would go under it.
        self.instead: str | None = None
        # What definitions mean by names of files beside them, as it was when they were loaded; and a
        # definition with all that it names so.
        self.pins: dict[str, dict[str, str]] = {}
        self.family: Callable[[str], Family] = lambda digest: Family([], {})
        # Set by the composition root: a dialect's check of inputs.
        self.check_input: Callable[[Loaded, Value, dict[str, Any]], Value] = lambda loaded, input, options: (
            input
        )

    def machine(self, dialect: str) -> Machine:
        return self._machine_of(dialect)

    def load(self, digest: str) -> Loaded:
        digest = self.instead or digest
        found = self._loaded.get(digest)
        # One that another machine made is of no use: a dialect may be replaced.
        if found is not None and found.machine is self._machine_of(found.row.dialect):
            return found
        row = self.pending.get(digest) or self._reads.definition(digest)
        if row is None:
            raise UnknownWorkflow(f"the definition {digest} is not in the store")
        machine = self._machine_of(row.dialect)
        return self._loaded.add(digest, Loaded(row, machine, machine.load(row.body)))

    def find(self, workflow: str, *, caller: str) -> DefinitionRow:
        """A child's definition: the file that its caller's definition named, as it was when that was
        loaded; else what is deployed under the name. No file is looked for."""
        pins = self.pins.get(caller) or self._reads.document(CHILDREN, caller) or {}
        if digest := pins.get(workflow):
            return self.load(digest).row
        return self.resolve(workflow)

    def unwritten(self, digest: str) -> Family:
        """What has to be written with the first run of a definition that was compiled here."""
        if digest not in self.pending or digest in self.stored:
            return Family([], {})
        return self.family(digest)

    def prepare(self, row: DefinitionRow, input: Value, options: dict[str, Any]) -> Value:
        return self.check_input(self.load(row.digest), input, options)

    def forget(self, digest: str) -> None:
        self._loaded.forget(digest)

    def resolve(self, workflow: str) -> DefinitionRow:
        """The definition behind `sha256:…`, `name@version`, `name` or a playbook's path."""
        if workflow.startswith("sha256:"):
            return self.load(workflow).row
        name, _, version = workflow.partition("@")
        found = [row for row in self._reads.versions(name) if not version or row.version == version]
        if not found and version:
            # The number in the name of a reactive workflow is part of the name.
            found = self._reads.versions(workflow)
        if not found:
            by_path = self._reads.versions(path=name)
            found = [row for row in by_path if not version or row.version == version]
        usable = [row for row in found if row.status == "available"]
        if not usable:
            if found:
                reasons = "; ".join(found[-1].reasons) or "it did not validate"
                raise DefinitionError(
                    f"{workflow} is deployed but unavailable: {reasons}", code="WORKFLOW_UNAVAILABLE"
                )
            raise UnknownWorkflow(f"no workflow {workflow!r:.80} is deployed; deploy it first")
        chosen = latest(usable)
        row = self.load(chosen.digest).row
        # A definition that names no version was given one when it was deployed; its runs say which.
        return row if row.version is not None else msgspec.structs.replace(row, version=chosen.version)


def latest(rows: list[VersionRow]) -> VersionRow:
    return max(rows, key=lambda row: (version_key(row.version), row.created_ns))


def machines_of(dialects: Mapping[str, Machine]) -> Callable[[str], Machine]:
    def machine_of(dialect: str) -> Machine:
        if dialect not in dialects:
            raise Unsupported(f"no dialect {dialect!r} is installed")
        return dialects[dialect]

    return machine_of
