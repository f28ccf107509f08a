"""An application: workflows in routing order, with everything derived from them.

`App.manifest` holds names and digests of schemas, effects and workflows, and the subscriptions; its digest
is what a cell's records are made under. A manifest written by hand is compared with the derived one: the
subscriptions are taken from it, everything else must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.kernel.errors import DefinitionError, InputInvalid, UnknownWorkflow
from treadle.kernel.values import Value, decode, digest
from treadle.lang.definition import Definition

from . import routing
from .effects import Effect
from .manifest import check_manifest, written_subscriptions
from .routing import Delivery
from .shapes import Mapped, Option, Record, Shape, Variant, canonical, union_shape
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
        subscriptions: Sequence[Mapping[str, Any]] | None = None,
        manifest: Mapping[str, Any] | None = None,
    ) -> None:
        if not name or "/" in name or "@" in name:
            raise DefinitionError(
                f"{name!r} cannot be the name of an application: no / and no @", code="BAD_NAME"
            )
        self.name = name
        self._definitions: dict[str | None, Definition] = {}
        self.workflows: dict[str, Workflow] = {}
        for workflow in workflows:
            if not isinstance(workflow, Workflow):
                raise DefinitionError(f"{name}: {workflow!r} is not decorated with rx.workflow", where=name)
            if workflow.name in self.workflows:
                raise DefinitionError(f"{name}: the workflow {workflow.name} twice", where=name)
            self.workflows[workflow.name] = workflow
        if manifest is not None:
            if subscriptions is not None:
                raise DefinitionError(
                    f"{name}: subscriptions stand in the manifest; do not give both", where=name
                )
            subscriptions = written_subscriptions(manifest)
        if subscriptions is None:
            self.subscriptions = routing.derived(workflows)
        else:
            self.subscriptions = routing.read(subscriptions, self.workflows)
        self.effects = self._collect_effects()
        self.schemas: dict[str, Record | Variant] = {}
        self._collect_schemas()
        self.nodes = self._nodes()
        self.manifest = self._manifest()
        self.digest = digest(self.manifest)
        if manifest is not None:
            check_manifest(self.manifest, self.nodes, manifest)

    def __repr__(self) -> str:
        return f"<app {self.name} {self.digest}>"

    # --- what is derived ---------------------------------------------------------------------------

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
        if isinstance(shape, Record | Variant):
            if shape.schema is not None:
                known = self.schemas.get(shape.schema)
                if known is shape:
                    return
                if known is not None and known.body() != shape.body():
                    raise DefinitionError(f"{shape.schema} names two different classes", where=shape.schema)
                self.schemas[shape.schema] = shape
            for part in (shape.fields if isinstance(shape, Record) else shape.arms).values():
                self._add(part)
        elif isinstance(shape, Option | SequenceShape | Mapped):
            self._add(shape.inner)

    def _nodes(self) -> dict[str, dict[str, Any]]:
        """Every definition by name; their digests stand in the manifest."""
        nodes: dict[str, dict[str, Any]] = {}
        for name, shape in sorted(self.schemas.items()):
            nodes[name] = {"$kind": "defschema", "name": name, "type": shape.body()}
        for workflow in self.workflows.values():
            family = workflow.family_node()
            if nodes.setdefault(workflow.family, family) != family:
                raise DefinitionError(
                    f"{workflow.family} names two different things; choose family=", where=self.name
                )
        for name, effect in sorted(self.effects.items()):
            nodes[name] = effect.node()
        for workflow in self.workflows.values():
            module = f"code/{workflow.name.replace('/', '.')}"
            runtime = {"python": {"artifact": {"source": {"root_hash": workflow.code_digest}}}}
            nodes[module] = {"$kind": "defmodule", "name": module, "runtime": runtime}
            nodes[workflow.name] = workflow.node(module)
        return nodes

    def _manifest(self) -> dict[str, Any]:
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
        return schema in self.schemas or any(w.family == schema for w in self.workflows.values())

    def _event_shape(self, schema: str) -> Shape:
        if (shape := self.schemas.get(schema)) is not None:
            return shape
        for workflow in self.workflows.values():
            if workflow.family == schema:
                return union_shape([event.shape for event in workflow.events])
        raise InputInvalid(f"{schema} is no schema of {self.name}", details={"schema": schema})

    def route(self, schema: str, value: Value) -> list[Delivery]:
        """Who gets a canonical event, in the order of the subscriptions."""
        return routing.deliveries(self.subscriptions, schema, value)
