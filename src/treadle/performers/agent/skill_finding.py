"""Which skills there are, and what becomes of a node's list of them.

A skill is looked for among those registered in Python (and entry points `treadle.skills`), those
built in, SKILL.md folders beside the workflow, and those in the workflow file itself. Registered
and built-in ones win over the file's; a SKILL.md with the id of one of them replaces its
instruction and MCP server and keeps its tools. A skill whose required configuration is missing is
left out with a warning: the workflow goes on without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from treadle.dialects.agent.schema import SKILL, SKILL_ID
from treadle.kernel.errors import TreadleError
from treadle.lang.duration import parse_duration
from treadle.lang.text import parse
from treadle.secrets.files import read_secrets_file
from treadle.secrets.redact import without_credentials
from treadle.work.job import StaysOpen

from .api import McpServer
from .skill import Skill
from .skill_files import skills_in

FOLDERS: Final = (".treadle/skills", ".sweny/skills", ".claude/skills", ".agents/skills", ".gemini/skills")
CATEGORIES: Final = SKILL["properties"]["category"]["enum"]
# What these allow, the operator decides: never a file that came with the workflow.
PERMISSIONS: Final = frozenset({"TREADLE_SHELL", "TREADLE_FILES_ROOT", "TREADLE_DUCKDB_DATABASE"})
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Learn = Callable[[str, str], Any]
log = logging.getLogger("treadle.agent")


@dataclass(frozen=True, slots=True)
class Values:
    """Where a setting of a run is looked for: what the run was given, its secrets, the environment,
    `.env` beside the workflow, `.env` in the current directory; the first that has it wins. One that
    is a permission comes from what the run was given or from the environment of the process."""

    given: Mapping[str, Any]
    secret: Callable[[str], Awaitable[Any]]
    base: str | None
    # The run's own skills: FILE.py or FILE.py:NAME.
    files: tuple[str, ...] = ()

    async def find(self, name: str, variable: str) -> str | None:
        if self.given.get(name) is not None:
            return str(self.given[name])
        if variable in PERMISSIONS:
            return os.environ.get(variable) or None
        for key in dict.fromkeys((name, variable)):
            with suppress(TreadleError, KeyError):
                found = await self.secret(key)
                if isinstance(found, str) and found:
                    return found
        return environment(variable, self.base)


def environment(variable: str, base: str | None) -> str | None:
    """A variable of the process, else of a `.env` file. An empty one is not set."""
    if found := os.environ.get(variable):
        return found
    for folder in dict.fromkeys((base, os.getcwd())):
        file = Path(folder or "") / ".env"
        if folder is not None and file.is_file():
            try:
                value = read_secrets_file(file).get(variable)
            except TreadleError as error:
                # It is the project's file, not ours: what we cannot read in it must not stop a run.
                log.warning("passed over: %s", error.message)
                continue
            if isinstance(value, str) and value:
                return value
    return None


class Skills:
    """The skills of one engine. `learn(name, value)` makes a configured value known as a secret."""

    def __init__(
        self,
        *,
        learn: Learn,
        built_in: Callable[[], Iterable[Skill]] = lambda: (),
        beside: Skills | None = None,
    ) -> None:
        """What is registered `beside` is registered here, and the other way round."""
        self._learn = learn
        self._built_in = built_in
        self._registered: dict[str, Skill] = {} if beside is None else beside._registered
        self._found: dict[str, Skill] | None = None
        self._of_files: dict[str, dict[str, Skill]] = {}

    def register(self, skill: Skill) -> None:
        skill.check()
        if self._registered.get(skill.id, skill) is not skill:
            raise _unusable(f"a skill {skill.id!r} is registered already; give this one another id")
        if not (skill.tools or skill.instruction or skill.mcp):
            raise _unusable(
                f"the skill {skill.id!r} has no tools, no instruction and no MCP server; give it one of them"
            )
        self._registered[skill.id] = skill

    def _known(self) -> dict[str, Skill]:
        if self._found is None:
            self._found = {skill.id: skill for skill in self._built_in()}
            self._found.update(_installed())
        return {**self._found, **self._registered}

    async def load(self, files: Sequence[str]) -> None:
        """Loads the skills of a run's files, in a thread: whatever a module does when it is imported."""
        for target in files:
            if target not in self._of_files:
                try:
                    found = await asyncio.to_thread(skills_in, target)
                except TreadleError as error:
                    raise StaysOpen(error.message) from error
                self._of_files[target] = {skill.id: skill for skill in found}

    def find(
        self, id: str, inline: Mapping[str, Any], base: str | None, files: Sequence[str] = ()
    ) -> Skill | None:
        """The live skill of this id, or None. `inline` is the workflow's own `skills`, `files` those that
        the run was started with, which go before all others."""
        given = [self._of_files[file][id] for file in files if id in self._of_files.get(file, {})]
        known = given[0] if given else self._known().get(id)
        written = discover(id, base)
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

    def unknown(self, id: str, base: str | None) -> str:
        """Why `find` has nothing: the id is not known, or what was written is not usable."""
        _, problems = _written(id, base)
        return (
            f"the skill {id!r} is not usable: {'; '.join(problems)}"
            if problems
            else f"the skill {id!r} is not known here"
        )

    async def config(self, skill: Skill, values: Values) -> dict[str, str]:
        """The skill's settings, as far as they are set. All of them are known as secrets."""
        found = {}
        for name, entry in skill.config.items():
            value = await self._value(name, str(entry.get("env") or name), values)
            if value is not None:
                found[name] = value
        return found

    async def missing_config(self, skill: Skill, values: Values) -> list[str]:
        set_ = await self.config(skill, values)
        return [name for name, entry in skill.config.items() if entry.get("required") and name not in set_]

    async def remarks(self, skill: Skill, id: str, values: Values) -> list[str]:
        """What whoever uses this skill should know: what stood before it and could not be read, and what
        its server is started without."""
        found = [f"for the skill {id!r} passed over: {problem}" for problem in _written(id, values.base)[1]]
        names = dict.fromkeys(_server_variables(skill.mcp or {}))
        unset = [name for name in names if await self._value(name, name, values) is None]
        if unset:
            found.append(f"the server of the skill {id!r} is used without {', '.join(unset)}: not set")
        return found

    async def _value(self, name: str, variable: str, values: Values) -> str | None:
        found = await values.find(name, variable)
        if found is not None:
            self._learn(name, found)
        return found

    async def server(self, skill: Skill, id: str, values: Values) -> McpServer:
        """How to reach the skill's MCP server. `env` in the definition holds descriptions; the
        values come from the environment."""
        mcp = skill.mcp or {}
        env, headers = {}, {}
        for name in mcp.get("env") or {}:
            value = await self._value(name, name, values)
            if value is not None:
                env[name] = value
        for key, text in (mcp.get("headers") or {}).items():
            for name in _VARIABLE.findall(text):
                text = text.replace(f"${{{name}}}", await self._value(name, name, values) or "")
            headers[key] = text
        return McpServer(
            name=id,
            command=mcp.get("command"),
            args=tuple(mcp.get("args") or ()),
            url=mcp.get("url"),
            headers=headers,
            env=env,
            timeout_s=parse_duration(mcp["timeout"]) / 1e9 if "timeout" in mcp else 30.0,
            cwd=values.base,
        )


