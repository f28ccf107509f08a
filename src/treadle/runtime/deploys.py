"""Deploying: a definition claims name@version, or says why it is unavailable."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import msgspec

from treadle.kernel.errors import DefinitionCorrupt, DefinitionError, VersionTaken
from treadle.kernel.roles import PastMachine
from treadle.kernel.values import Value
from treadle.lang.definition import Definition, Dialect
from treadle.store.rows import DefinitionRow, VersionRow

from .registry import DefinitionFamily, latest

if TYPE_CHECKING:
    from treadle.store.protocol import Reads

    from .desk import Desk

    class DeployAnswer(TypedDict):
        """A version of a workflow: whether runs can be started of it, and why not."""

        name: str
        version: str
        digest: str
        status: str
        reasons: list[str]


class Deploy(msgspec.Struct, frozen=True):
    """A deploy as data: it may have to travel to the process that owns the store."""

    row: DefinitionRow
    reasons: list[str]
    children: list[str]
    strict: bool
    # The definition again, with all that it names by file.
    family: DefinitionFamily
    # Who asked, if they said so: kept among the diagnostics.
    by: str | None = None

    def asked_by(self, by: str | None) -> Deploy:
        return msgspec.structs.replace(self, by=by)

    def to_value(self) -> dict[str, Value]:
        return {
            "row": row_value(self.row),
            "reasons": self.reasons,
            "children": self.children,
            "strict": self.strict,
            "family": family_value(self.family),
            "by": self.by,
        }

    @staticmethod
    def from_value(value: dict[str, Value]) -> Deploy:
        row = DefinitionRow(**value["row"])
        family = family_of(value.get("family") or {"rows": [value["row"]]})
        return Deploy(row, value["reasons"], value["children"], value["strict"], family, value.get("by"))


def row_of(definition: Definition) -> DefinitionRow:
    return DefinitionRow(
        digest=definition.digest,
        dialect=definition.dialect,
        name=definition.name,
        version=definition.version,
        path=definition.path,
        file=definition.file,
        body=definition.body,
    )


def of(definition: Definition, dialect: Dialect, validation: str) -> Deploy:
    """What deploying a definition asks for. A dialect may name the workflows it needs."""
    row = row_of(definition)
    children = dialect.children(definition.body)
    return Deploy(row, [], children, validation == "strict", DefinitionFamily([row], {}))


def row_value(row: DefinitionRow) -> dict[str, Value]:
    value: dict[str, Value] = msgspec.to_builtins(row, builtin_types=(bytes,))
    return value


def family_value(family: DefinitionFamily) -> dict[str, Value]:
    return {"rows": [row_value(row) for row in family.rows], "pins": family.pins}


def family_of(value: dict[str, Value]) -> DefinitionFamily:
    return DefinitionFamily([DefinitionRow(**row) for row in value["rows"]], value.get("pins") or {})


def learn(desk: Desk, value: dict[str, Value]) -> dict[str, str]:
    """Writes definitions that another process compiled; they claim no name and no version."""
    family = family_of(value if "rows" in value else {"rows": [value]})
    family.write(desk.batch, desk.clock.now_ns())
    desk.registry.learn(family.pins)
    return {"digest": family.rows[0].digest}


def unavailable(definition: Definition) -> Deploy:
    """A definition that does not compile, deployed with `validation=warn`: it claims its name and says
    why it cannot run, until something valid takes its place."""
    errors = [problem for problem in definition.warnings if problem.severity == "error"]
    reasons = [f"{problem.path or problem.line}: {problem.message}" for problem in errors]
    row = row_of(definition)
    return Deploy(row, reasons, [], strict=False, family=DefinitionFamily([row], {}))


def perform(desk: Desk, deploy: Deploy) -> DeployAnswer:
    """Runs on the core thread. Redeploying the same content changes nothing; other content under
    a taken version is refused. A definition without a version gets the next number by itself."""
    row, now = deploy.row, desk.clock.now_ns()
    taken = desk.store.versions(row.name)
    pinned = deploy.family.pins.get(row.digest, {})
    missing = [name for name in deploy.children if name not in pinned and not _known(desk, name, row)]
    reasons = [*deploy.reasons, *(f"the workflow {name} is not deployed" for name in missing)]
    if missing and deploy.strict:
        raise DefinitionError(
            f"{row.name} needs {', '.join(missing)}, which is not deployed; deploy it first",
            code="CHILD_NOT_DEPLOYED",
            where=row.file,
            details={"missing": missing},
        )
    same = next((v for v in taken if v.digest == row.digest), None)
    if row.version is not None:
        clash = next((v for v in taken if v.version == row.version and v.digest != row.digest), None)
        retakes = isinstance(desk.registry.machine(row.dialect), PastMachine)
        if clash is not None and clash.status == "available" and not retakes:
            raise VersionTaken(
                f"{row.name}@{row.version} is deployed with other content; raise its version", where=row.file
            )
        version = row.version
    elif same is not None and same == latest(taken):
        version = same.version
    else:
        version = str(1 + max((int(v.version) for v in taken if v.version.isdigit()), default=0))
    status = "unavailable" if reasons else "available"
    deploy.family.write(desk.batch, now)
    desk.registry.learn(deploy.family.pins)
    desk.batch.versions.append(
        VersionRow(
            name=row.name,
            version=version,
            digest=row.digest,
            path=row.path,
            status=status,
            reasons=reasons,
            created_ns=now,
        )
    )
    if deploy.by is not None:
        desk.belongs("")
        what = {"name": row.name, "version": version, "digest": row.digest}
        desk.diagnose("", "DEPLOYED", {"by": deploy.by, **what})
    return {"name": row.name, "version": version, "digest": row.digest, "status": status, "reasons": reasons}


def _known(desk: Desk, name: str, row: DefinitionRow) -> bool:
    bare, _, version = name.partition("@")
    if bare == row.name:
        return True
    return any(not version or found.version == version for found in desk.store.versions(bare))


def listed(reads: Reads) -> list[dict[str, Value]]:
    """`treadle definitions`."""
    found = []
    for version in reads.versions():
        status, reasons = version.status, version.reasons
        try:
            row = reads.definition(version.digest)
        except DefinitionCorrupt as error:
            row, status, reasons = None, "unavailable", [*reasons, error.message]
        found.append(
            {
                "name": version.name,
                "version": version.version,
                "dialect": row.dialect if row is not None else None,
                "digest": version.digest,
                "status": status,
                "reasons": reasons,
            }
        )
    return found
