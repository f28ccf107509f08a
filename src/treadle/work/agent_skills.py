"""Which skills there are, and what becomes of a node's list of them.

A skill is looked for among those registered in Python (and entry points `treadle.skills`), those
built in, SKILL.md folders beside the workflow, and those in the workflow file itself. Registered
and built-in ones win over the file's; a SKILL.md with the id of one of them replaces its
instruction and MCP server and keeps its tools. A skill whose required configuration is missing is
left out with a warning: the workflow goes on without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from treadle.kernel.errors import TreadleError
from treadle.lang.duration import parse_duration
from treadle.lang.text import parse

from .agent_api import McpServer
from .agent_skill import Skill

FOLDERS: Final = (".treadle/skills", ".sweny/skills", ".claude/skills", ".agents/skills", ".gemini/skills")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Config = Mapping[str, Any]
Learn = Callable[[str, str], Any]


class Skills:
    """The skills of one engine. `learn(name, value)` makes a configured value known as a secret."""

    def __init__(self, *, learn: Learn, built_in: Callable[[], Iterable[Skill]] = lambda: ()) -> None:
        self._learn = learn
        self._built_in = built_in
        self._registered: dict[str, Skill] = {}
        self._found: dict[str, Skill] | None = None

    def register(self, skill: Skill) -> None:
        self._registered[skill.id] = skill

    def _known(self) -> dict[str, Skill]:
        if self._found is None:
            self._found = {skill.id: skill for skill in self._built_in()}
            for entry in entry_points(group="treadle.skills"):
                loaded = entry.load()
                for skill in loaded if isinstance(loaded, list | tuple) else [loaded]:
                    self._found[skill.id] = skill
        return {**self._found, **self._registered}

    def find(self, id: str, inline: Mapping[str, Any], base: str | None) -> Skill | None:
        """The live skill of this id, or None. `inline` is the workflow's own `skills`."""
        known = self._known().get(id)
        written = discover(base).get(id)
        if known is not None and written is not None:
            return replace(
                known,
                instruction=written.instruction or known.instruction,
                mcp=written.mcp or known.mcp,
                tools=known.tools,
            )
        if known is not None or written is not None:
            return known or written
        spec = inline.get(id)
        if spec is None:
            return None
        return Skill(
            id=re.sub(r"[^a-z0-9]+", "-", id.lower()).strip("-")[:64] or "skill",
            name=spec.get("name") or id,
            description=spec.get("description", ""),
            mcp=spec.get("mcp"),
        )

    def missing_config(self, skill: Skill, given: Config) -> list[str]:
        return [
            name
            for name, entry in skill.config.items()
            if entry.get("required") and self._value(name, entry, given) is None
        ]

    def config(self, skill: Skill, given: Config) -> dict[str, str]:
        """The skill's settings: what the run was given, then the environment. All are secrets."""
        found = {}
        for name, entry in skill.config.items():
            value = self._value(name, entry, given)
            if value is not None:
                self._learn(name, value)
                found[name] = value
        return found

    def _value(self, name: str, entry: Mapping[str, Any], given: Config) -> str | None:
        if given.get(name) is not None:
            return str(given[name])
        return os.environ.get(entry.get("env") or name) or None

    def server(self, skill: Skill, id: str, given: Config, base: str | None) -> McpServer:
        """How to reach the skill's MCP server. `env` in the definition holds descriptions; the
        values come from the environment."""
        mcp = skill.mcp or {}
        env = {}
        for name in mcp.get("env") or {}:
            value = given.get(name) if given.get(name) is not None else os.environ.get(name)
            if value is not None:
                self._learn(name, str(value))
                env[name] = str(value)
        return McpServer(
            name=id,
            command=mcp.get("command"),
            args=tuple(mcp.get("args") or ()),
            url=mcp.get("url"),
            headers={key: self._expand(value, given) for key, value in (mcp.get("headers") or {}).items()},
            env=env,
            timeout_s=parse_duration(mcp["timeout"]) / 1e9 if "timeout" in mcp else 30.0,
            cwd=base,
        )

    def _expand(self, text: str, given: Config) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            found = str(given[name]) if given.get(name) is not None else os.environ.get(name, "")
            if found:
                self._learn(name, found)
            return found

        return _VARIABLE.sub(value, text)


def recorded(skill: Skill, id: str, instruction: str | None) -> dict[str, Any]:
    """What step 0 keeps of a skill, so that replay and show work where it is not installed. Names
    of environment variables and headers are kept, values never."""
    value: dict[str, Any] = {
        "id": id,
        "name": skill.name,
        "instruction": instruction,
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.input_schema,
                "idempotent": tool.idempotent,
            }
            for tool in skill.tools.values()
        ],
    }
    if skill.mcp is not None:
        kept = {
            key: skill.mcp[key] for key in ("type", "command", "args", "url", "timeout") if key in skill.mcp
        }
        kept.setdefault("type", "stdio" if "command" in kept else "http")
        kept["env"] = sorted(skill.mcp.get("env") or {})
        kept["headers"] = sorted(skill.mcp.get("headers") or {})
        value["mcp"] = kept
    if skill.aliases:
        value["aliases"] = {name: list(names) for name, names in skill.aliases.items()}
    return value


# --- SKILL.md -----------------------------------------------------------------------------------


def discover(base: str | None) -> dict[str, Skill]:
    """Skills written as `<folder>/<id>/SKILL.md`, beside the workflow first, then in the current
    directory; the first folder that has an id wins."""
    found: dict[str, Skill] = {}
    for root in dict.fromkeys((base, os.getcwd())):
        for folder in FOLDERS if root is not None else ():
            place = Path(root or "") / folder
            if not place.is_dir():
                continue
            for path in sorted(place.glob("*/SKILL.md")):
                if path.parent.name not in found:
                    skill = read_skill(path)
                    found.setdefault(skill.id, skill)
    return found


def read_skill(path: Path) -> Skill:
    """One SKILL.md: its body is the instruction, its front matter name, description, category,
    config, mcp."""
    text = path.read_text(encoding="utf-8")
    front: dict[str, Any] = {}
    body = text
    match = re.match(r"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)(.*)", text, re.S)
    if match is not None:
        value = parse(match[1], file=str(path)).value
        if not isinstance(value, dict | None):
            raise TreadleError(
                "the front matter is not a mapping", cls="definition", code="SKILL_INVALID", where=str(path)
            )
        front, body = value or {}, match[2]
    return Skill(
        id=str(front.get("id") or path.parent.name),
        name=str(front.get("name") or path.parent.name),
        description=str(front.get("description") or ""),
        category=str(front.get("category") or "general"),
        config=front.get("config") or {},
        instruction=body.strip() or None,
        mcp=front.get("mcp"),
    )
