"""Definitions: loaded once by digest, found by name, version or path.

Runs are pinned to a digest. `name` alone means the latest available version in semantic order;
`name@version` the exact one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from treadle.kernel.errors import DefinitionError, UnknownWorkflow, Unsupported
from treadle.kernel.machine import Machine
from treadle.kernel.values import Value, encode
from treadle.lang.alerts import Alerts
from treadle.lang.retention import NEVER_NS
from treadle.lang.standing import NO_ORDERS, StandingOrders
from treadle.store.rows import Batch, DefinitionRow, VersionRow

if TYPE_CHECKING:
    from treadle.store.protocol import Reads


LOADED_MAX = 512
# Documents that say what a definition means by the names of files beside it.
CHILDREN = "children"


class LoadedCache:
    """Definitions made ready by their machines, by digest: one for all threads of an engine. What a
    machine makes of a definition is never changed, so it may be shared; the least used is dropped."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Loaded] = OrderedDict()
        # Whether room may become short.
        self._is_filling = False
        self._lock = threading.Lock()

    def get(self, digest: str) -> Loaded | None:
        """Asked at every step, so without the lock: each of the two calls is one step for other threads. Which was
        used last matters only where room is short."""
        if (found := self._found.get(digest)) is not None and self._is_filling:
            try:
                self._found.move_to_end(digest)
            except KeyError:
                return found  # another thread has dropped it meanwhile
        return found

    def add(self, digest: str, loaded: Loaded) -> Loaded:
        with self._lock:
            self._found[digest] = loaded
            self._is_filling = len(self._found) > LOADED_MAX // 2
            while len(self._found) > LOADED_MAX:
                self._found.popitem(last=False)
        return loaded

    def forget(self, digest: str) -> None:
        with self._lock:
            self._found.pop(digest, None)


class Loaded(msgspec.Struct, frozen=True):
    """A definition ready to run."""

    row: DefinitionRow
    machine: Machine
    definition: object
    # How long its ended runs are kept, unless its author says otherwise.
    retention_ns: int

    @staticmethod
    def of(row: DefinitionRow, machine: Machine) -> Loaded:
        definition = machine.load(row.body)
        return Loaded(row, machine, definition, machine.retention_ns(definition))


def kept_until(ended_ns: int, age_ns: int) -> int:
    """The date until which a run is kept."""
    return min(ended_ns + age_ns, NEVER_NS)


def version_key(version: str) -> tuple[tuple[tuple[int, int, str], ...], tuple[int, str]]:
    """Semantic version order; what is not a number sorts as text, a pre-release before its release."""
    core, _, pre = version.partition("-")
    numbers = tuple(
        (0, int(part), "") if part.isdigit() else (1, 0, part) for part in core.replace("+", ".").split(".")
    )
    return (numbers, (1, "") if not pre else (0, pre))


class DefinitionFamily(msgspec.Struct, frozen=True):
    """Definitions that belong together: one, and all that it names by file. `pins` are those names, by
    the digest of who uses them."""

    rows: list[DefinitionRow]
    pins: dict[str, dict[str, str]]

    def write(self, batch: Batch, now_ns: int) -> None:
        batch.definitions += [msgspec.structs.replace(row, created_ns=now_ns) for row in self.rows]
        batch.documents += [(CHILDREN, digest, now_ns, encode(pins)) for digest, pins in self.pins.items()]


