"""The event family of a workflow: its events, and what may come back of its effects, as one type.

A family is a variant whose arms all refer to schemas. Its tags are derived from the code (an event's tag is
its class's name, the built-in ones are `sys.Receipt`, `sys.Rejected`, `sys.Frame`), unless a manifest that
was written by hand names them otherwise: then those are the tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from treadle.kernel.values import Value

from .names import FRAME_SCHEMA, RECEIPT_SCHEMA, REJECTED_SCHEMA
from .shapes import Shape, tagged_shape
from .workflow import Workflow

_BUILT_IN: Final = (RECEIPT_SCHEMA, REJECTED_SCHEMA, FRAME_SCHEMA)
# Where something is, and what is wrong there.
Remark = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Family:
    """`arms` maps tags to schemas, in order; None where the family is its only event's own schema."""

    name: str
    workflow: Workflow
    arms: Mapping[str, str] | None

    @property
    def rejected(self) -> bool:
        """Whether a receipt that does not fit is told to the workflow; else it fails the instance."""
        return self.workflow.rejected and (self.arms is None or REJECTED_SCHEMA in self.arms.values())

    def schema(self, tag: str) -> str:
        """The schema of the event behind a tag."""
        assert self.arms is not None, "a family without arms has no tags"
        return self.arms[tag]

    def shape(self) -> Shape:
        events = self.workflow.by_schema
        if self.arms is None:
            return events[self.name].shape
        return tagged_shape({tag: events[name].shape for tag, name in self.arms.items() if name in events})

    def node(self) -> dict[str, Value] | None:
        if self.arms is None:
            return None
        arms: Value = {tag: {"ref": schema} for tag, schema in self.arms.items()}
        return {"$kind": "defschema", "name": self.name, "type": {"variant": arms}}


def derived(workflow: Workflow, name: str | None = None) -> Family:
    """The family as the code has it."""
    arms = {event.tag: event.name for event in workflow.events}
    emits = bool(workflow.emits)
    for wanted, tag, schema in (
        (emits, "Receipt", RECEIPT_SCHEMA),
        (emits and workflow.rejected, "Rejected", REJECTED_SCHEMA),
        (workflow.frames, "Frame", FRAME_SCHEMA),
    ):
        if wanted:
            arms[f"sys.{tag}"] = schema
    return Family(name or workflow.family, workflow, arms)


def written(workflow: Workflow, name: str, type: object) -> tuple[Family, list[Remark]]:
    """The family as a manifest spells it out, and where that does not go with the code."""
    variant = type.get("variant") if isinstance(type, Mapping) else None
    if not isinstance(variant, Mapping):
        return derived(workflow, name), [("", "an event family is a variant whose arms are all refs")]
    arms: dict[str, str] = {}
    remarks: list[Remark] = []
    for tag, arm in variant.items():
        schema = arm.get("ref") if isinstance(arm, Mapping) and arm.keys() <= {"ref", "$comment"} else None
        if not isinstance(schema, str):
            remarks.append((f".variant.{tag}", "an arm of an event family is {ref: SCHEMA}"))
        elif schema in arms.values():
            remarks.append((f".variant.{tag}", f"{schema} has an arm already"))
        elif schema not in workflow.by_schema and schema not in _BUILT_IN:
            remarks.append((f".variant.{tag}", f"{workflow.name} does not take {schema}"))
        else:
            arms[str(tag)] = schema
    remarks += [(".variant", text) for text in _lacking(workflow, arms)]
    return Family(name, workflow, arms), remarks


def _lacking(workflow: Workflow, arms: Mapping[str, str]) -> Iterator[str]:
    there = set(arms.values())
    for event in workflow.events:
        if event.name not in there:
            yield f"has no arm for {event.name}, which {workflow.name} takes"
    if workflow.emits and RECEIPT_SCHEMA not in there:
        yield f"has no arm for {RECEIPT_SCHEMA}, and {workflow.name} asks for effects"
    if REJECTED_SCHEMA in there and not workflow.rejected:
        yield f"has an arm for {REJECTED_SCHEMA}, and the code says rejected=False"
    if (FRAME_SCHEMA in there) != workflow.frames:
        yield f"must have an arm for {FRAME_SCHEMA} if the code says frames=True, and only then"
