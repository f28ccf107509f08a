"""`treadle mcp`: Treadle as an MCP server, for any MCP client.

A client lists and starts workflows, watches runs, sends signals, and answers human tasks. The
server owns the store while it runs, or is the guest of the process that does. Over stdio nothing
but the protocol goes to standard output.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer

from treadle.kernel.errors import RunFailed, TreadleError

from . import mcp_http, stdout
from .command import RUN, Commands, Session

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from treadle.engine import Engine

commands = Commands(RUN)
P = ParamSpec("P")
T = TypeVar("T")
WAIT_S_MAX = 300.0


@commands(
    examples=[
        "treadle mcp --deploy flows/",
        "treadle mcp --http 127.0.0.1:8765",
        "TREADLE_TOKEN=… treadle mcp --http 0.0.0.0:8765",
        "claude mcp add treadle -- treadle mcp --store sqlite:////srv/treadle.db",
    ],
    why="the tools of an assistant act on a store",
)
async def mcp(
    cli: Session,
    deploy: Annotated[
        list[str] | None,
        typer.Option(
            "--deploy", metavar="FILE", help="Files or folders to deploy first.", show_default=False
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Serve streamable HTTP instead of stdio.", show_default=False
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            help=f"What HTTP clients have to send as bearer token. Env {mcp_http.TOKEN}, which nobody else sees.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[str, typer.Option("--user", help="Who answers tasks.")] = "mcp",
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="Roles that user holds; repeatable.", show_default=False),
    ] = None,
) -> None:
    """Serve workflows, runs and human tasks to MCP clients."""
    address = mcp_http.address(http, token) if http is not None else None
    async with cli.engine(lingers=False) as engine:
        for target in deploy or ():
            engine.deploy(target)
        server = make_server(engine, user=user, roles=tuple(role or ()))
        if address is not None:
            await mcp_http.serve(cli.out, server, address)
        else:
            with _endable_input() as end:
                await mcp_http.until_stopped(_serve_stdio(server), end)


async def _serve_stdio(server: MCPServer) -> None:
    """As the SDK serves it, on the output that was kept for us: whatever else prints is not in the protocol."""
    import anyio
    from mcp.server.stdio import stdio_server

    inner = server._lowlevel_server
    with open(stdout.stream().fileno(), "w", encoding="utf-8", newline="\n", closefd=False) as out:
        async with stdio_server(stdout=anyio.wrap_file(out)) as (read, write):
            await inner.run(read, write, inner.create_initialization_options())


@contextmanager
def _endable_input() -> Iterator[Callable[[], None]]:
    """Standard input that can be ended from here. The SDK reads it in a thread that only an end of input
    can stop, and a client that ends us by a signal may keep its side open."""
    source = os.dup(0)
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    os.close(reading)

    def end() -> None:
        # Put in its place, not closed: the thread below may be about to write.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, writing)
        os.close(nowhere)

    def pass_on() -> None:
        with suppress(OSError):
            while data := os.read(source, 1 << 16):
                while data:
                    data = data[os.write(writing, data) :]
        end()

    threading.Thread(target=pass_on, daemon=True).start()
    try:
        yield end
    finally:
        os.dup2(source, 0)


def make_server(engine: Engine, *, user: str, roles: tuple[str, ...]) -> MCPServer:
    """The server itself, on a started engine."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ModuleNotFoundError as error:
        raise TreadleError("install treadle[agent] to serve MCP", cls="user", code="EXTRA_MISSING") from error
    server = MCPServer(
        "treadle", instructions="Durable workflows: start them, watch them, answer their tasks."
    )
    _add_workflows(server, engine)
    _add_runs(server, engine)
    _add_tasks(server, engine, user, roles)
    return server


def _told(body: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """A refusal of ours is the client's answer; anything else is hidden by the SDK, as it should be."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(body)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await body(*args, **kwargs)
        except TreadleError as error:
            raise ToolError(str(error)) from error

    return call


def _add_workflows(server: MCPServer, engine: Engine) -> None:
    from treadle.performers.agent.skills.workflows import described

    @server.tool(description="List the deployed workflows, with what they do and the input they take")
    @_told
    async def list_workflows() -> list[dict[str, Any]]:
        return await described(engine)

    @server.tool(description="Start a workflow; gives the run's id. The same id again is the same run")
    @_told
    async def start_workflow(
        workflow: str, input: dict[str, Any] | None = None, id: str | None = None, model: str | None = None
    ) -> dict[str, Any]:
        run = await engine.start(workflow, input or {}, id=id, model=model)
        return {"run": run.id}


def _add_runs(server: MCPServer, engine: Engine) -> None:
    @server.tool(description="List runs, newest first")
    @_told
    async def list_runs(
        status: str | None = None, workflow: str | None = None, limit: int = 20
    ) -> list[dict[str, Any]]:
        return await engine.list(status=status or (), workflow=workflow or None, limit=limit)

    @server.tool(description="Show a run: status, result, what it waits for")
    @_told
    async def show_run(run: str) -> dict[str, Any]:
        return await (await engine.run(run)).show()

    @server.tool(description="Wait until a run ends, or only people can move it on; then show it")
    @_told
    async def watch_run(run: str, seconds: float = 60.0) -> dict[str, Any]:
        handle = await engine.run(run)
        try:
            return await handle.settled(timeout=min(seconds, WAIT_S_MAX))
        except (TimeoutError, RunFailed):
            return await handle.show()

    @server.tool(description="A run's events after a number")
    @_told
    async def run_events(run: str, after: int = 0, limit: int = 100) -> list[dict[str, Any]]:
        await engine.run(run)
        return (await engine.events_after(run, after))[:limit]

    @server.tool(description="Send a signal to a run")
    @_told
    async def signal_run(run: str, name: str, data: Any = None) -> dict[str, Any]:
        return await engine.signal(run, name, data)

    @server.tool(description="Cancel a run")
    @_told
    async def cancel_run(run: str, reason: str = "") -> dict[str, Any]:
        return await engine.cancel(run, reason)


def _add_tasks(server: MCPServer, engine: Engine, user: str, roles: tuple[str, ...]) -> None:
    @server.tool(description="List the human tasks that wait for an answer")
    @_told
    async def list_tasks(run: str | None = None) -> list[dict[str, Any]]:
        return await engine.tasks(run=run or None)

    @server.tool(description="Answer a human task with data that fits its schema")
    @_told
    async def answer_task(task: str, data: dict[str, Any]) -> dict[str, Any]:
        row = await engine.task(task)
        if row["status"] == "open":
            await engine.task_claim(task, user=user, roles=roles)
        return await engine.task_complete(task, data, user=user, roles=roles)
