"""A manifest that was written by hand (AIR), taken as it is and checked against what the code derives.

It may name a definition (`"com.acme/order@1"` or {name, hash}) or spell it out ({"$kind": "defworkflow", …});
definitions may also stand beside it, in one list with it, as AIR keeps them in files of their own. What the
code leaves open is taken from here: subscriptions, module names, entry points, the tags of an event family,
`unit` for an event without fields, the name of a key's type. Everything else must agree. Every difference
is reported, with the place it is at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value

from . import family
from .family import Family, Remark
from .names import BUILT_IN_EFFECTS, BUILT_IN_SCHEMAS, CONTEXT_SCHEMA, is_name
from .workflow import Workflow

AIR_VERSION: Final = "2"
DIFFERS: Final = "MANIFEST_DIFFERS"
ROUTING: Final = "ROUTING_INVALID"
_FIELDS: Final = ("$kind", "air_version", "schemas", "modules", "workflows", "effects", "secrets", "routing")
_PARTS: Final = {
    "schemas": "defschema",
    "modules": "defmodule",
    "workflows": "defworkflow",
    "effects": "defeffect",
}
_BUILT_IN: Final = {"schemas": BUILT_IN_SCHEMAS, "effects": BUILT_IN_EFFECTS}
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
_UNIT: Final[dict[str, Value]] = {"unit": {}}
_EMPTY: Final[dict[str, Value]] = {"record": {}}


def refusal(problems: list[dict[str, str]]) -> DefinitionError:
    """One error for all that is wrong with a manifest, or with the subscriptions given without one."""
    first = problems[0]
    code = DIFFERS if any(problem["code"] == DIFFERS for problem in problems) else ROUTING
    said = "the manifest does not agree with the code: " if code == DIFFERS else ""
    return DefinitionError(
        f"{said}{first['path']}: {first['message']}",
        code=code,
        where=first["path"],
        details={"problems": problems},
    )


def problem(path: str, message: str, code: str = DIFFERS) -> dict[str, str]:
    return {"severity": "error", "code": code, "path": path, "message": message, "hint": "", "rule": ""}


class Written:
    """A written manifest, read: which definitions it names, which it spells out, and what is wrong."""

    def __init__(self, given: object) -> None:
        self.problems: list[dict[str, str]] = []
        self.subscriptions: list[Value] = []
        # By name: where it stands, and the definition where it is spelled out.
        self._spelled: dict[str, tuple[str, dict[str, Value]]] = {}
        self._hashes: dict[str, str] = {}
        self._named: dict[str, dict[str, str]] = {part: {} for part in _PARTS}
        self._listed: set[str] = set()
        self._read(self._joined(given))

    def _problem(self, path: str, message: str) -> None:
        self.problems.append(problem(path, message))

    # --- its form ------------------------------------------------------------------------------------

    def _joined(self, given: object) -> Mapping[str, Value] | None:
        """The manifest, with the definitions that stand beside it in their places."""
        if not isinstance(given, list):
            if isinstance(given, Mapping):
                return given
            self._problem("$", f"a manifest is a map, not {type(given).__name__}")
            return None
        manifests = [node for node in given if isinstance(node, Mapping) and node.get("$kind") == "manifest"]
        if len(manifests) != 1:
            self._problem("$", f"one manifest is expected in the list, here are {len(manifests)}")
            return None
        joined = dict(manifests[0])
        for index, node in enumerate(given):
            if node is manifests[0]:
                continue
            kind = node.get("$kind") if isinstance(node, Mapping) else None
            part = next((part for part, of in _PARTS.items() if of == kind), None)
            listed = None if part is None else joined.get(part)
            entries = list(listed) if isinstance(listed, list) else []
            names = [entry.get("name") if isinstance(entry, Mapping) else entry for entry in entries]
            if part is None or node.get("name") not in names:
                self._problem(f"$[{index}]", "is no definition that the manifest names")
                continue
            entries[names.index(node["name"])] = node
            joined[part] = entries
        return joined

    def _read(self, manifest: Mapping[str, Value] | None) -> None:
        if manifest is None:
            return
        if manifest.get("air_version", AIR_VERSION) != AIR_VERSION:
            self._problem("air_version", f"is {AIR_VERSION!r}")
        if manifest.get("$kind") != "manifest":
            self._problem("$kind", "a manifest has $kind: manifest")
        for name in manifest:
            if name not in _FIELDS:
                self._problem(name, "unknown field")
        for part, kind in _PARTS.items():
            if self._is_list(manifest, part):
                self._listed.add(part)
                self._part(part, kind, manifest[part])
        for index, secret in enumerate(manifest["secrets"] if self._is_list(manifest, "secrets") else ()):
            self._secret(f"secrets[{index}]", secret)
        routing = manifest.get("routing", {})
        if not isinstance(routing, Mapping) or not routing.keys() <= {"subscriptions"}:
            self._problem("routing", "is a map with the list `subscriptions`")
        elif self._is_list(routing, "subscriptions", "routing."):
            self.subscriptions = routing["subscriptions"]

    def _is_list(self, written: Mapping[str, Value], name: str, under: str = "") -> bool:
        if name in written and not isinstance(written[name], list):
            self._problem(f"{under}{name}", f"is a list, not {type(written[name]).__name__}")
        return isinstance(written.get(name), list)

    def _secret(self, path: str, value: object) -> None:
        fields = value.keys() - {"$kind"} if isinstance(value, Mapping) else set()
        if not isinstance(value, Mapping) or value.get("$kind", "defsecret") != "defsecret":
            self._problem(path, "a secret is a defsecret {name, binding_id, expected_digest?}")
        elif not {"name", "binding_id"} <= fields <= {"name", "binding_id", "expected_digest"}:
            self._problem(path, "a secret has name and binding_id, and perhaps expected_digest")
        elif not all(isinstance(value[field], str) for field in sorted(fields)):
            self._problem(path, "the fields of a secret are text")

    def _part(self, part: str, kind: str, entries: list[Value]) -> None:
        for index, entry in enumerate(entries):
            path = f"{part}[{index}]"
            if not isinstance(entry, str | Mapping):
                self._problem(path, f"is a name or a map, not {type(entry).__name__}")
                continue
            value = {"name": entry} if isinstance(entry, str) else dict(entry)
            name = value.get("name")
            if not isinstance(name, str) or not is_name(name):
                self._problem(path, f"{name!r} is not a name")
                continue
            if name in self._named[part]:
                self._problem(path, f"{name} stands twice")
            self._named[part][name] = path
            if "$kind" in value:
                if self._is_node(path, kind, value):
                    self._spelled[name] = (path, value)
            elif not value.keys() <= {"name", "hash"}:
                self._problem(path, "a reference is {name, hash}")
            elif "hash" in value:
                self._hashes[name] = str(value["hash"])

    def _is_node(self, path: str, kind: str, value: Mapping[str, Value]) -> bool:
        """Whether a definition has the form of its kind; what is wrong with it is noted."""
        if value["name"].startswith("sys/"):
            self._problem(path, f"{value['name']} is built in; it can be named, not defined")
            return False
        if value["$kind"] != kind:
            self._problem(f"{path}.$kind", f"{kind} is expected here")
            return False
        required, optional = _NODE_FIELDS[kind]
        for name in required:
            if name not in value:
                self._problem(f"{path}.{name}", "is required")
        for name in value:
            if name not in ("$kind", "$comment", *required, *optional):
                self._problem(f"{path}.{name}", "unknown field")
        impl = value.get("impl", {"module": "", "entrypoint": ""})
        if not isinstance(impl, Mapping) or impl.keys() != {"module", "entrypoint"}:
            self._problem(f"{path}.impl", "is {module, entrypoint}")
        return True

    # --- what is taken from it -----------------------------------------------------------------------

    def family(self, workflow: Workflow) -> Family:
        """The events of a workflow under the name and the tags that are written here."""
        path, node = self._spelled.get(workflow.name, ("", {}))
        event = node.get("event")
        name = event if isinstance(event, str) and not workflow.names_family else workflow.family
        if name in workflow.by_schema:
            if len(workflow.events) == 1 and not workflow.emits:
                return Family(name, workflow, None)
            self._problem(
                f"{path}.event", f"{name} is one event, and {workflow.name} is told more: name a variant"
            )
            return family.derived(workflow)
        if name not in self._spelled:
            return family.derived(workflow, name)
        place, schema = self._spelled[name]
        found, remarks = family.written(workflow, name, schema.get("type"))
        for at, text in remarks:
            self._problem(f"{place}.type{at}", text)
        return found

    def impl(self, workflow: str, module: str, entrypoint: str) -> dict[str, str]:
        """Where a workflow's code is said to be: as written, else as derived."""
        path, node = self._spelled.get(workflow, ("", {}))
        modules = [name for name in self._named["modules"] if not name.startswith("sys/")]
        impl = node.get("impl")
        if isinstance(impl, Mapping) and "module" in impl and "entrypoint" in impl:
            if impl["module"] in modules:
                return {"module": str(impl["module"]), "entrypoint": str(impl["entrypoint"])}
            if modules and impl["module"] != module:
                self._problem(f"{path}.impl.module", f"{impl['module']} is no module of this manifest")
        elif modules and module not in modules:
            if len(modules) == 1:
                return {"module": modules[0], "entrypoint": entrypoint}
            self._problem("modules", f"which of them holds {workflow}? Spell out its impl")
        return {"module": module, "entrypoint": entrypoint}

    def amended(self, node: dict[str, Value]) -> dict[str, Value]:
        """A derived definition with what is written in its place here."""
        _, given = self._spelled.get(node["name"], ("", {}))
        if node["$kind"] == "defschema" and node["type"] == _EMPTY and _plain(given.get("type")) == _UNIT:
            return {**node, "type": _UNIT}
        key = given.get("key_schema")
        if (
            node["$kind"] == "defworkflow"
            and "key_schema" in node
            and self._is_alias(key, node["key_schema"])
        ):
            return {**node, "key_schema": key}
        return node

    def _is_alias(self, name: object, type: object) -> bool:
        spelled = self._spelled.get(name) if isinstance(name, str) else None
        return spelled is not None and _plain(spelled[1].get("type")) == type

    def aliases(self, nodes: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, Value]]:
        """The names that are written here for the types of keys."""
        names = [node.get("key_schema") for node in nodes.values()]
        return {name: dict(self._spelled[name][1]) for name in names if isinstance(name, str)}

    # --- whether it agrees ---------------------------------------------------------------------------

    def check(
        self, nodes: Mapping[str, Mapping[str, Value]], derived: Mapping[str, Value], remarks: list[Remark]
    ) -> None:
        """Raises DefinitionError with everything that is wrong here, or differs from the code."""
        for part in _PARTS:
            hashes = {ref["name"]: ref["hash"] for ref in derived[part]}
            for name, path in self._named[part].items():
                if name not in hashes:
                    if part != "modules" and name not in _BUILT_IN.get(part, ()):
                        self._problem(path, f"the code has no {name}")
                elif name in self._spelled:
                    self._compare(path, self._spelled[name][1], nodes[name])
                elif self._hashes.get(name, hashes[name]) != hashes[name]:
                    self._problem(path, f"{name} has the hash {hashes[name]} in the code")
            absent = [name for name in hashes if name not in {*self._named[part], *BUILT_IN_EFFECTS}]
            if absent and part in self._listed and part in ("workflows", "effects"):
                self._problem(part, f"the code also has {', '.join(absent)}")
        self.problems += [problem(path, text, ROUTING) for path, text in remarks]
        if self.problems:
            raise refusal(self.problems)

    def _compare(self, path: str, given: Mapping[str, Value], code: Mapping[str, Value]) -> None:
        for name, value in given.items():
            at = f"{path}.{name}"
            if name == "effects_emitted":
                self._compare_effects(at, value, code[name])
            elif name == "context":
                if value != CONTEXT_SCHEMA:
                    self._problem(at, f"is {CONTEXT_SCHEMA}")
            elif name not in ("$comment", "impl", "runtime"):
                for place, text in _differences(value, code.get(name)):
                    self._problem(f"{at}{place}", text)

    def _compare_effects(self, path: str, given: object, code: list[str]) -> None:
        if not isinstance(given, list):
            self._problem(path, f"is a list, not {type(given).__name__}")
            return
        for name in given:
            if name not in code:
                self._problem(path, f"the code does not declare {name}")
        for name in code:
            if name not in given:
                self._problem(path, f"the code also declares {name}")


def _plain(value: object) -> object:
    """A type without remarks; a schema's name alone is a reference to it."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if name != "$comment"}
    return value


def _differences(given: object, code: object, path: str = "") -> Iterator[Remark]:
    """Where two types differ, down to the field."""
    given, code = _plain(given), _plain(code)
    if isinstance(given, str) and isinstance(code, dict):
        given = {"ref": given}
    if given == code:
        return
    if isinstance(given, dict) and isinstance(code, dict) and given.keys() == code.keys() and len(code) == 1:
        (kind,) = code
        one, other = given[kind], code[kind]
        if isinstance(one, dict) and isinstance(other, dict) and kind in ("record", "variant", "map"):
            for name in {**other, **one}:
                at = f"{path}.{kind}.{name}"
                if name not in one:
                    yield at, f"is missing; the code has {other[name]!r}"
                elif name not in other:
                    yield at, "is not in the code"
                else:
                    yield from _differences(one[name], other[name], at)
            return
        if kind in ("option", "list", "set"):
            yield from _differences(one, other, f"{path}.{kind}")
            return
    yield path, f"the code has {code!r}"
