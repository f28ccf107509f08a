"""MCP servers, started for one visit of a node and for no other, with the official SDK.

A session is kept by a task of its own, because the SDK's connections must be closed by the task
that opened them. It ends when the visit does, when nobody has used it for a while, or with the
engine. A server that does not start in time, dies, hangs or floods fails the turn or the call that
needed it, with what it said on its error output, and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import IO, Any, Final

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from treadle.kernel.errors import ToolError
from treadle.kernel.values import Value
from treadle.work.agent_api import McpServer, McpTool, ProviderError

IDLE_S: Final = 120.0
TOOLS_MAX: Final = 1_000
OUTPUT_CHARS_MAX: Final = 4 * 1024 * 1024
STOP_S: Final = 5.0


class Sessions:
    """The MCP sessions of one engine, by visit."""

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._live: dict[str, Session] = {}

    async def open(self, key: str, servers: Mapping[str, McpServer], taken: Sequence[str]) -> Session:
        session = self._live.get(key)
        if session is None or session.ended:
            session = Session(servers, taken, self._idle_s)
            self._live[key] = session
        try:
            await session.ready()
        except BaseException:
            self._live.pop(key, None)
            await session.stop()
            raise
        for other in [key for key, session in self._live.items() if session.ended]:
            del self._live[other]
        return session

    async def release(self, key: str) -> None:
        session = self._live.pop(key, None)
        if session is not None:
            await session.stop()

    async def close(self) -> None:
        for key in list(self._live):
            await self.release(key)

    def __len__(self) -> int:
        return sum(not session.ended for session in self._live.values())


class Session:
    """The servers of one visit, running."""

    def __init__(self, servers: Mapping[str, McpServer], taken: Sequence[str], idle_s: float) -> None:
        self.tools: dict[str, McpTool] = {}
        self._servers = dict(servers)
        self._taken = set(taken)
        self._idle_s = idle_s
        self._clients: dict[str, Client] = {}
        self._started = asyncio.Event()
        self._stopping = asyncio.Event()
        self._used = asyncio.get_running_loop().time()
        self._failure: BaseException | None = None
        self._task = asyncio.create_task(self._keep())

    @property
    def ended(self) -> bool:
        return self._task.done() or self._stopping.is_set()

    async def ready(self) -> None:
        self._used = asyncio.get_running_loop().time()
        await self._started.wait()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        self._stopping.set()
        done, _ = await asyncio.wait([self._task], timeout=STOP_S)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_S)

    async def _keep(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                for name, server in self._servers.items():
                    await self._start(stack, name, server)
                self._started.set()
                await self._until_idle()
        except (Exception, asyncio.CancelledError) as error:
            self._failure = self._failure or ProviderError(
                f"the MCP servers of this node broke off: {_said(error)}", code="MCP_FAILED"
            )
        finally:
            self._stopping.set()
            self._started.set()

    async def _until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            left = self._used + self._idle_s - loop.time()
            if left <= 0:
                return
            await asyncio.wait([asyncio.ensure_future(self._stopping.wait())], timeout=left)

    async def _start(self, stack: AsyncExitStack, name: str, server: McpServer) -> None:
        log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, the stack closes it
        errors = stack.enter_context(log)
        try:
            async with asyncio.timeout(server.timeout_s):
                client = await stack.enter_async_context(await _client(stack, server, errors))
                self._clients[name] = client
                await self._list(name, client)
        except (Exception, asyncio.CancelledError) as error:
            why = (
                "did not start in time"
                if isinstance(error, TimeoutError)
                else f"did not start: {_said(error)}"
            )
            self._failure = ProviderError(
                f"the MCP server {name!r} {why}{_tail(errors)}", code="MCP_START_FAILED"
            )
            raise

    async def _list(self, name: str, client: Client) -> None:
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                known = tool.name if tool.name not in self._taken else f"{name}__{tool.name}"
                self._taken.add(known)
                hints = tool.annotations
                self.tools[known] = McpTool(
                    name=known,
                    server=name,
                    own_name=tool.name,
                    description=tool.description or "",
                    input_schema=tool.input_schema,
                    idempotent=bool(hints and (hints.idempotent_hint or hints.read_only_hint)),
                )
            cursor = page.next_cursor
            if cursor is None:
                return
            if len(self.tools) > TOOLS_MAX:
                raise ValueError(f"it lists more than {TOOLS_MAX} tools")

    async def call(self, tool: McpTool, input: dict[str, Any]) -> Value:
        limit = self._servers[tool.server].timeout_s
        self._used = asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout(limit):
                result = await self._clients[tool.server].call_tool(tool.own_name, input)
        except TimeoutError as error:
            raise ToolError(f"the MCP server {tool.server!r} did not answer within {limit:g} s") from error
        except Exception as error:
            # Whatever broke, the next visit of this session starts its servers anew.
            if self._task.done() or "closed" in str(error).lower():
                self._stopping.set()
            raise ToolError(f"the MCP server {tool.server!r}: {_said(error)}") from error
        output = _output(result)
        if result.is_error:
            raise ToolError(output if isinstance(output, str) else str(output))
        return output


async def _client(stack: AsyncExitStack, server: McpServer, errors: IO[str]) -> Client:
    if server.command is not None:
        parameters = StdioServerParameters(
            command=server.command, args=list(server.args), env=dict(server.env), cwd=server.cwd
        )
        return Client(stdio_client(parameters, errlog=errors))  # type: ignore[arg-type]
    assert server.url is not None, "a server has a command or a url"
    http = await stack.enter_async_context(
        httpx2.AsyncClient(headers=dict(server.headers), timeout=httpx2.Timeout(server.timeout_s))
    )
    return Client(streamable_http_client(server.url, http_client=http))


def _output(result: Any) -> Value:
    if result.structured_content is not None:
        found = result.structured_content
    elif all(block.type == "text" for block in result.content):
        found = "\n".join(block.text for block in result.content)
    else:
        found = [block.model_dump(mode="json", exclude_none=True) for block in result.content]
    if len(json.dumps(found, default=str)) > OUTPUT_CHARS_MAX:
        raise ToolError(f"the output is larger than {OUTPUT_CHARS_MAX // 1024 // 1024} MiB")
    return found


def _said(error: BaseException) -> str:
    """The plain reason inside a group of exceptions."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _tail(errors: IO[str]) -> str:
    errors.seek(0)
    text = errors.read()[-500:].strip()
    return f"; it said: {text}" if text else ""