def _server_variables(mcp: Mapping[str, Any]) -> Iterator[str]:
    yield from mcp.get("env") or {}
    for text in (mcp.get("headers") or {}).values():
        yield from _VARIABLE.findall(str(text))


def is_there(id: str, base: str | None) -> bool | str:
    """Whether a skill is written beside a workflow or here, or installed with a package; or what is
    wrong with what is written."""
    found, problems = _written(id, base)
    return found is not None or id in _installed() or "; ".join(problems) or False


def _installed() -> dict[str, Skill]:
    """The skills of other packages, by id."""
    entries = entry_points(group="treadle.skills")
    return {skill.id: skill for entry in entries for skill in _loaded(entry)}


def _loaded(entry: EntryPoint) -> list[Skill]:
    """The skill or skills of another package. One that cannot be had must not stop those who do
    not use it."""
    try:
        loaded = entry.load()
    except Exception as error:
        log.warning("the skill %s is passed over: %s: %s", entry.name, type(error).__name__, error)
        return []
    found = loaded if isinstance(loaded, list | tuple) else [loaded]
    for other in [item for item in found if not isinstance(item, Skill)]:
        log.warning("%s is passed over: %r is not a Skill", entry.name, other)
    return [item for item in found if isinstance(item, Skill)]


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
        if "url" in kept:
            kept["url"] = without_credentials(str(kept["url"]))
        kept["env"] = sorted(skill.mcp.get("env") or {})
        kept["headers"] = sorted(skill.mcp.get("headers") or {})
        value["mcp"] = kept
    if skill.mcpAliases:
        value["aliases"] = {name: list(names) for name, names in skill.mcpAliases.items()}
    return value


# --- SKILL.md -----------------------------------------------------------------------------------


def discover(id: str, base: str | None) -> Skill | None:
    """A skill written as `<folder>/<id>/SKILL.md`, beside the workflow first, then in the current
    directory; the first folder that has it wins. One that cannot be read is passed over, because
    such folders are shared with other programs."""
    found, problems = _written(id, base)
    for problem in problems:
        log.warning("passed over: %s", problem)
    return found


def _written(id: str, base: str | None) -> tuple[Skill | None, list[str]]:
    """The skill, and what was wrong with those that were passed over."""
    problems: list[str] = []
    if not re.match(SKILL_ID, id):
        return None, problems
    for root in dict.fromkeys((base, os.getcwd())):
        for folder in FOLDERS if root is not None else ():
            path = Path(root or "") / folder / id / "SKILL.md"
            try:
                if path.is_file():
                    return read_skill(path), problems
            except TreadleError as error:
                problems.append(f"{path}: {error.message}")
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"{path}: {error}")
    return None, problems


def read_skill(path: Path) -> Skill:
    """One SKILL.md: its body is the instruction, its front matter name, description, category,
    config, mcp. Its id is the folder's name. Other programs have other fields, and categories."""
    text = path.read_text(encoding="utf-8-sig")
    front: dict[str, Any] = {}
    body = text
    match = re.match(r"---[ \t]*\r?\n(?:(.*?)\r?\n)??---[ \t]*(?:\r?\n|\Z)(.*)", text, re.S)
    if match is not None:
        value = parse(match[1] or "", file=str(path)).value
        if not isinstance(value, dict | None):
            raise _unusable("the front matter is not a mapping")
        front, body = value or {}, match[2]
    category = front.get("category") or "general"
    if category not in CATEGORIES:
        log.warning("%s: there is no category %r; it counts as general", path, category)
        category = "general"
    skill = Skill(
        id=path.parent.name,
        name=str(front.get("name") or path.parent.name),
        description=str(front.get("description") or ""),
        category=category,
        config=front.get("config") or {},
        instruction=body.strip() or None,
        mcp=front.get("mcp"),
    )
    if not (skill.instruction or skill.mcp):
        raise _unusable("it has neither an instruction nor an MCP server")
    return skill


def _unusable(message: str) -> TreadleError:
    return TreadleError(message, cls="definition", code="SKILL_INVALID")
