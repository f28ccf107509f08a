"""A skill: tools, an instruction, an MCP server, or any of these together.

net = Skill("net", name="Network", description="…", category="observability",
            config={"NET_KEY": {"description": "…", "required": True, "env": "NET_KEY"}})

@net.tool("ping", description="…", input_schema={"type": "object"})
async def ping(input: dict, ctx: ToolContext) -> Any: ...
"""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator

from treadle.dialects.agent.schema import SKILL
from treadle.kernel.errors import DefinitionError

Handler = Callable[[dict[str, Any], "ToolContext"], Any]
_SHAPE = Draft202012Validator(SKILL)


@dataclass(slots=True, kw_only=True)
class ToolContext:
    """What a handler may know besides its input. `progress(text)` reports what is going on, from a
    coroutine or from a thread; it can be awaited but need not be. A tool that hands
    `idempotency_key` on, or does no harm when repeated, should be marked `idempotent=True`."""

    config: Mapping[str, str]
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger]
    idempotency_key: str
    run_id: str
    node: str
    progress: Callable[[str], Any]
    # Folder of the workflow's file, if it came from one.
    base: str | None = None


class CleanLogger(logging.LoggerAdapter[logging.Logger]):
    """A handler's logger: what it writes is cleaned of secrets before anybody sees it."""

    def __init__(self, logger: logging.Logger, redact: Callable[[str], str]) -> None:
        super().__init__(logger, {})
        self._redact = redact

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            text = str(msg) % args if args else str(msg)
            # A traceback may hold a secret too, so it becomes part of the text that is cleaned.
            if kwargs.pop("exc_info", None):
                text += "\n" + traceback.format_exc()
            self.logger.log(level, "%s", self._redact(text), **kwargs)


@dataclass(frozen=True, slots=True)
class SkillTool:
    name: str
    description: str
    input_schema: dict[str, Any]
    idempotent: bool
    handler: Handler
    validator: Draft202012Validator

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)


@dataclass(slots=True)
class Skill:
    """Its fields are those of skill.json; tools are added with the decorator `tool`."""

    id: str
    name: str = ""
    description: str = ""
    category: str = "general"
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    instruction: str | None = None
    mcp: Mapping[str, Any] | None = None
    aliases: Mapping[str, list[str]] = field(default_factory=dict)
    tools: dict[str, SkillTool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.name or self.id
        spec = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "category": self.category,
            "config": {name: dict(entry) for name, entry in self.config.items()},
            # Tools come later, by the decorator; an empty list stands in for them here.
            "tools": [],
        }
        if self.mcp is not None:
            spec["mcp"] = dict(self.mcp)
        problems = [f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in _SHAPE.iter_errors(spec)]
        if problems:
            raise DefinitionError(
                f"the skill {self.id!r} is not valid: {'; '.join(problems)}", code="SKILL_INVALID"
            )

    def tool(
        self,
        name: str,
        *,
        description: str = "",
        input_schema: dict[str, Any] | None = None,
        idempotent: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Adds a tool: `async def` (or `def`, which runs in a thread) of `(input, ctx)`."""
        schema = {"type": "object"} if input_schema is None else input_schema
        Draft202012Validator.check_schema(schema)

        def add(handler: Handler) -> Handler:
            text = description or inspect.getdoc(handler) or ""
            self.tools[name] = SkillTool(
                name, text, schema, idempotent, handler, Draft202012Validator(schema)
            )
            return handler

        return add
