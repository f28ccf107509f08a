"""The agent dialect's outside of one engine: its skills, its providers, its MCP sessions.

Optional libraries are imported when the first run needs them; a workflow that only uses the
scripted model needs none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from treadle.work.agent import AgentWork
from treadle.work.agent_api import McpServer, McpSession, ProviderError
from treadle.work.agent_skills import Skills
from treadle.work.agent_sources import Fetch
from treadle.work.job import Job
from treadle.work.secrets import Secrets
from treadle.work.worker import Worker

from .models import Providers
from .skills.workflows import Runs


class Agents:
    """`models` is the engine's own registry, `configs` what runs were given, by run id."""

    def __init__(
        self,
        models: Mapping[str, Any],
        secrets: Secrets,
        configs: Mapping[str, Mapping[str, Any]],
        runs: Runs,
    ) -> None:
        self._secrets = secrets
        self._runs = runs
        self._mcp = _LazyMcp()
        self.skills = Skills(learn=self._learn, built_in=self._built_in)
        self.providers = Providers(models, resolve=secrets.resolve, learn=self._learn)
        self.work = AgentWork(
            provider=self.providers.get,
            skills=self.skills,
            mcp=self._mcp,
            fetch=self._fetch,
            config_of=lambda run: configs.get(run, {}),
        )

    def _learn(self, name: str, value: str) -> Any:
        return self._secrets.learn(name, value)

    def _built_in(self) -> Any:
        from .skills import built_in

        return built_in(self._runs)

    def _fetch(self, settings: Mapping[str, Any], job: Job) -> Fetch:
        async def fetch(url: str) -> tuple[str, str]:
            from .skills.fetch import fetcher

            return await fetcher(settings, job.secret, self._learn)(url)

        return fetch

    def register(self, worker: Worker) -> None:
        for kind in ("source", "model", "call", "route", "ask"):
            worker.register(kind, getattr(self.work, kind), dialect="agent")

    async def close(self) -> None:
        await self._mcp.close()
        await self.providers.close()


class _LazyMcp:
    def __init__(self) -> None:
        self._sessions: Any = None

    async def open(self, key: str, servers: Mapping[str, McpServer], taken: Sequence[str]) -> McpSession:
        if self._sessions is None:
            try:
                from .mcp import Sessions
            except ModuleNotFoundError as error:
                raise ProviderError(
                    f"this node uses an MCP server: install treadle[agent] ({error})", code="MCP_START_FAILED"
                ) from error
            self._sessions = Sessions()
        session: McpSession = await self._sessions.open(key, servers, taken)
        return session

    async def release(self, key: str) -> None:
        if self._sessions is not None:
            await self._sessions.release(key)

    async def close(self) -> None:
        if self._sessions is not None:
            await self._sessions.close()
