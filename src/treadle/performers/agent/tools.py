"""The tools of a node: which there are, by what name, and one call of one of them.

A tool that is not idempotent is marked as started, durably, before it is called. If the mark is
there when a call is taken up again, nobody knows whether it took effect: the answer is IN_DOUBT,
and the machine asks a person or the node's policy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from treadle.dialects.agent.model import Node, Workflow
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value, encode, to_value
from treadle.lang.handed import from_caller
from treadle.lang.json_schema import validator
from treadle.work.job import Done, Job, StaysOpen, is_revoked
from treadle.work.raised import named

from .api import McpServer, McpSessions, McpTool, ProviderError, ToolSpec, Visit
from .handlers import progress_of, run_handler
from .payloads import PART_BYTES_MAX, Payloads
from .skill import CleanLogger, Skill, ToolContext
from .skill_finding import Skills, Values

log = logging.getLogger("treadle.agent")
REFUSED_CHARS_MAX = 1000


class Offered(msgspec.Struct, frozen=True):
    """A tool under the name this node's model knows it by; `mcp` is set for a server's tool."""

    name: str
    skill: str
    own_name: str
    description: str
    input_schema: dict[str, Any]
    mcp: McpTool | None = None

    @property
    def long_name(self) -> str:
        return f"{self.skill}__{self.own_name}"


class NodeTools(msgspec.Struct):
    """A tool goes by its own name; one whose name is taken at this node by `<skill>__<tool>`. Calls,
    allow and deny may name any tool by that long name."""

    by_name: dict[str, Offered] = {}
    # Names that are taken, whether or not the node offers the tool.
    taken: set[str] = set()
    # Every name that allow and deny could have meant.
    seen: set[str] = set()

    def add(self, node: Node, tool: Offered) -> None:
        names = {tool.name, tool.own_name, tool.long_name}
        self.taken.add(tool.name)
        self.seen |= names
        # Where two tools have one name, allowing it means the first; denying it means both.
        allowed = node.allow is None or tool.name in node.allow or tool.long_name in node.allow
        if allowed and not names & node.deny:
            self.by_name[tool.name] = tool

    def add_mcp(self, node: Node, tools: Mapping[str, McpTool]) -> None:
        for tool in tools.values():
            self.add(
                node,
                Offered(tool.name, tool.server, tool.own_name, tool.description, tool.input_schema, tool),
            )

    def specs(self) -> list[ToolSpec]:
        """Those that the node offers, as its model is told of them."""
        return [ToolSpec(tool.name, tool.description, tool.input_schema) for tool in self.by_name.values()]

    def find(self, name: str) -> Offered | None:
        by_long_name = (tool for tool in self.by_name.values() if tool.long_name == name)
        return self.by_name.get(name) or next(by_long_name, None)

    def known_as(self, name: str) -> str:
        """The name that everybody sees: a tool called by its long name is the same tool."""
        found = self.find(name)
        return found.name if found is not None else name

    def unmatched(self, node: Node) -> list[str]:
        """N9: entries of allow and deny that name no tool are probably misspelt."""
        named = sorted((node.allow or frozenset()) | node.deny)
        return [f"tools: {name!r} matches no tool of this node" for name in named if name not in self.seen]


def node_tools(node: Node, skills: Mapping[str, Mapping[str, Any]]) -> NodeTools:
    """The skill tools of a node; those of unlisted skills are not there at all."""
    found = NodeTools()
    for id in node.skills:
        for tool in (skills.get(id) or {}).get("tools", ()):
            own = tool["name"]
            name = own if own not in found.taken else f"{id}__{own}"
            found.add(node, Offered(name, id, own, tool["description"], tool["input_schema"]))
    return found


@dataclass(slots=True)
class ToolWork:
    skills: Skills
    mcp: McpSessions
    config_of: Callable[[str], Mapping[str, Any]]
    payloads: Payloads
    redact: Callable[[str], str]
    # Those that handlers write to, by skill.
    _loggers: dict[str, CleanLogger] = field(default_factory=dict)

    def values(self, job: Job) -> Values:
        files = tuple(job.options.get("skills") or ())
        return Values(self.config_of(job.run), job.secret, job.options.get("base"), files)

    async def find(self, job: Job, workflow: Workflow, id: str) -> Skill | None:
        """The live skill of this id, as this run has it."""
        files = job.options.get("skills") or ()
        await self.skills.load(files)
        return self.skills.find(id, workflow.body.get("skills") or {}, job.options.get("base"), files)

    async def servers(
        self, job: Job, workflow: Workflow, node: Node, skills: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, McpServer]:
        """The MCP servers of this node's own skills, by skill id."""
        found: dict[str, McpServer] = {}
        for id in node.skills:
            if "mcp" not in (skills.get(id) or {}):
                continue
            skill = await self.find(job, workflow, id)
            if skill is None or skill.mcp is None:
                raise StaysOpen(f"the skill {id!r} is not registered here")
            found[id] = await self.skills.server(skill, id, self.values(job))
        return found

    async def call(self, job: Job) -> Done:
        key = Visit(job.run, job.intent.params["session"])
        try:
            done = await self._call(job, key)
        except asyncio.CancelledError:
            await self.mcp.release(key)
            raise
        if job.intent.params.get("last"):
            await self.mcp.release(key)
        return done

    async def _call(self, job: Job, key: Visit) -> Done:
        params = job.intent.params
        workflow: Workflow = await job.load_definition()
        node = workflow.nodes[params["node"]]
        setup = await self.payloads.load(job, params["setup"])
        skills = await self.payloads.load(job, setup["skills"])
        tools = node_tools(node, skills)
        # A copy: stored values are shared, and a handler may change what it is given.
        input = to_value(await self.payloads.load(job, params["input"]))
        servers = await self.servers(job, workflow, node, skills)
        if tools.find(params["tool"]) is None and servers:
            try:
                session = await self.mcp.open(key, servers, list(tools.taken))
            except ProviderError as error:
                # Without its server nobody knows whether the tool may be repeated.
                return _in_doubt() if _was_started(job) else _error(error.message)
            tools.add_mcp(node, session.tools)
        offered = tools.find(params["tool"])
        if offered is None:
            known = ", ".join(tools.by_name) or "none"
            done = _error(f"there is no tool {params['tool']!r} at this node; there are: {known}")
            # One that the node may not use is the author's choice; one that is nowhere is a mistake.
            return done if params["tool"] in tools.seen else Done(value={**done.value, "absent": True})
        refused = _refused(offered.input_schema, input)
        if refused is not None:
            return _error(refused)
        if offered.mcp is not None:
            mcp_tool = offered.mcp

            async def use_server() -> Value:
                return await session.call(mcp_tool, input)

            return await self._guarded(job, offered.mcp.idempotent, use_server)
        given = await self.payloads.load(job, setup["input"])
        options = dict(job.options)
        if isinstance(given, dict) and given.get("dryRun") is True:
            options["dry_run"] = True
        return await self._call_skill(job, workflow, offered, input, options)

    async def _call_skill(
        self, job: Job, workflow: Workflow, offered: Offered, input: Value, options: Mapping[str, Any]
    ) -> Done:
        skill = await self.find(job, workflow, offered.skill)
        tool = skill.tools.get(offered.own_name) if skill is not None else None
        if skill is None or tool is None:
            raise StaysOpen(
                f"the tool {offered.own_name!r} of the skill {offered.skill!r} is not registered here"
            )
        if missing := await self.skills.missing_config(skill, self.values(job)):
            raise StaysOpen(f"the skill {offered.skill!r} is not configured here: {', '.join(missing)}")
        running: list[asyncio.Future[None]] = []
        context = ToolContext(
            config=await self.skills.config(skill, self.values(job)),
            logger=self._logger(offered.skill),
            idempotency_key=job.idempotency_key,
            run_id=job.run,
            node=job.intent.params["node"],
            progress=progress_of(job, running),
            base=job.options.get("base"),
            _options=options,
        )

        async def use_handler() -> Value:
            try:
                return await run_handler(tool, input, context, job.late)
            finally:
                await asyncio.gather(*running)

        return await self._guarded(job, tool.idempotent, use_handler)

    def _logger(self, skill: str) -> CleanLogger:
        if (found := self._loggers.get(skill)) is None:
            found = self._loggers[skill] = CleanLogger(log.getChild(skill), self.redact)
        return found

    async def _guarded(self, job: Job, idempotent: bool, use: Callable[[], Any]) -> Done:
        if not idempotent:
            if _was_started(job):
                return _in_doubt()
            await job.save({"started": True}, durable=True)
        try:
            output = from_caller(await use())
            encode(output)
        except StaysOpen:
            raise
        except TreadleError as error:
            return _error(error.message)
        except BaseException as error:
            if is_revoked(error):
                raise
            # A tool may raise anything; the model is told, and the run goes on (S32).
            return _error(named(error))
        return Done(value={"output": await self.payloads.slim(job, output, PART_BYTES_MAX)})


def _was_started(job: Job) -> bool:
    marked = isinstance(job.checkpoint, dict) and bool(job.checkpoint.get("started"))
    return marked or job.intent.params.get("doubtful") is True


def _in_doubt() -> Done:
    error = TreadleError("the call was interrupted and may have taken effect", code="IN_DOUBT")
    return Done(status="error", error=error.to_value())


def _error(message: str) -> Done:
    text = message if len(message) <= 4000 else message[:3999] + "…"
    return Done(value={"error": text.encode("utf-8", "replace").decode()})


def _refused(schema: dict[str, Any], input: Value) -> str | None:
    """K4: why an input does not fit the tool's schema, or None."""
    if not isinstance(input, dict):
        return "invalid input: a tool takes an object"
    try:
        problems = [
            f"{'.'.join(map(str, error.absolute_path)) or 'input'}: {error.message}"
            for error in validator(schema).iter_errors(input)
        ]
    except Exception as error:  # a server may publish a schema that cannot be applied
        return f"invalid input: the tool's schema cannot be applied: {error}"
    return f"invalid input: {'; '.join(problems)[:REFUSED_CHARS_MAX]}" if problems else None
