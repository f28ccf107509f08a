"""MCP servers, started for one visit of a node and for no other, with the official SDK.

A server that does not start in time fails the turn that needed it, with what it said on its error
output. One that dies, hangs or floods later fails the call that was made to it, and nothing else:
its tools were listed, so the model is told, and the next call to it starts it again.

A session ends when the visit does (`visits` sees to that), or with the engine. It is held on a
lease besides: one that nobody has used or renewed for a while ends by itself. Each connection is
kept by a task of its own, because the SDK's must be closed by the task that opened them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import IO, Any, Final

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED, CallToolResult, Tool

from treadle.kernel.errors import ToolError
from treadle.kernel.values import Value
from treadle.lang.json_schema import validator
from treadle.secrets.logs import cover
from treadle.secrets.redact import without_credentials
from treadle.tools.watchdog import WATCHDOG

from .api import McpServer, McpTool, ProviderError

IDLE_S: Final = 120.0
TOOLS_MAX: Final = 1_000
OUTPUT_CHARS_MAX: Final = 4 * 1024 * 1024
STOP_S: Final = 5.0
TAIL_BYTES: Final = 2_000
TAIL_CHARS: Final = 500


class Sessions:
    """The MCP sessions of one engine, by visit."""

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self.idle_s = idle_s
        self._live: dict[Hashable, Session] = {}
        # Released, and perhaps not gone yet: whoever waited for it may have been cancelled.
        self._released: set[Session] = set()

    async def open(self, key: Hashable, servers: Mapping[str, McpServer], taken: Sequence[str]) -> Session:
        session = self._live.get(key)
        if session is None or session.ended:
            session = Session(servers, taken, self.idle_s)
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

    def renew(self, key: Hashable) -> None:
        """The visit goes on, and so does its session, if it has one."""
        if (session := self._live.get(key)) is not None:
            session.renew()

    async def release(self, key: Hashable) -> None:
        session = self._live.pop(key, None)
        if session is not None:
            await self._end(session)

    async def _end(self, session: Session) -> None:
        self._released.add(session)
        await session.stop()
        self._released.discard(session)

    async def close(self) -> None:
        """Returns when no server is left."""
        sessions = [*self._live.values(), *self._released]
        self._live.clear()
        await asyncio.gather(*(self._end(session) for session in sessions))

    def __len__(self) -> int:
        return sum(not session.ended for session in self._live.values())


class Session:
    """The servers of one visit, running."""

    def __init__(self, servers: Mapping[str, McpServer], taken: Sequence[str], idle_s: float) -> None:
        self.tools: dict[str, McpTool] = {}
        self._servers = dict(servers)
        self._taken = set(taken)
        self._idle_s = idle_s
        self._connections = {name: Connection(server) for name, server in self._servers.items()}
        self._started = asyncio.Event()
        self._stopping = asyncio.Event()
        self._used = 0.0
        self._failure: ProviderError | None = None
        self._task = asyncio.create_task(self._keep())

    @property
    def ended(self) -> bool:
        return self._task.done() or self._stopping.is_set()

    def renew(self, more_s: float = 0.0) -> None:
        self._used = max(self._used, asyncio.get_running_loop().time() + more_s)

    async def ready(self) -> None:
        """Returns when every server has started and said what it can do."""
        await self._started.wait()
        self.renew()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        self._stopping.set()
        await asyncio.wait([self._task], timeout=3 * STOP_S)

    async def _keep(self) -> None:
        try:
            for name, connection in self._connections.items():
                await connection.ready()
                self._offer(name, connection.listed)
            self.renew()
            self._started.set()
            await self._until_idle()
        except ProviderError as error:
            self._failure = error
        finally:
            self._stopping.set()
            await asyncio.gather(*(connection.stop() for connection in self._connections.values()))
            self._started.set()

    async def _until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            left = self._used + self._idle_s - loop.time()
            if left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stopping.wait()

    def _offer(self, server: str, listed: list[Tool]) -> None:
        for tool in listed:
            known = tool.name if tool.name not in self._taken else f"{server}__{tool.name}"
            self._taken.add(known)
            hints = tool.annotations
            self.tools[known] = McpTool(
                name=known,
                server=server,
                own_name=tool.name,
                description=tool.description or "",
                input_schema=tool.input_schema,
                idempotent=bool(hints and (hints.idempotent_hint or hints.read_only_hint)),
            )

    async def call(self, tool: McpTool, input: dict[str, Any]) -> Value:
        limit = self._servers[tool.server].timeout_s
        self.renew(limit)
        connection = await self._connected(tool.server)
        try:
            async with asyncio.timeout(limit):
                result = await connection.call(tool.own_name, input)
        except TimeoutError as error:
            raise ToolError(f"the MCP server {tool.server!r} did not answer within {limit:g} s") from error
        except Exception as error:
            raise ToolError(f"the MCP server {tool.server!r}: {_said(error)}") from error
        output = _output(result)
        if result.is_error:
            raise ToolError(output if isinstance(output, str) else str(output))
        return output

    async def _connected(self, name: str) -> Connection:
        """The connection to a server, which is started again if it broke."""
        connection = self._connections[name]
        if connection.broken:
            await connection.stop()
            connection = self._connections[name] = Connection(self._servers[name])
        try:
            await connection.ready()
        except ProviderError as error:
            raise ToolError(error.message) from error
        return connection


class Connection:
    """One server, from its start to its end."""

    def __init__(self, server: McpServer) -> None:
        self.listed: list[Tool] = []
        self._server = server
        self._client: Client | None = None
        self._transport: Any = None
        self._is_lost = False
        self._in_flight = 0
        # A call was broken off; it knows nothing of that, and goes on with it until it answers again.
        self._is_busy = False
        self._started = asyncio.Event()
        self._ending = asyncio.Event()
        self._failure: ProviderError | None = None
        self._task = asyncio.create_task(self._keep())

    @property
    def broken(self) -> bool:
        """Whether nothing will come of another call."""
        return self._is_lost or self._task.done()

    async def ready(self) -> None:
        await self._started.wait()
        if self._failure is not None:
            raise self._failure

    async def call(self, tool: str, input: dict[str, Any]) -> Any:
        if self._client is None:
            raise ToolError("it has ended")
        self._in_flight += 1
        try:
            result = await self._client.call_tool(tool, input)
            self._is_busy = False
        except asyncio.CancelledError:
            self._is_busy = True
            raise
        except MCPError as error:
            self._is_busy = False
            # It answered, unless it says that nobody is there, or that it knows nothing of us any more.
            self._is_lost = (
                error.error.code == CONNECTION_CLOSED or error.error.message == "Session terminated"
            )
            raise
        except Exception:
            self._is_lost = True
            raise
        finally:
            self._in_flight -= 1
        if not result.is_error:
            _check_output(next((each for each in self.listed if each.name == tool), None), result)
        return result

    async def stop(self) -> None:
        """A server that is idle is asked to end, and given time to. One that is still busy with a call
        which nobody wants any more is killed."""
        if self._in_flight or self._is_busy:
            _kill(self._transport)
        self._ending.set()
        done, _ = await asyncio.wait([self._task], timeout=STOP_S)
        if not done:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_S)

    async def _keep(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._client = await self._start(stack)
                self._started.set()
                await self._ending.wait()
        except (Exception, asyncio.CancelledError) as error:
            self._failure = self._failure or ProviderError(
                f"the MCP server {self._server.name!r} broke off: {_said(error)}", code="MCP_FAILED"
            )
        finally:
            self._client = None
            self._started.set()

    async def _start(self, stack: AsyncExitStack) -> Client:
        log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, the stack closes it
        errors = stack.enter_context(log)
        try:
            async with asyncio.timeout(self._server.timeout_s):
                self._transport = await _transport(stack, self._server, errors)
                connecting = Client(self._transport)
                cover()
                client: Client = await stack.enter_async_context(connecting)
                if (group := _group(self._transport)) is not None:
                    stack.enter_context(WATCHDOG.over(group))
                # The SDK would match the patterns of a server's schema with `re`, on the event loop.
                client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]  # the check is ours to make, and MCP has no switch for it
                self.listed = await _tools_of(client)
                return client
        except (Exception, asyncio.CancelledError) as error:
            why = "did not start in time"
            if not isinstance(error, TimeoutError):
                why = f"did not start: {_said(error)}"
            self._failure = ProviderError(
                f"the MCP server {self._server.name!r} {why}{_tail(errors)}", code="MCP_START_FAILED"
            )
            raise


async def _transport(stack: AsyncExitStack, server: McpServer, errors: IO[str]) -> Any:
    if server.command is not None:
        parameters = StdioServerParameters(
            command=server.command, args=list(server.args), env=dict(server.env), cwd=server.cwd
        )
        return stdio_client(parameters, errlog=errors)  # type: ignore[arg-type]  # any text file will do, it is typed as stderr
    assert server.url is not None, "a server has a command or a url"
    http = await stack.enter_async_context(
        httpx2.AsyncClient(headers=dict(server.headers), timeout=httpx2.Timeout(server.timeout_s))
    )
    return streamable_http_client(server.url, http_client=http)


def _kill(transport: Any) -> None:
    """Kills a server with all it has started. The SDK keeps the process to itself, and would wait seconds
    for a server that does not read because it works."""
    if (group := _group(transport)) is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def _group(transport: Any) -> int | None:
    """The processes of a server: the SDK gives each a group of its own. None for a connection, which just ends,
    and never our own group."""
    frame = getattr(getattr(transport, "gen", None), "ag_frame", None)
    process = frame.f_locals.get("process") if frame is not None else None
    if process is None:
        return None
    with suppress(ProcessLookupError):
        group = os.getpgid(process.pid)
        return None if group == os.getpgid(0) else group
    return None


async def _tools_of(client: Client) -> list[Tool]:
    found: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if len(found) > TOOLS_MAX:
            raise ValueError(f"it lists more than {TOOLS_MAX} tools")
        cursor = page.next_cursor
        if cursor is None:
            return found


async def _unchecked(name: str, result: CallToolResult) -> None:
    """What a tool gave is checked by `_check_output`, when the SDK is done with it."""


def _check_output(tool: Tool | None, result: CallToolResult) -> None:
    """A tool that publishes a schema of its output keeps to it."""
    if tool is None or tool.output_schema is None:
        return
    if result.structured_content is None and "structured_content" not in result.model_fields_set:
        raise ToolError(f"the tool {tool.name} has an output schema but gave no structured output")
    try:
        errors = validator(tool.output_schema).iter_errors(result.structured_content)
    except Exception as error:  # a server may publish a schema that cannot be applied
        raise ToolError(f"the output schema of the tool {tool.name} cannot be applied: {error}") from error
    if errors:
        told = "; ".join(f"{error.json_path}: {error.message[:200]}" for error in errors[:5])
        raise ToolError(f"the tool {tool.name} gave what its own output schema does not allow: {told}")


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
    return without_credentials(str(error)) or type(error).__name__


def _tail(errors: IO[str]) -> str:
    """The end of what a server said on its error output, however much that is."""
    size = os.fstat(errors.fileno()).st_size
    read = os.pread(errors.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))
    text = read.decode("utf-8", "replace")[-TAIL_CHARS:].strip()
    return f"; it said: {text}" if text else ""