class Known:
    """What a process knows of definitions besides what is in its store."""

    def __init__(self) -> None:
        # Compiled here, perhaps not in the store yet: written with the first run that needs them.
        self.known: dict[str, DefinitionRow] = {}
        # What each definition means by the names of files beside it, as it was when it was loaded.
        self.pins: dict[str, dict[str, str]] = {}
        # Those of them that a commit has written.
        self.stored: set[str] = set()
        # Made ready by their machines: for all threads, by digest.
        self.cache = LoadedCache()
        # The machines that are at hand, by dialect; another may be found when it is asked for.
        self.machines: Mapping[str, Machine] = {}
        # What definitions ask of the house, by digest; what it starts for runs whose definitions say nothing of it.
        self.said: dict[str, StandingOrders] = {}
        self.house_alerts: Alerts | None = None

    def family(self, digest: str) -> DefinitionFamily:
        """A definition that was compiled here, with all that it names by file."""
        rows: dict[str, DefinitionRow] = {}
        queue = [digest]
        while queue:
            if (found := queue.pop()) not in rows and found in self.known:
                rows[found] = self.known[found]
                queue += self.pins.get(found, {}).values()
        return DefinitionFamily(list(rows.values()), {d: p for d in rows if (p := self.pins.get(d))})

    def committed(self, definitions: Sequence[DefinitionRow], versions: Sequence[VersionRow]) -> None:
        """Told after each commit what it wrote, and which names it gave."""
        self.stored.update(row.digest for row in definitions)

    def check_input(self, loaded: Loaded, input: Value, options: dict[str, Value]) -> Value:
        """The input of a child, as its dialect takes it."""
        return input

    def orders(self, loaded: Loaded) -> StandingOrders:
        """What a definition asks of the house that runs it."""
        return NO_ORDERS


class Registry:
    """Definitions by digest and name over one connection, with what is `known` here on top. With `instead`,
    one definition stands in for every other: to see how a journal would go under it."""

    def __init__(
        self,
        machine_of: Callable[[str], Machine],
        reads: Reads,
        known: Known | None = None,
        *,
        instead: str | None = None,
    ) -> None:
        self._machine_of = machine_of
        self._reads = reads
        self._known = known or Known()
        self._loaded = self._known.cache
        self._instead = instead

    def machine(self, dialect: str) -> Machine:
        return self._machine_of(dialect)

    def load(self, digest: str) -> Loaded:
        digest = self._instead or digest
        found = self._loaded.get(digest)
        # One that another machine made is of no use: a dialect may be replaced.
        if found is not None and (
            found.machine is self._known.machines.get(found.row.dialect)
            or found.machine is self._machine_of(found.row.dialect)
        ):
            return found
        row = self._known.known.get(digest) or self._reads.definition(digest)
        if row is None:
            raise UnknownWorkflow(f"the definition {digest} is not in the store")
        machine = self._machine_of(row.dialect)
        return self._loaded.add(digest, Loaded.of(row, machine))

    def find(self, workflow: str, *, caller: str) -> DefinitionRow:
        """A child's definition: the file that its caller's definition named, as it was when that was
        loaded; else what is deployed under the name. No file is looked for."""
        pins = self._known.pins.get(caller) or self._reads.document(CHILDREN, caller) or {}
        if digest := pins.get(workflow):
            return self.load(digest).row
        return self.resolve(workflow)

    def unwritten(self, digest: str) -> DefinitionFamily | None:
        """What has to be written with the first run of a definition that was compiled here, if anything has."""
        if digest not in self._known.known or digest in self._known.stored:
            return None
        return self._known.family(digest)

    def learn(self, pins: Mapping[str, dict[str, str]]) -> None:
        """What definitions mean by names of files, as another process found it."""
        self._known.pins.update(pins)

    def committed(self, definitions: Sequence[DefinitionRow], versions: Sequence[VersionRow]) -> None:
        self._known.committed(definitions, versions)

    def prepare(self, row: DefinitionRow, input: Value, options: dict[str, Value]) -> Value:
        return self._known.check_input(self.load(row.digest), input, options)

    def orders(self, digest: str) -> StandingOrders:
        """What a definition asks of the house: read once, asked whenever a run begins, ends or stalls."""
        found = self._known.said.get(self._instead or digest)
        return self._known.orders(self.load(digest)) if found is None else found

    def alerts(self, digest: str, *, is_root: bool) -> Alerts:
        """What is started when a run fails, stalls or is late: what its definition says; of a run that nobody else's run
        waits for, also what the house says."""
        own, house = self.orders(digest).alerts, self._known.house_alerts
        return own.over(house) if is_root and house is not None else own

    def retention_ns(self, digest: str, status: str) -> int:
        """How long a run is kept that ended so, as its definition or its dialect says."""
        said = self.orders(digest).retention
        age_ns = None if said is None else said.ages_ns.get(status)
        return self.load(digest).retention_ns if age_ns is None else age_ns

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
            raise not_deployed(workflow)
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


def not_deployed(workflow: object) -> UnknownWorkflow:
    return UnknownWorkflow(f"no workflow {workflow!r:.80} is deployed; deploy it first")
