"""The agent dialect's outside of one engine: its skills, its providers, its MCP sessions.

Optional libraries are imported when the first run needs them; a workflow that only uses the
scripted model needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from treadle.dialects.agent.model import Workflow
from treadle.dialects.agent.sources import fields, given_fields
from treadle.kernel.model import OpenIntent, is_reference
from treadle.kernel.values import Value
from treadle.secrets import logs as clean_logs
from treadle.secrets.providers import Secrets
from treadle.work.job import Done, Job
from treadle.work.performers import Performs

from .api import McpServer, McpSession, ProviderError, Visit
from .models import Providers
from .performer import AgentWork
from .skill_finding import Skills
from .sources import Fetch

if TYPE_CHECKING:
    from .skills.built_in import Home
    from .visits import VisitSessions, Watched

    class Host(Home, Watched, Protocol):
        """What is needed of the engine."""

        @property
        def transports(self) -> Functions: ...

    class Functions(Protocol):
        def function(self, name: str) -> Callable[..., Any] | None: ...


class Agents:
    """`models` is the engine's own registry, `configs` what runs were given, by run id."""

    def __init__(
        self,
        models: Mapping[str, Any],
        secrets: Secrets,
        configs: Mapping[str, Mapping[str, Any]],
        runs: Host,
        *,
        beside: Agents | None = None,
    ) -> None:
        """What was registered, or given with a run, `beside` in this process is known here, too."""
        self._models = models
        self._secrets = secrets
        self._runs = runs
        clean_logs.knows(secrets)
        self._mcp = _LazyMcp(runs)
        near = None if beside is None else beside.skills
        self.skills: Skills = Skills(learn=self._learn, built_in=self._built_in, beside=near)
        self.providers: Providers = (
            Providers(models, resolve=secrets.resolve, learn=self._learn)
            if beside is None
            else beside.providers
        )
        self.work = AgentWork(
            provider=self.providers.get,
            skills=self.skills,
            mcp=self._mcp,
            fetch=self._fetch,
            config_of=lambda run: configs.get(run, {}),
            redact=secrets.redact,
            registered=runs.transports.function,
        )

    def _learn(self, name: str, value: str) -> Any:
        return self._secrets.learn(name, value)

    def _built_in(self) -> Any:
        from .skills.built_in import built_in

        return built_in(self._runs)

    def _fetch(self, settings: Mapping[str, Any], job: Job) -> Fetch:
        async def fetch(url: str) -> tuple[str, str]:
            from .skills.fetch import fetcher

            return await fetcher(settings, job.secret, self._learn)(url)

        return fetch

    def performs(self) -> list[Performs]:
        return [
            Performs("source", self._source, _all_inline),
            Performs(
                *("model", self.work.model, self._is_instant),
                at_once=self._answers_at_once,
                pure=self._is_pure,
                reads=True,
            ),
            Performs("call", self.work.call, reads=True),
            Performs("route", self.work.route, at_once=self._answers_at_once, reads=True),
            Performs("ask", self.work.ask, at_once=self._answers_at_once),
        ]

    async def _source(self, job: Job) -> Done:
        """Step 0. Whether it waits is decided without the run's options; templates are among them, and
        may have to be read or fetched all the same. Then a worker's thread gets a loop for it."""
        if not job.options.get("templates"):
            return await self.work.source(job)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.work.source(job))
        return await self.work.source(job)

    def _is_instant(self, intent: OpenIntent, workflow: Workflow | None) -> bool:
        """Whether a turn never waits: its provider says so (`instant`), and no server is started."""
        provider = self._models.get(intent.params["provider"])
        if workflow is None or not getattr(provider, "instant", False):
            return False
        return not workflow.nodes[intent.params["node"]].skills

    def _answers_at_once(
        self, intent: OpenIntent, workflow: Workflow | None, options: Mapping[str, Any]
    ) -> bool:
        """Whether nothing that a run's model is asked ever waits, as from a script; and no server is started for a turn."""
        if workflow is None or options.get("model") not in self.providers.at_once:
            return False
        return intent.kind != "model" or not workflow.nodes[intent.params["node"]].skills

    def _is_pure(self, intent: OpenIntent, workflow: Workflow) -> bool:
        """Whether a turn touches nothing outside: its provider says so (`pure`), and no skill is there to."""
        provider = self._models.get(intent.params["provider"])
        return getattr(provider, "pure", False) is True and not workflow.nodes[intent.params["node"]].skills

    async def close(self) -> None:
        await self._mcp.close()
        await self.providers.close()


def _all_inline(intent: OpenIntent, workflow: Workflow | None) -> bool:
    """Whether step 0 reads nothing: every Source is text, and no skill has to be looked for."""
    params = intent.params
    if workflow is None or params["op"] != "setup" or is_reference(params["input"]):
        return False
    if (own := workflow.answers.get("all inline")) is None:
        own = not workflow.skilled and _are_texts(fields(workflow, {}, {}))
        workflow.answers["all inline"] = own
    return own and _are_texts(given_fields(params["input"]))


def _are_texts(found: Mapping[str, Value]) -> bool:
    return all(
        isinstance(value, str) and not value.lstrip().startswith(("./", "../", "/", "http"))
        for value in found.values()
    )


class _LazyMcp:
    def __init__(self, engine: Watched) -> None:
        self._engine = engine
        self._sessions: VisitSessions | None = None

    async def open(self, key: Visit, servers: Mapping[str, McpServer], taken: Sequence[str]) -> McpSession:
        if self._sessions is None:
            try:
                from .mcp import Sessions
                from .visits import VisitSessions
            except ModuleNotFoundError as error:
                raise ProviderError(
                    f"this node uses an MCP server: install treadle[agent] ({error})", code="MCP_START_FAILED"
                ) from error
            self._sessions = VisitSessions(self._engine, Sessions())
        return await self._sessions.open(key, servers, taken)

    async def release(self, key: Visit) -> None:
        if self._sessions is not None:
            await self._sessions.release(key)

    async def close(self) -> None:
        if self._sessions is not None:
            await self._sessions.close()
