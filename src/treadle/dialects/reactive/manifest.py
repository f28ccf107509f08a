"""A manifest that was written by hand, checked against what the code derives.

It may name a definition (`"com.acme/order@1"` or {name, hash}) or spell it out ({"$kind": "defworkflow", …}).
A hash must be right; a definition that is spelled out must have every required field and agree with the
code in each field that it gives. All problems are reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from treadle.kernel.errors import DefinitionError

from .names import CONTEXT_SCHEMA, FRAME_SCHEMA, RECEIPT_SCHEMA, REJECTED_SCHEMA, is_name

_AMBIENT: Final = frozenset({RECEIPT_SCHEMA, REJECTED_SCHEMA, FRAME_SCHEMA, CONTEXT_SCHEMA})
AIR_VERSION: Final = "2"
_FIELDS: Final = ("$kind", "air_version", "schemas", "modules", "workflows", "effects", "secrets", "routing")
_PARTS: Final = {
    "schemas": "defschema",
    "modules": "defmodule",
    "workflows": "defworkflow",
    "effects": "defeffect",
}
# Required, then optional fields of each kind of definition.
_NODE_FIELDS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "defschema": (("name", "type"), ()),
    "defmodule": (("name", "runtime"), ()),
    "defeffect": (("name", "params", "receipt"), ("impl",)),
    "defworkflow": (
        ("name", "state", "event", "effects_emitted", "impl"),
        ("context", "annotations", "key_schema", "determinism"),
    ),
}


def check_manifest(
    derived: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], written: Mapping[str, Any]
) -> None:
    """Raises DefinitionError with every disagreement between a written manifest and the code."""
    found = _Check(derived, nodes)
    found.run(written)
    if found.problems:
        first = found.problems[0]
        raise DefinitionError(
            f"the manifest does not agree with the code: {first['path']}: {first['message']}",
            code="MANIFEST_DIFFERS",
            where=first["path"],
            details={"problems": found.problems},
        )


def written_subscriptions(written: object) -> list[Any]:
    """The subscriptions of a written manifest, as far as its outer form is right."""
    routing = written.get("routing") if isinstance(written, Mapping) else None
    lines = routing.get("subscriptions", []) if isinstance(routing, Mapping) else []
    return lines if isinstance(lines, list) else []


class _Check:
    def __init__(self, derived: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> None:
        self.derived, self.nodes = derived, nodes
        self.problems: list[dict[str, str]] = []

    def problem(self, path: str, message: str) -> None:
        self.problems.append(
            {
                "severity": "error",
                "code": "MANIFEST_DIFFERS",
                "path": path,
                "message": message,
                "hint": "",
                "rule": "",
            }
        )

    def run(self, written: object) -> None:
        if not isinstance(written, Mapping):
            self.problem("$", f"a manifest is a map, not {type(written).__name__}")
            return
        if written.get("air_version", AIR_VERSION) != AIR_VERSION:
            self.problem("air_version", f"is {AIR_VERSION!r}")
        if written.get("$kind") != "manifest":
            self.problem("$kind", "a manifest has $kind: manifest")
        for name in written:
            if name not in _FIELDS:
                self.problem(name, "unknown field")
        for part, kind in _PARTS.items():
            if self.is_list(written, part):
                self.part(part, kind, written[part])
        for index, secret in enumerate(written["secrets"] if self.is_list(written, "secrets") else ()):
            self.secret(f"secrets[{index}]", secret)
        routing = written.get("routing", {})
        if not isinstance(routing, Mapping) or not routing.keys() <= {"subscriptions"}:
            self.problem("routing", "is a map with the list `subscriptions`")
        else:
            self.is_list(routing, "subscriptions", "routing.")

    def is_list(self, written: Mapping[str, Any], name: str, under: str = "") -> bool:
        if name in written and not isinstance(written[name], list):
            self.problem(f"{under}{name}", f"is a list, not {type(written[name]).__name__}")
        return isinstance(written.get(name), list)

    def secret(self, path: str, value: object) -> None:
        fields = value.keys() - {"$kind"} if isinstance(value, Mapping) else set()
        if not isinstance(value, Mapping) or value.get("$kind", "defsecret") != "defsecret":
            self.problem(path, "a secret is a defsecret {name, binding_id, expected_digest?}")
        elif not {"name", "binding_id"} <= fields <= {"name", "binding_id", "expected_digest"}:
            self.problem(path, "a secret has name and binding_id, and perhaps expected_digest")
        elif not all(isinstance(value[field], str) for field in sorted(fields)):
            self.problem(path, "the fields of a secret are text")

    def part(self, part: str, kind: str, entries: Any) -> None:
        hashes = {ref["name"]: ref["hash"] for ref in self.derived[part]}
        named: dict[str, int] = {}
        for index, entry in enumerate(entries):
            path = f"{part}[{index}]"
            if not isinstance(entry, str | Mapping):
                self.problem(path, f"is a name or a map, not {type(entry).__name__}")
                continue
            value = {"name": entry} if isinstance(entry, str) else dict(entry)
            name = value.get("name")
            if not isinstance(name, str) or not is_name(name):
                self.problem(path, f"{name!r} is not a name")
                continue
            if name in named:
                self.problem(path, f"{name} stands twice")
            named[name] = index
            if name not in hashes:
                if name not in _AMBIENT:
                    self.problem(path, f"the code has no {name}")
                elif not value.keys() <= {"name", "hash"}:
                    self.problem(path, f"{name} is built in; it can be named, not defined")
            elif "$kind" in value:
                self.node(path, kind, value)
            elif not value.keys() <= {"name", "hash"}:
                self.problem(path, "a reference is {name, hash}")
            elif value.get("hash", hashes[name]) != hashes[name]:
                self.problem(path, f"{name} has the hash {hashes[name]} in the code")
        missing = [name for name in hashes if name not in named]
        if missing and part in ("workflows", "effects"):
            self.problem(part, f"the code also has {', '.join(missing)}")

    def node(self, path: str, kind: str, value: dict[str, Any]) -> None:
        """A definition that is spelled out."""
        required, optional = _NODE_FIELDS[kind]
        if value["$kind"] != kind:
            self.problem(f"{path}.$kind", f"{kind} is expected here")
            return
        code = self.nodes[value["name"]]
        for name in required:
            if name not in value:
                self.problem(f"{path}.{name}", "is required")
        for name, given in value.items():
            if name not in ("$kind", *required, *optional):
                self.problem(f"{path}.{name}", "unknown field")
            elif name == "effects_emitted":
                if not isinstance(given, list) or sorted(given) != sorted(code[name]):
                    self.problem(f"{path}.{name}", f"the code declares {code[name]}")
            elif name == "impl":
                if not isinstance(given, Mapping) or given.keys() != {"module", "entrypoint"}:
                    self.problem(f"{path}.{name}", "is {module, entrypoint}")
            elif name != "runtime" and given != code.get(name):
                self.problem(f"{path}.{name}", f"the code has {code.get(name)!r}")
