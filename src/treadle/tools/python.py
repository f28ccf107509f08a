"""`python`: inline code in a process of its own, or a function in this one.

The code's arguments are variables, and the mappings `input_data`, `args` and `context`. Its result
is what a top-level `return` gives, else the variable `result`, else what `main(...)` returns. It
runs killable, with a time and a memory limit, without the engine's memory and secrets. What it
prints is shown as progress frames of type `output`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from .base import (
    RESULT_BYTES_MAX,
    BadConfig,
    ToolBase,
    arguments,
    local_path,
    mapping,
    need,
    out_of_descriptors,
    pick,
    seconds,
    spec,
    too_large,
    unbase64,
)
from .functions import FunctionTool
from .imported import imported
from .protocol import Outcome, ToolCall
from .python_pool import ForeignAnswer, ProcessDied, PythonPool, PythonRequest
from .registry import ToolRegistry

MEMORY_MB_DEFAULT = 2048


class PythonTool(ToolBase):
    """Its fields are declared in `fields.PYTHON`."""

    kind = "python"
    idempotent = False

    def __init__(
        self, callables: dict[str, FunctionTool] | None = None, *, processes: int | None = None
    ) -> None:
        self._callables = {} if callables is None else callables
        self._pool = PythonPool(processes)

    @classmethod
    def for_registry(cls, registry: ToolRegistry) -> PythonTool:
        return cls(registry.callables)

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        if (name := config.get("callable")) is not None:
            return await self._in_process(str(name), config, call)
        deps = mapping(config, "deps")
        request = PythonRequest(
            code=await self._code(config, call),
            name=_named(config),
            args=arguments(config),
            context=_context(config, call),
            libs=_libraries(config),
            packages=[str(package) for package in deps.get("packages") or []],
            sys_path=[str(local_path(str(path), call)) for path in _as_list(deps.get("sys_path"))],
            env={str(key): str(value) for key, value in mapping(config, "env").items()},
            cwd=str(local_path(str(config["cwd"]), call)) if config.get("cwd") else call.base,
            memory_bytes=_memory_mb(config) * 1024 * 1024,
        )
        return await self._in_child(request, _interpreter(deps, call), bool(config.get("isolated")), call)

    async def close(self) -> None:
        await self._pool.close()

    async def _in_child(
        self, request: PythonRequest, interpreter: str | None, isolated: bool, call: ToolCall
    ) -> Outcome:
        printed: list[str] = []

        async def on_output(stream: str, text: str) -> None:
            printed.append(text)
            await call.progress("output", stream=stream, text=text)

        try:
            reply = await self._pool.call(request, on_output, interpreter=interpreter, fresh=isolated)
        except ProcessDied as error:
            return _died(error, "".join(printed))
        except ForeignAnswer as error:
            return Outcome.failed("python", str(error), code="FOREIGN_ANSWER", details=_output(printed))
        except (TypeError, ValueError) as error:
            raise BadConfig(f"the arguments cannot be handed to Python: {error}") from error
        except OSError as error:
            if (short := out_of_descriptors(error)) is not None:
                return short
            program = interpreter or sys.executable
            raise BadConfig(f"the interpreter {program!r} cannot be started: {error.strerror}") from error
        if "error" not in reply:
            return Outcome(result=reply["result"])
        if reply["error"] == "RESULT_TOO_LARGE" and reply["message"].isdecimal():
            return too_large(int(reply["message"]), RESULT_BYTES_MAX)
        return _raised(reply, _output(printed))

    async def _in_process(self, name: str, config: dict[str, Any], call: ToolCall) -> Outcome:
        function = self._callables.get(name)
        if function is None and ":" in name:
            found = await asyncio.to_thread(
                imported, name, call.base, lambda said: BadConfig(f"callable {name!r}: {said}")
            )
            function = FunctionTool(f"python:{name}", found)
        if function is None:
            known = ", ".join(sorted(self._callables)) or "none"
            raise BadConfig(
                f"no callable named {name!r} is registered (known: {known}); register it with @engine.tools.function({name!r}), or write module:function"
            )
        return await function.run(config, call)

    async def _code(self, config: dict[str, Any], call: ToolCall) -> str:
        if (code := config.get("code")) is not None:
            return str(code)
        if (encoded := config.get("code_b64")) is not None:
            return unbase64(encoded, "code_b64")
        if (script := config.get("script")) is not None:
            return await _read_script(script, call)
        raise BadConfig("one of the fields 'code', 'code_b64', 'script', 'callable' is needed")


def _named(config: dict[str, Any]) -> str:
    """What tracebacks call the code: its file, or its task."""
    script = config.get("script")
    if script is not None and pick(config, "code", "code_b64") is None:
        return str(pick(script, "uri", "path", "url") if isinstance(script, dict) else script)
    return f"<{config.get('name') or 'python task'}>"


def _died(error: ProcessDied, printed: str) -> Outcome:
    details = {"returncode": error.returncode, "signal": error.signal, "stderr": error.stderr}
    outcome = Outcome.failed(
        "python",
        f"{error}; a new one serves the next task. Its last words are in details.stderr",
        code="PROCESS_DIED",
        # A kill from outside (the system was short of memory, say) may not happen again.
        retryable=error.signal == "SIGKILL",
        details={**details, "output": printed[-4096:]},
        py={"exception_type": "ProcessDied", "traceback": error.stderr},
    )
    assert outcome.error is not None
    outcome.error["exception_type"] = "ProcessDied"
    return outcome


def _output(printed: list[str]) -> dict[str, Any]:
    return {"output": "".join(printed)[-4096:]} if printed else {}


def _raised(reply: dict[str, Any], details: dict[str, Any]) -> Outcome:
    name = str(reply["error"])
    outcome = Outcome.failed(
        "python",
        f"{name}: {reply['message']}",
        code=name,
        details={"traceback": reply["traceback"], **details},
        py={"exception_type": name, "traceback": reply["traceback"]},
    )
    assert outcome.error is not None
    outcome.error["exception_type"] = name
    return outcome


def _context(config: dict[str, Any], call: ToolCall) -> dict[str, Any]:
    """What the code may know of its run: the part of it that the task brings in `context`, results of
    steps by their names too, and the call itself."""
    brought = mapping(config, "context")
    steps: dict[str, Any] = {}
    if "steps" in brought:
        steps = {name: value for name, value in mapping(brought, "steps").items() if value is not None}
        brought["steps"] = steps
    own = {"execution_id": call.run, "attempt": call.attempt, "idempotency_key": call.idempotency_key}
    return {**steps, **brought, **own}


def _libraries(config: dict[str, Any]) -> dict[str, Any]:
    """`libs: {pd: pandas}`, or a list of modules under their own names."""
    if (libs := config.get("libs")) is None:
        return {}
    if isinstance(libs, str):
        libs = [libs]
    return {str(name): str(name) for name in libs} if isinstance(libs, list) else mapping(config, "libs")


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _memory_mb(config: dict[str, Any]) -> int:
    if (value := config.get("memory_mb")) is None and config.get("spec") is not None:
        value = spec(config).get("memory_mb")
    try:
        size = MEMORY_MB_DEFAULT if value is None else int(value)
    except (TypeError, ValueError):
        size = 0
    if size < 64:
        raise BadConfig(f"the field 'memory_mb' must be a number of megabytes from 64 up, not {value!r}")
    return size


def _interpreter(deps: dict[str, Any], call: ToolCall) -> str | None:
    if not deps.get("venv_path"):
        return None
    folder = local_path(str(deps["venv_path"]), call)
    for program in (folder / "bin" / "python", folder / "Scripts" / "python.exe"):
        if program.exists():
            return str(program)
    raise BadConfig(f"deps.venv_path: there is no virtual environment at {folder}")


async def _read_script(script: Any, call: ToolCall) -> str:
    """`script: {uri, source: {type: file|http}}`, or just the address as text."""
    if isinstance(script, str):
        script = {"uri": script}
    if not isinstance(script, dict):
        raise BadConfig("the field 'script' must be an address or {uri, source}")
    uri = str(need(script, "uri", "path", "url"))
    source = mapping(script, "source")
    kind = str(source.get("type") or ("http" if uri.startswith(("http://", "https://")) else "file"))
    if kind == "file":
        return _read_file(local_path(uri, call))
    if kind != "http":
        raise BadConfig(f"script.source.type {kind!r} is not read here; use file or http")
    # Through the registry's own tool class, so that time limits and errors are the same as anywhere.
    from .http import HttpTool

    tool = HttpTool()
    try:
        fetch = {"url": uri, "response": "text", "auth": source.get("auth"), "headers": source.get("headers")}
        outcome = await tool.run({**fetch, "timeout": seconds(source.get("timeout", 30), "timeout")}, call)
    finally:
        await tool.close()
    if outcome.error is not None:
        raise BadConfig(f"the script {uri} could not be read: {outcome.error['message']}")
    return str(outcome.result["data"])


def _read_file(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"the script {path} could not be read: {error}") from error
