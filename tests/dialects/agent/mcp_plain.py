"""The server of `mcp_server.py` once more, as plain messages: it is there in no time, where the official SDK takes seconds.

For tests about a server's life, of which each starts one or more; what the SDK says is met by those that use it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else "good"


def whoami() -> str:
    return f"{os.environ.get('SERVER_TOKEN', 'nobody')} in {os.getpid()}"


def fail() -> str:
    raise ValueError("I cannot")


def hang() -> str:
    time.sleep(3600)
    return "never"


def die() -> str:
    os._exit(9)


def schema(**properties: str) -> dict[str, Any]:
    types = {name: {"type": kind} for name, kind in properties.items()}
    return {"type": "object", "properties": types, "required": list(types)}


TEXT = schema(result="string")
TOOLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "add": (
        lambda a, b: a + b,
        {
            "annotations": {"readOnlyHint": True},
            "inputSchema": schema(a="integer", b="integer"),
            "outputSchema": schema(result="integer"),
        },
    ),
    "put": (
        lambda value: value,
        {
            "annotations": {"idempotentHint": True},
            "inputSchema": schema(value="string"),
            "outputSchema": TEXT,
        },
    ),
    "whoami": (whoami, {"inputSchema": schema(), "outputSchema": TEXT}),
    "fail": (fail, {"inputSchema": schema(), "outputSchema": TEXT}),
    "hang": (hang, {"inputSchema": schema(), "outputSchema": TEXT}),
    "die": (die, {"inputSchema": schema(), "outputSchema": TEXT}),
}


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        result = TOOLS[name][0](**arguments)
    except (KeyError, TypeError, ValueError):
        return {"content": [{"type": "text", "text": f"Error executing tool {name}"}], "isError": True}
    return {"content": [{"type": "text", "text": str(result)}], "structuredContent": {"result": result}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "plain", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": name, **told} for name, (_, told) in TOOLS.items()]}
        case "tools/call":
            return called(params["name"], params.get("arguments") or {})
        case "ping":
            return {}
        case _:
            return None


if __name__ == "__main__":
    if MODE == "mute":
        time.sleep(3600)
    if MODE == "dead":
        print("cannot find my configuration", file=sys.stderr)
        raise SystemExit(3)
    if MODE == "leaky":
        print(f"connecting with {os.environ['SERVER_TOKEN']}", flush=True)  # where only messages belong
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            result = answer(asked["method"], asked.get("params") or {})
            said = (
                {"result": result}
                if result is not None
                else {"error": {"code": -32601, "message": "no such method"}}
            )
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
