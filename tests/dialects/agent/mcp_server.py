"""A real MCP server for the tests, written with the official SDK; `mcp_plain.py` is the same, sooner there."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("test")


@server.tool(description="Adds two numbers", annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    return a + b


@server.tool(description="Keeps a value", annotations=ToolAnnotations(idempotent_hint=True))
def put(value: str) -> str:
    return value


@server.tool(description="Says who it is")
def whoami() -> str:
    return f"{os.environ.get('SERVER_TOKEN', 'nobody')} in {os.getpid()}"


@server.tool(description="Always fails")
def fail() -> str:
    raise ValueError("I cannot")


@server.tool(description="Never returns")
def hang() -> str:
    time.sleep(3600)
    return "never"


@server.tool(description="Ends the process")
def die() -> str:
    os._exit(9)


@server.tool(description="Says a lot")
def flood() -> str:
    return "x" * 5_000_000


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
