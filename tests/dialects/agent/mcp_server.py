"""A real MCP server for the tests, written with the official SDK. Its mode says how it misbehaves."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

MODE = sys.argv[1] if len(sys.argv) > 1 else "good"

if MODE == "mute":
    time.sleep(3600)
if MODE == "dead":
    print("cannot find my configuration", file=sys.stderr)
    raise SystemExit(3)

if MODE == "leaky":
    print(f"connecting with {os.environ['SERVER_TOKEN']}", flush=True)  # where only messages belong

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
    if MODE == "http":
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
