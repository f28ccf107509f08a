"""A skill: tools, an instruction, an MCP server, or any of these together.

net = Skill("net", name="Network", description="…", category="observability",
            config={"NET_KEY": {"description": "…", "required": True, "env": "NET_KEY"}})

@net.tool("ping", description="…", input_schema={"type": "object"})
async def ping(input: dict, ctx: ToolContext) -> Any: ...
"""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from jsonschema import Draft202012Validator

from treadle.dialects.agent.schema import SKILL
from treadle.kernel.errors import DefinitionError, ValueRefused
from treadle.kernel.values import encode
from treadle.lang.duration import parse_duration
from treadle.lang.schema_problems import schema_problem

Handler = Callable[[dict[str, Any], "ToolContext"], Any]
_SHAPE = Draft202012Validator(SKILL)
_TOOL = Draft202012Validator(SKILL["properties"]["tools"]["items"])


class ToolContext(msgspec.Struct, kw_only=True):
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
    # For our own skills: the settings of the run, which a run that a tool starts has to share.
    _options: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        """Without its settings, which hold secrets, and those of the run."""
        return f"ToolContext(run_id={self.run_id!r}, node={self.node!r})"


class CleanLogger(logging.LoggerAdapter[logging.Logger]):
    """A handler's logger: what it writes is cleaned of secrets before anybody sees it."""

    def __init__(self, logger: logging.Logger, redact: Callable[[str], str]) -> None:
        super().__init__(logger, {})
        self._redact = redact

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        record = logging.LogRecord(self.logger.name, level, "", 0, msg, args, None)
        try:
            text = record.getMessage()
        except Exception:  # as in the standard library: a wrong format costs the line, not the tool
            text = f"{msg} {args}"
        # A traceback may hold a secret too, so it becomes part of the text that is cleaned.
        if error := kwargs.pop("exc_info", None):
            found = error if isinstance(error, BaseException) else sys.exception()
            text += "\n" + "".join(traceback.format_exception(found)) if found is not None else ""
        self.logger.log(level, "%s", self._redact(text), **kwargs)


@dataclass(frozen=True, slots=True)
class SkillTool:
    name: str
    description: str
    input_schema: dict[str, Any]
    idempotent: bool
    handler: Handler
    timeout_s: float | None = None
    # Whether it is awaited, and needs no thread; every call asks.
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        call = getattr(self.handler, "__call__", None)  # noqa: B004, an object may be called, too
        waits = inspect.iscoroutinefunction(self.handler) or inspect.iscoroutinefunction(call)
        object.__setattr__(self, "is_async", waits)


@dataclass(slots=True)
class Skill:
    """Its fields are those of skill.json; tools are added with the decorator `tool`. What does not
    fit is refused at once, with all that is wrong."""

    id: str
    name: str = ""
    description: str = ""
    category: str = "general"
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    instruction: str | None = None
    mcp: Mapping[str, Any] | None = None
    # As skill.json writes it: a tool's own name, and the names an MCP server may have for it.
    mcpAliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tools: dict[str, SkillTool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.name or self.id
        self.check()

    def spec(self) -> dict[str, Any]:
        """The skill as skill.json has it."""
        found: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "category": self.category,
            "config": _plain(self.config),
            "tools": [
                {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                for tool in self.tools.values()
            ],
        }
        if self.instruction is not None:
            found["instruction"] = self.instruction
        if self.mcp is not None:
            found["mcp"] = _plain(self.mcp)
        if self.mcpAliases:
            found["mcpAliases"] = _plain(self.mcpAliases)
        return found

    def check(self) -> None:
        """Refuses what skill.json's schema does not allow."""
        if not isinstance(self.tools, dict):
            raise _invalid(f"the skill {self.id!r}: add tools with its decorator `tool`")
        spec = self.spec()
        _refuse(f"the skill {self.id!r}", _SHAPE, spec)
        try:
            parse_duration(spec.get("mcp", {}).get("timeout", 0))
        except (DefinitionError, ValueError, OverflowError) as error:
            raise _invalid(f"the skill {self.id!r}: mcp.timeout: {error}") from error

    def tool(
        self,
        name: str,
        *,
        description: str = "",
        input_schema: dict[str, Any] | None = None,
        idempotent: bool = False,
        timeout: float | None = None,
    ) -> Callable[[Handler], Handler]:
        """Adds a tool: `async def` (or `def`, which runs in a thread) of `(input, ctx)`. One that
        takes longer than `timeout` seconds has failed, and the model is told."""
        schema = {"type": "object"} if input_schema is None else input_schema
        label = f"the tool {name!r} of the skill {self.id!r}"
        _refuse(label, _TOOL, {"name": name, "description": description, "input_schema": schema})
        _check_schema(label, schema)
        if name in self.tools:
            raise _invalid(f"{label} is there already; give it another name")
        if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < float("inf")):
            raise _invalid(f"{label}: timeout is a number of seconds above 0, not {timeout!r}")

        def add(handler: Handler) -> Handler:
            if not callable(handler):
                raise _invalid(f"{label} needs a function, not {type(handler).__name__}")
            text = description or inspect.getdoc(handler) or ""
            self.tools[name] = SkillTool(name, text, schema, idempotent, handler, timeout)
            return handler

        return add


def _check_schema(label: str, schema: dict[str, Any]) -> None:
    if found := schema_problem(schema):
        place, message = found
        raise _invalid(f"{label}: {'.'.join(map(str, ('input_schema', *place)))}: {message[:300]}")
    try:
        encode(schema)
    except ValueRefused as error:
        raise _invalid(f"{label}: input_schema cannot be stored: {error.message}") from error


def _refuse(label: str, shape: Draft202012Validator, spec: Mapping[str, Any]) -> None:
    problems = [
        f"{'.'.join(map(str, error.absolute_path)) or 'it'}: {error.message[:200]}"
        for error in shape.iter_errors(spec)
    ]
    if problems:
        raise _invalid(f"{label} is not valid: {'; '.join(problems)}")


def _plain(value: Any) -> Any:
    """Mappings and sequences of any kind, as the schema knows them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _invalid(message: str) -> DefinitionError:
    return DefinitionError(message, code="SKILL_INVALID")
