"""An application: workflows in routing order, with everything derived from them.

`App.manifest` holds names and digests of schemas, effects and workflows, and the subscriptions; its digest
is what a cell's records are made under. A manifest that was written by hand is taken as it is, where it does
not contradict the code (`manifest.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treadle.kernel.errors import DefinitionError, InputInvalid, UnknownWorkflow
from treadle.kernel.values import Value, decode, digest
from treadle.lang.definition import Definition

from . import family, routing
from .effects import Effect
from .family import Family, Remark
from .manifest import ROUTING, Written, problem, refusal
from .routing import Delivery, Subscription
from .shapes import Mapped, Option, RecordShape, Shape, Variant, canonical
from .shapes import Sequence as SequenceShape
from .types import shape_of
from .workflow import Workflow

DIALECT_NAME = "reactive"


class App:
    """`rx.App("shop", [order, ledger])`. List order is routing order. Keeps no global registry."""

    def __init__(
        self,
        name: str,
        workflows: Sequence[Workflow],
        *,
        subscriptions: Sequence[Mapping[str, Value]] | None = None,
        manifest: Mapping[str, Value] | Sequence[Mapping[str, Value]] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name or "/" in name or "@" in name:
            raise DefinitionError(
                f"{name!r} cannot be the name of an application: no / and no @", code="BAD_NAME"
            )
        self.name = name
        self._definitions: dict[str | None, Definition] = {}
        self.workflows: dict[str, Workflow] = {}
        for what, given in (("workflows", workflows), ("subscriptions", subscriptions or ())):
            if not isinstance(given, Iterable):
                raise DefinitionError(
                    f"{name}: {what} are a list, as in rx.App({name!r}, [order])", where=name
                )
        for workflow in workflows:
            if not isinstance(workflow, Workflow):
                raise DefinitionError(f"{name}: {workflow!r} is not decorated with rx.workflow", where=name)
            if workflow.name in self.workflows:
                raise DefinitionError(f"{name}: the workflow {workflow.name} twice", where=name)
            self.workflows[workflow.name] = workflow
        if manifest is not None and subscriptions is not None:
            raise DefinitionError(
                f"{name}: subscriptions stand in the manifest; do not give both", where=name
            )
        written = None if manifest is None else Written(manifest)
        self.families: dict[str, Family] = {
            one.name: family.derived(one) if written is None else written.family(one) for one in workflows
        }
        lines = subscriptions if written is None else written.subscriptions
        self.subscriptions, remarks = self._subscribed(lines)
        if remarks and written is None:
            raise refusal([problem(path, text, ROUTING) for path, text in remarks])
        self.effects = self._collect_effects()
        self.schemas: dict[str, RecordShape | Variant] = {}
        self._collect_schemas()
        self.nodes = self._nodes(written)
        self.manifest = self._manifest()
        self.digest = digest(self.manifest)
        if written is not None:
            written.check(self.nodes, self.manifest, remarks)

    def __repr__(self) -> str:
        return f"<app {self.name} {self.digest}>"

    # --- what is derived ---------------------------------------------------------------------------

    def _subscribed(
        self, lines: Sequence[Mapping[str, Value]] | None
    ) -> tuple[list[Subscription], list[Remark]]:
        if lines is None:
            return routing.derived(self.families.values()), []
        return routing.read(lines, self.families)

    def _collect_effects(self) -> dict[str, Effect]:
        found: dict[str, Effect] = {}
        for workflow in self.workflows.values():
            for effect in workflow.effects.values():
                if found.setdefault(effect.name, effect).node() != effect.node():
                    raise DefinitionError(
                        f"{effect.name} is declared twice, with different types", where=effect.name
                    )
        return found

    def _collect_schemas(self) -> None:
        for workflow in self.workflows.values():
            self._add(workflow.state)
            for event in workflow.events:
                self._add(event.shape)
        for effect in self.effects.values():
            self._add(effect.params)
            self._add(effect.receipt)

    def _add(self, shape: Shape) -> None:
        if isinstance(shape, RecordShape | Variant):
            if shape.schema is not None:
                known = self.schemas.get(shape.schema)
                if known is shape:
                    return
                if known is not None and known.body() != shape.body():
                    raise DefinitionError(f"{shape.schema} names two different classes", where=shape.schema)
                self.schemas[shape.schema] = shape
            for part in (shape.fields if isinstance(shape, RecordShape) else shape.arms).values():
                self._add(part)
        elif isinstance(shape, Option | SequenceShape | Mapped):
            self._add(shape.inner)

    def _nodes(self, written: Written | None) -> dict[str, dict[str, Value]]:
        """Every definition by name; their digests stand in the manifest."""
        nodes: dict[str, dict[str, Value]] = {}
        for name, shape in sorted(self.schemas.items()):
            nodes[name] = {"$kind": "defschema", "name": name, "type": shape.body()}
        for one in self.families.values():
            node = one.node()
            if node is not None and nodes.setdefault(one.name, node) != node:
                raise DefinitionError(
                    f"{one.name} names two different things; choose family=", where=self.name
                )
        for name, effect in sorted(self.effects.items()):
            nodes[name] = effect.node()
        held: dict[str, dict[str, str]] = {}
        for workflow in self.workflows.values():
            impl = {"module": f"code/{workflow.name.replace('/', '.')}", "entrypoint": workflow.step.__name__}
            if written is not None:
                impl = written.impl(workflow.name, **impl)
            module = held.setdefault(impl["module"], {})
            module[workflow.name] = workflow.code_digest
            nodes[impl["module"]] = _module(impl["module"], module)
            taken = {"impl": impl, "event": self.families[workflow.name].name}
            nodes[workflow.name] = {**workflow.node(impl["module"]), **taken}
        if written is None:
            return nodes
        nodes = {name: written.amended(node) for name, node in nodes.items()}
        return {**nodes, **written.aliases(nodes)}

    def _manifest(self) -> dict[str, Value]:
        def refs(kind: str) -> list[dict[str, str]]:
            return [
                {"name": name, "hash": digest(node)}
                for name, node in self.nodes.items()
                if node["$kind"] == kind
            ]

        return {
            "$kind": "manifest",
            "air_version": "2",
            "schemas": refs("defschema"),
            "modules": refs("defmodule"),
            "workflows": refs("defworkflow"),
            "effects": refs("defeffect"),
            "routing": {"subscriptions": [line.node() for line in self.subscriptions]},
        }

    # --- what it is used for -----------------------------------------------------------------------

    def body(self, workflow: str | None) -> Value:
        """What identifies one workflow of this application in the store (None: the application itself)."""
        return {"app": self.name, "manifest": self.digest, "workflow": workflow}

    def definition(self, workflow: str | None) -> Definition:
        if workflow not in self._definitions:
            self._definitions[workflow] = self._define(workflow, None)
        return self._definitions[workflow]

    def _define(self, workflow: str | None, file: str | None) -> Definition:
        return Definition(
            dialect=DIALECT_NAME,
            name=workflow if workflow is not None else self.name,
            version=None,
            body=self.body(workflow),
            file=file,
            code=self,
        )

    def __treadle_definitions__(self, *, file: str | None) -> list[Definition]:
        return [self._define(name, file) for name in (None, *self.workflows)]

    def definitions(self) -> list[Definition]:
        """One definition for each workflow, and one for the application's own run."""
        return self.__treadle_definitions__(file=None)

    def workflow(self, workflow: Workflow | str) -> Workflow:
        name = workflow if isinstance(workflow, str) else workflow.name
        if name not in self.workflows:
            raise UnknownWorkflow(f"{name} is no workflow of {self.name}; it has {', '.join(self.workflows)}")
        return self.workflows[name]

    def event(self, schema: str | object, value: object = None) -> tuple[str, Value]:
        """An event in canonical form: from a typed object, or from a schema's name and a raw value."""
        if isinstance(schema, str):
            raw = decode(value) if isinstance(value, bytes) else value
            return schema, canonical(self._event_shape(schema), raw, what=schema)
        shape = shape_of(type(schema))
        if shape is None or shape.schema is None:
            raise InputInvalid(f"{type(schema).__name__} is not a class decorated with rx.schema")
        return shape.schema, canonical(shape, schema, what=shape.schema)

    def knows(self, schema: str) -> bool:
        return schema in self.schemas or any(one.name == schema for one in self.families.values())

    def _event_shape(self, schema: str) -> Shape:
        if (shape := self.schemas.get(schema)) is not None:
            return shape
        for one in self.families.values():
            if one.name == schema:
                return one.shape()
        raise InputInvalid(f"{schema} is no schema of {self.name}", details={"schema": schema})

    def route(self, schema: str, value: Value) -> list[Delivery]:
        """Who gets a canonical event, in the order of the subscriptions."""
        return routing.deliveries(self.subscriptions, schema, value)


def _module(name: str, holds: Mapping[str, str]) -> dict[str, Value]:
    """A module by what it holds: the code of one workflow, or of several."""
    root = next(iter(holds.values())) if len(holds) == 1 else digest({**holds})
    runtime = {"python": {"artifact": {"source": {"root_hash": root}}}}
    return {"$kind": "defmodule", "name": name, "runtime": runtime}
