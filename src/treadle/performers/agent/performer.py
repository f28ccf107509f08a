"""Performers of the agent dialect: step 0, model turns, tool calls, routes, judges.

Each does one thing that the machine asked for and returns what the machine needs to know, never
more: what is large is stored, and only its reference travels. They keep nothing between intents
but caches and the MCP sessions of visits in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from treadle.dialects.agent import routing, sources
from treadle.dialects.agent.context import routing_view
from treadle.dialects.agent.evals import judge_question, reflect_question
from treadle.dialects.agent.model import Node, Workflow
from treadle.dialects.agent.visiting import STATUSES
from treadle.kernel.model import is_reference
from treadle.kernel.values import Value, encode, to_value
from treadle.work.job import Done, Job, StaysOpen

from .api import (
    AskReply,
    AskRequest,
    ChooseReply,
    ChooseRequest,
    McpSessions,
    Provider,
    ProviderError,
    TurnReply,
    TurnRequest,
    Visit,
)
from .functions import FunctionWork
from .models import prices
from .payloads import DATA_BYTES_MAX, PART_BYTES_MAX, Payloads, stays_inline, wants_chunk
from .questions import QUESTION
from .replies import checked_calls, reply_of, status_of, storable, text_of, usage_of, written
from .skill_finding import Skills, Values, recorded
from .sources import Fetch, resolve_all
from .tools import NodeTools, ToolWork, node_tools

CALLS_INLINE_BYTES_MAX: Final = 32 * 1024
SETUP_BYTES_MAX: Final = 24 * 1024
INPUT_BYTES_MAX: Final = 64 * 1024
# Each is no larger than these together.
SETUPS_MAX: Final = 64
NO_TOOLS: Final = NodeTools()
# Who was asked, as a trace says it.
MODEL: Final = "gen_ai.request.model"
# What helps where a skill is nowhere to be had.
REMEDY: Final = "register it, give --skills FILE.py, or set skills_optional: true to go on without it"


@dataclass(frozen=True, slots=True)
class Setup:
    """What step 0 found: the input, ResolvedSources by field path, skills by id."""

    input: Value
    sources: Mapping[str, Mapping[str, Any]]
    skills: Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class AgentWork:
    """The performers and what they need. `provider(spec)` gives the provider of a run, `fetch`
    makes a fetcher from the workflow's `fetch` settings, `config_of(run)` what a run was given."""

    provider: Callable[[Mapping[str, Any]], Provider]
    skills: Skills
    mcp: McpSessions
    fetch: Callable[[Mapping[str, Any], Job], Fetch]
    config_of: Callable[[str], Mapping[str, Any]] = lambda run: {}
    # Cleans what a tool logs; everything else is cleaned where it leaves the worker.
    redact: Callable[[str], str] = str
    # A function that was registered with the engine, by its name.
    registered: Callable[[str], Callable[..., Any] | None] = lambda name: None
    payloads: Payloads = field(default_factory=Payloads)
    tools: ToolWork = field(init=False)
    functions: FunctionWork = field(init=False)
    _setups: dict[str, Setup] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tools = ToolWork(self.skills, self.mcp, self.config_of, self.payloads, self.redact)
        self.functions = FunctionWork(self.payloads, self.registered, self.redact)

    # --- step 0, and the end ---

    async def source(self, job: Job) -> Done:
        match job.intent.params["op"]:
            case "seal":
                return await self._seal(job)
            case "merge":
                return await self._merge(job)
        workflow: Workflow = await job.load_definition()
        base = job.options.get("base")
        input = await self.payloads.load(job, job.intent.params["input"])
        wanted = sources.fields(workflow, input, job.options.get("templates") or {})
        resolved = await resolve_all(
            wanted,
            base=base,
            offline=bool(job.options.get("offline")),
            fetch=self.fetch(workflow.body.get("fetch") or {}, job),
            known=workflow.inline,
        )
        if not workflow.inline:
            own = ((path, resolved[path]) for path in workflow.texts)
            workflow.inline.update((path, source) for path, source in own if source["kind"] == "inline")
        found, warnings, absent = await self._resolve_skills(workflow, resolved, self.tools.values(job))
        slim = await self.payloads.slim(job, resolved, SETUP_BYTES_MAX)
        skills = await self.payloads.slim(job, found, SETUP_BYTES_MAX)
        # An input may look like a reference; then it is stored, and the reference is ours.
        given = await self.payloads.slim(job, input, INPUT_BYTES_MAX)
        setup = await self.payloads.store(job, {"input": given, "sources": slim, "skills": skills})
        long = {
            path: await self.payloads.store(job, source["content"])
            for path, source in resolved.items()
            if len(source["content"]) > DATA_BYTES_MAX
        }
        value = {"setup": setup, "sources": slim, "long": long, "skills": skills, "warnings": warnings}
        return Done(value={**value, "absent": absent} if absent else value)

    async def _setup(self, job: Job) -> Setup:
        """What step 0 found, as this intent's run recorded it. Every turn asks: the last small ones are kept."""
        reference = job.intent.params["setup"]
        if (kept := self._setups.get(reference["checksum"])) is not None:
            return kept
        stored = await self.payloads.load(job, reference)
        parts = [stored["input"], stored["sources"], stored["skills"]]
        setup = Setup(*[await self.payloads.load(job, part) for part in parts])
        if not any(is_reference(part) for part in parts):
            if len(self._setups) >= SETUPS_MAX:
                self._setups.clear()
            self._setups[reference["checksum"]] = setup
        return setup

    async def _resolve_skills(
        self, workflow: Workflow, resolved: Mapping[str, Mapping[str, Any]], values: Values
    ) -> tuple[dict[str, Any], dict[str, list[str]], dict[str, list[str]]]:
        """What is recorded of each skill; what to warn of at each node; and why a node cannot work here."""
        inline = workflow.body.get("skills") or {}
        await self.skills.load(values.files)
        if not workflow.skilled:
            return {}, {}, {}
        nowhere: dict[str, str] = {}
        found: dict[str, Any] = {}
        left_out: dict[str, str] = {}
        remarks: dict[str, list[str]] = {}
        for node in workflow.nodes.values():
            for id in node.skills:
                if id in found or id in left_out:
                    continue
                skill = self.skills.find(id, inline, values.base, values.files)
                if skill is None:
                    nowhere[id] = self.skills.unknown(id, values.base)
                    left_out[id] = f"{nowhere[id]}; the node runs without it"
                elif missing := await self.skills.missing_config(skill, values):
                    left_out[id] = (
                        f"the skill {id!r} is not configured ({', '.join(missing)}); the node runs without it"
                    )
                else:
                    written = resolved.get(f"skills.{id}.instruction")
                    own = skill.instruction or (written["content"] if written else None)
                    found[id] = recorded(skill, id, own)
                    remarks[id] = await self.skills.remarks(skill, id, values)
        told = {**remarks, **{id: [message] for id, message in left_out.items()}}
        warnings = {
            node.id: [message for id in dict.fromkeys(node.skills) for message in told[id]]
            for node in workflow.nodes.values()
        }
        absent = {
            node.id: [f"{nowhere[id]}; {REMEDY}" for id in node.skills if id in nowhere]
            for node in workflow.nodes.values()
            if node.by_model and not node.skills_optional and not nowhere.keys().isdisjoint(node.skills)
        }
        told_of = {id: messages for id, messages in warnings.items() if messages and id not in absent}
        return found, told_of, absent

    async def _merge(self, job: Job) -> Done:
        """Puts a little onto a node's large data; see `leaving.py`."""
        params = job.intent.params
        found = await self.payloads.load(job, params["onto"])
        return Done(value={"stored": await self.payloads.store(job, {**found, **params["extra"]})})

    async def _seal(self, job: Job) -> Done:
        """Puts a slice of a long result onto what is stored of it already; see `sealing.py`."""
        params = job.intent.params
        onto = params["onto"]
        whole = await self.payloads.load(job, onto) if onto is not None else None
        whole = whole or {"results": {}, "trace": {"steps": [], "edges": [], "sources": {}}}
        results, trace = dict(whole["results"]), dict(whole["trace"])
        for node, result in params["results"].items():
            plain = {**result, "data": await self.payloads.load(job, result["data"])}
            plain["toolCalls"] = await self.payloads.plain_calls(job, result["toolCalls"])
            results[node] = plain
        trace["steps"] = [*trace["steps"], *params["steps"]]
        trace["edges"] = [*trace["edges"], *params["edges"]]
        if params["last"]:
            trace["sources"] = await self.payloads.load(job, params["sources"])
            trace["usage"] = params["usage"]
        stored = await self.payloads.store(job, {"results": results, "trace": trace})
        value = {"stored": stored}
        if params["last"]:
            value["results"] = await self.payloads.store(job, results)
        return Done(value=value)

    # --- turns ---

    def _provider(self, job: Job) -> Provider:
        try:
            return self.provider(job.options)
        except ProviderError as error:
            # The run was started where the provider is registered, or installed; it goes on there.
            if error.code in ("UNKNOWN_PROVIDER", "EXTRA_MISSING") and job.options.get("model"):
                raise StaysOpen(error.message) from error
            raise

    async def model(self, job: Job) -> Done:
        params = job.intent.params
        workflow: Workflow = await job.load_definition()
        node = workflow.nodes[params["node"]]
        setup = self._setups.get(params["setup"]["checksum"]) or await self._setup(job)
        provider = self._provider(job)
        model = node.model or workflow.model or getattr(provider, "default_model", None)
        if job.span is not None and model:
            job.span.note({MODEL: model})
        tools = NO_TOOLS
        if node.skills:
            tools = node_tools(node, setup.skills)
            reply, value = await self._turn_with_skills(job, workflow, node, setup, provider, model, tools)
        else:
            request = self._request(job, node, setup, NO_TOOLS, model)
            reply = reply_of(await provider.turn(request), TurnReply)
            value = await self._turn_value(job, provider, reply, NO_TOOLS)
        if params["turn"] == 1:
            value["warnings"] = tools.unmatched(node) if node.allow or node.deny else []
            if workflow.budget is not None or node.budget is not None:
                value["warnings"] += _unpriced(workflow, node, model, reply)
        # All of it was made or copied here, so that it need not be copied again; a plain result is small, too.
        if value.get("status") in STATUSES and not value.get("warnings"):
            return Done(value=value, is_canonical=True)
        return Done(value=value, body=encode(value))

    async def _turn_with_skills(
        self,
        job: Job,
        workflow: Workflow,
        node: Node,
        setup: Setup,
        provider: Provider,
        model: str | None,
        tools: NodeTools,
    ) -> tuple[TurnReply, dict[str, Any]]:
        """A turn for which servers may have to be there."""
        key = None
        if servers := await self.tools.servers(job, workflow, node, setup.skills):
            key = Visit(job.run, job.intent.params["session"])
            session = await self.mcp.open(key, servers, list(tools.taken))
            tools.add_mcp(node, session.tools)
        request = self._request(job, node, setup, tools, model)
        if servers:
            request.mcp_servers = sorted(servers)
        goes_on = False
        try:
            reply = reply_of(await provider.turn(request), TurnReply)
            value = await self._turn_value(job, provider, reply, tools)
            goes_on = bool(reply.calls)
        except ProviderError as error:
            goes_on = error.details.get("retryable") is True
            raise
        finally:
            # The servers outlive a turn for the calls it asked for, and for its repetition.
            if key is not None and not goes_on:
                await self.mcp.release(key)
        return reply, value

    def _request(
        self, job: Job, node: Node, setup: Setup, tools: NodeTools, model: str | None
    ) -> TurnRequest:
        params = job.intent.params

        async def context() -> dict[str, Any]:
            found = await self.payloads.context(job, setup.input, params["base"], params["own"])
            if "approval" in params:
                found["approval"] = await self.payloads.load(job, params["approval"])
            return _copied(found)

        async def history() -> list[dict[str, Any]]:
            return [to_value(message) for message in await self._history(job, params.get("history"))]

        async def progress(message: str) -> None:
            await job.progress("node:progress", node=node.id, message=message)

        return TurnRequest(
            node=node.id,
            iteration=params["iteration"],
            attempt=params["attempt"],
            turn=params["turn"],
            nth=params["nth"],
            instruction=sources.assemble(node, setup.sources, setup.skills, params.get("preamble")),
            tools=tools.specs() if tools.by_name else [],
            model=model,
            max_turns=node.max_turns,
            output_schema=node.output,
            disallowed_tools=node.disallowed_tools,
            results=to_value(params["results"]) if "results" in params else (),
            context=context,
            history=history,
            progress=progress,
        )

    async def _history(self, job: Job, reference: Value) -> list[dict[str, Any]]:
        """The messages of earlier turns, oldest first; the last answer's results come behind them."""
        messages: list[dict[str, Any]] = []
        while reference is not None:
            link = await self.payloads.load(job, reference)
            messages[:0] = link["messages"]
            reference = link["before"]
        results = job.intent.params.get("results")
        if results:
            messages.append({"role": "tool", "results": await self.payloads.plain_calls(job, results)})
        return messages

    async def _turn_value(
        self, job: Job, provider: Provider, reply: TurnReply, tools: NodeTools
    ) -> dict[str, Any]:
        params = job.intent.params
        value: dict[str, Any] = {"usage": usage_of(reply.usage)}
        if wants_chunk(own := params["own"]):
            value["own"] = await self.payloads.chunk(job, own)
        if reply.text:
            value["text"] = text_of(reply.text)[:PART_BYTES_MAX]
        if not reply.calls:
            data, body = written(reply.data)
            # Most answers are small: no coroutine is made for them.
            stays = stays_inline(body, DATA_BYTES_MAX)
            value["data"] = data if stays else await self.payloads.slim(job, data, DATA_BYTES_MAX, body)
            value["status"] = status_of(reply.status)
            return value
        calls = [
            {
                "id": text_of(call.get("id") or ""),
                "tool": tools.known_as(text_of(call["tool"])),
                "input": await self.payloads.slim(job, storable(call.get("input")), PART_BYTES_MAX),
            }
            for call in checked_calls(reply.calls)
        ]
        value["calls"] = calls
        if len(encode(calls)) > CALLS_INLINE_BYTES_MAX:
            value["calls"] = await self.payloads.store(job, calls)
        if getattr(provider, "keeps_history", None):
            said = {"role": "assistant", "text": reply.text, "calls": reply.calls, "native": reply.native}
            messages = [storable(said)]
            if params.get("results"):
                messages.insert(0, {"role": "tool", "results": params["results"]})
            link = {"before": params.get("history"), "messages": messages}
            value["history"] = await self.payloads.store(job, link)
        return value

    # --- routes and questions ---

    async def route(self, job: Job) -> Done:
        params = job.intent.params
        workflow: Workflow = await job.load_definition()
        setup = await self._setup(job)
        provider = self._provider(job)

        async def context() -> dict[str, Any]:
            whole = await self.payloads.context(job, setup.input, params["base"], params["own"])
            return _copied(routing_view(workflow, whole))

        choices = routing.choices([workflow.edges[index] for index in params["edges"]])
        asked = ChooseRequest(
            node=params["node"],
            iteration=params["iteration"],
            nth=params["nth"],
            question=QUESTION,
            choices=choices,
            model=workflow.model or getattr(provider, "default_model", None),
            context=context,
        )
        reply = reply_of(await provider.choose(asked), ChooseReply)
        value: dict[str, Any] = {"choice": storable(reply.choice), "usage": usage_of(reply.usage)}
        if wants_chunk(own := params["own"]):
            value["own"] = await self.payloads.chunk(job, own)
        return Done(value=value)

    async def ask(self, job: Job) -> Done:
        params = job.intent.params
        workflow: Workflow = await job.load_definition()
        node = workflow.nodes[params["node"]]
        provider = self._provider(job)
        data = await self.payloads.load(job, params["data"])
        model = params["model"]
        if params["op"] == "judge":
            calls = await self.payloads.plain_calls(job, params["calls"])
            question = judge_question(node.evaluators[params["evaluator"]], data, calls)
            model = model or getattr(provider, "small_model", None)
        else:
            assert node.retry is not None
            written = (await self._setup(job)).sources.get(node.told_by)
            base = str(written["content"]) if written else ""
            question = reflect_question(node.retry, base, data, params["evals"])
            model = model or getattr(provider, "default_model", None)
        counts = {"nth": params["nth"], "node": node.id, "node_nth": params.get("node_nth", 1)}
        if job.span is not None and model:
            job.span.note({MODEL: model})
        asked = AskRequest(instruction=question, model=model, **counts)
        reply = reply_of(await provider.ask(asked), AskReply)
        text = await self.payloads.slim(job, text_of(reply.text), DATA_BYTES_MAX)
        return Done(value={"text": text, "usage": usage_of(reply.usage)})

    # --- calls ---

    async def call(self, job: Job) -> Done:
        return await (self.functions if "run" in job.intent.params else self.tools).call(job)


def _unpriced(workflow: Workflow, node: Node, model: str | None, reply: TurnReply) -> list[str]:
    """A budget in dollars that cannot count: better said once than never stopped."""
    capped = any(budget is not None and budget.usd is not None for budget in (workflow.budget, node.budget))
    if not capped or "usd" in reply.usage or not any(reply.usage.values()):
        return []
    name = model or "this model"
    if prices.cost(model, input_tokens=0, output_tokens=0) is not None:
        return [
            f"the provider reports tokens of {name} without a price: the usd budget does not count them; "
            "let it give `usd` with its usage"
        ]
    return [f"no price is known for {name}: the usd budget does not count it; set TREADLE_PRICES"]


def _copied(context: Mapping[str, Value]) -> dict[str, Any]:
    """A provider's own: stored values are shared, and it may change what it is given."""
    return {name: to_value(value) for name, value in context.items()}
