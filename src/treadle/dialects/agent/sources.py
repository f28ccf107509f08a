"""Which Sources a run has, and how their contents become a node's instruction.

A Source is text, a file or a URL. All of them are resolved once, before the first node, and are
known afterwards by their field path (`nodes.draft.instruction`, `input.rules[0]`). How a file is
read is the performer's business; here is only what has to be read, and what it is for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from treadle.kernel.values import Value, digest

from .model import Node, Workflow

SECTION: Final = "\n\n---\n\n"
_PORTS: Final = {"http": 80, "https": 443}
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]+\Z")

# The first of the Sources that every node is told, unless it says `only`.
_SHARED: Final = tuple(
    f"{layer}.{field}[0]" for layer in ("input", "workflow") for field in ("rules", "context")
)

# ResolvedSources by field path.
Resolved = Mapping[str, Mapping[str, Value]]


@dataclass(frozen=True, slots=True)
class Source:
    """One Source as written: `kind` is inline, file or url; `origin` its text, path or address."""

    kind: str
    origin: str


class SourceShape(ValueError):
    """A runtime Source that is not one; `code` says which rule it breaks."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def classify(value: Value) -> Source:
    """R1. Inline text is kept as it is; it is trimmed only to tell what it is."""
    if isinstance(value, str) and value:
        text = value.strip()
        if text.startswith(("./", "../", "/")):
            return Source("file", text)
        if text.startswith(("http://", "https://")):
            return Source("url", text)
        return Source("inline", value)
    if isinstance(value, dict):
        tags = [tag for tag in ("inline", "file", "url") if tag in value]
        extra = [key for key in value if key not in ("inline", "file", "url")]
        if len(tags) == 1 and isinstance(value[tags[0]], str):
            if tags[0] == "url" and extra == ["type"]:
                if value["type"] != "fetch":
                    raise SourceShape(
                        "SOURCE_INVALID_TYPE", f"unknown Source type {value['type']!r}; use fetch"
                    )
                extra = []
            if not extra:
                return Source(tags[0], value[tags[0]])
    raise SourceShape(
        "SOURCE_INVALID_SHAPE", "a Source is text, {inline: …}, {file: …} or {url: …}, and nothing else"
    )


def url_problem(url: str, *, strict: bool = False) -> str | None:
    """Why an address cannot be one, or None. `strict` also refuses what is no URI: no scheme, or a
    space in it."""
    if strict and not _URI.match(url):
        return "is not a URI"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"is not an address: {error}"
    return "names no host" if parts.scheme in _PORTS and not parts.hostname else None


def canonical_url(url: str) -> str:
    """One spelling for one resource: scheme and host in lower case, no default port, no dot
    segments, no fragment. What is no address stays as it is."""
    if url_problem(url):
        return url
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    host = parts.hostname or ""
    place = f"[{host}]" if ":" in host else host
    if parts.port is not None and parts.port != _PORTS.get(parts.scheme):
        place += f":{parts.port}"
    return urlunsplit((parts.scheme, user + at + place, _without_dots(parts.path) or "/", parts.query, ""))


def _without_dots(path: str) -> str:
    """RFC 3986, 5.2.4."""
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments:
        if segment == ".." and len(kept) > 1:
            kept.pop()
        elif segment not in (".", ".."):
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/".join(kept)


def fields(workflow: Workflow, input: Value, templates: Mapping[str, Value]) -> dict[str, Value]:
    """Every Source of a run, by field path."""
    found: dict[str, Value] = {}
    for field in ("rules", "context"):
        _add_given(found, input, field)
        _add(found, f"workflow.{field}", workflow.body.get(field) or [])
    if not workflow.texts:
        workflow.texts.update(_of_nodes(workflow.body))
    found.update(workflow.texts)
    for name, source in templates.items():
        found[f"templates.{name}"] = source
    return found


def given_fields(input: Value) -> dict[str, Value]:
    """The Sources that a run's input brings, by field path."""
    found: dict[str, Value] = {}
    for field in ("rules", "context"):
        _add_given(found, input, field)
    return found


def _add_given(found: dict[str, Value], input: Value, field: str) -> None:
    given = input.get(field) if isinstance(input, dict) else None
    if given is not None:
        _add(found, f"input.{field}", given if isinstance(given, list) else [given])


def _of_nodes(body: dict[str, Value]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for id, node in body["nodes"].items():
        if "instruction" in node:
            found[f"nodes.{id}.instruction"] = node["instruction"]
        for field in ("rules", "context"):
            own = node.get(field) or []
            _add(found, f"nodes.{id}.{field}", own["sources"] if isinstance(own, dict) else own)
        if "approve" in node:
            found[f"nodes.{id}.approve.prompt"] = node["approve"]["prompt"]
    for id, skill in (body.get("skills") or {}).items():
        if "instruction" in skill:
            found[f"skills.{id}.instruction"] = skill["instruction"]
    return found


def texts_of(workflow: Workflow) -> str:
    """A digest of the workflow's own Sources as they are written: a run that has resolved them goes on
    under another definition only if these are the same."""
    if "texts" not in workflow.digests:
        workflow.digests["texts"] = digest(fields(workflow, {}, {}))
    return workflow.digests["texts"]


def _add(found: dict[str, Value], prefix: str, sources: list[Value]) -> None:
    for index, source in enumerate(sources):
        found[f"{prefix}[{index}]"] = source


def _layered(resolved: Resolved, field: str, node: Node) -> list[str]:
    """N2: runtime input, then workflow, then node; `only` keeps the node's own."""
    only, own = (node.rules_only, node.rules) if field == "rules" else (node.context_only, node.context)
    layers = [] if only else ["input", "workflow"]
    if own:
        layers.append(f"nodes.{node.id}")
    texts = []
    for layer in layers:
        index = 0
        while (source := resolved.get(f"{layer}.{field}[{index}]")) is not None:
            texts.append(str(source["content"]))
            index += 1
    return texts


def assemble(
    node: Node,
    resolved: Resolved,
    skills: Mapping[str, Mapping[str, Value]],
    preamble: str | None = None,
) -> str:
    """N3: preamble, rules, background, skills, then the node's own instruction, never altered."""
    own = resolved.get(node.told_by)
    instruction = str(own["content"]) if own else ""
    if node.bare and not preamble and resolved.keys().isdisjoint(_SHARED):
        return instruction
    sections = [preamble] if preamble else []
    if rules := _layered(resolved, "rules", node):
        sections.append("## Rules — You MUST Follow These\n\n" + "\n\n".join(rules))
    if background := _layered(resolved, "context", node):
        sections.append("## Background Context\n\n" + "\n\n".join(background))
    for id in node.skills:
        skill = skills.get(id)
        if skill and skill.get("instruction"):
            sections.append(f"## Skill: {skill['name']}\n\n{skill['instruction']}")
    sections.append(instruction)
    return SECTION.join(sections)
