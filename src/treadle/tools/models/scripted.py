"""A model that answers from a script: for tests, and for trying a workflow without a key.

Which entry answers follows from the request alone (the n-th invocation of a node in this run), so
a resumed run gets the same answers as an undisturbed one. With `log: FILE` every request is
written down and synced *before* it is answered: the log proves what was asked, and how often.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.work.agent_api import (
    AskReply,
    AskRequest,
    ChooseReply,
    ChooseRequest,
    ProviderError,
    TurnReply,
    TurnRequest,
)


class ScriptedModel:
    """`ScriptedModel({"run": {"gather": [{"data": {…}}]}, "evaluate": …, "ask": […]})`.

    `calls` holds every request it was asked, in order, as the log would show it.
    """

    default_model: str | None = None
    small_model: str | None = None
    keeps_history = False

    def __init__(
        self,
        script: dict[str, Any],
        *,
        base: str | Path | None = None,
        quiet: bool = False,
        remember: bool = True,
    ) -> None:
        problem = _shape_problem(script)
        if problem is not None:
            raise TreadleError(f"the script is not valid: {problem}", cls="user", code="SCRIPT_INVALID")
        self._run: dict[str, list[Any]] = script.get("run") or {}
        self._evaluate: dict[str, list[Any]] = script.get("evaluate") or {}
        self._ask: list[Any] = script.get("ask") or []
        log = script.get("log")
        self._log = None if log is None else Path(base or ".") / log
        # Quiet: nothing is remembered, so nothing has to be loaded either. For benchmarks.
        self._quiet = (quiet or not remember) and self._log is None
        self._remember = remember
        self.calls: list[dict[str, Any]] = []

    @classmethod
    def load(cls, path: str | Path) -> ScriptedModel:
        try:
            script = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ProviderError(f"the script cannot be read: {error}", code="SCRIPT_INVALID") from error
        except ValueError as error:
            raise ProviderError(f"{path} is not JSON: {error}", code="SCRIPT_INVALID") from error
        # Whoever names a file reads the log, if anything; a server must not remember every request.
        return cls(script, base=Path(path).resolve().parent, remember=False)

    async def turn(self, request: TurnRequest) -> TurnReply:
        if not self._quiet:
            self._record(
                op="run",
                node=request.node,
                iteration=request.iteration,
                attempt=request.attempt,
                turn=request.turn,
                instruction=request.instruction,
                context=await request.context(),
                tools=[tool.name for tool in request.tools],
                model=request.model,
                max_turns=request.max_turns,
                output_schema=request.output_schema,
                mcp_servers=list(request.mcp_servers),
            )
        entry = self._entry(self._run.get(request.node), request.nth, f"run.{request.node}")
        if not isinstance(entry, dict):
            raise ProviderError(
                f"run.{request.node}[{request.nth - 1}] is not an object", code="SCRIPT_INVALID"
            )
        if entry.get("delay"):
            await asyncio.sleep(float(entry["delay"]))
        if "throw" in entry:
            raise ProviderError(str(entry["throw"]), code="SCRIPT_THROW")
        first = request.turn == 1
        if first:
            for message in entry.get("progress") or ():
                await request.progress(str(message))
        usage = (entry.get("usage") or {}) if first else {}
        wanted = entry.get("tool_calls") or []
        if first and wanted:
            calls = [
                {"id": f"call_{index}", "tool": call.get("tool"), "input": call.get("input", {})}
                for index, call in enumerate(wanted)
            ]
            return TurnReply(calls=calls, text=str(entry.get("text") or ""), usage=usage)
        return TurnReply(
            status=entry.get("status", "success"),
            data=entry.get("data", {}),
            text=str(entry.get("text") or ""),
            usage=usage,
        )

    async def choose(self, request: ChooseRequest) -> ChooseReply:
        if not self._quiet:
            self._record(
                op="evaluate",
                node=request.node,
                iteration=request.iteration,
                context=await request.context(),
                choices=request.choices,
                model=request.model,
            )
        answers = self._evaluate.get(request.node)
        entry = self._entry(answers, request.nth, f"evaluate.{request.node}")
        if not isinstance(entry, dict):
            return ChooseReply(choice=entry)
        if entry.get("delay"):
            await asyncio.sleep(float(entry["delay"]))
        if "throw" in entry:
            raise ProviderError(str(entry["throw"]), code="SCRIPT_THROW")
        return ChooseReply(choice=entry.get("choice"), usage=entry.get("usage") or {})

    async def ask(self, request: AskRequest) -> AskReply:
        if not self._quiet:
            self._record(op="ask", instruction=request.instruction, model=request.model)
        entry = self._entry(self._ask, request.nth, "ask")
        if not isinstance(entry, dict):
            return AskReply(text=entry if isinstance(entry, str) else json.dumps(entry))
        if entry.get("delay"):
            await asyncio.sleep(float(entry["delay"]))
        if "throw" in entry:
            raise ProviderError(str(entry["throw"]), code="SCRIPT_THROW")
        return AskReply(text=str(entry.get("text", "")), usage=entry.get("usage") or {})

    async def close(self) -> None:
        """Nothing is held open."""

    def _entry(self, entries: list[Any] | None, nth: int, where: str) -> Any:
        if entries is None or nth > len(entries):
            raise ProviderError(
                f"the script has {len(entries or ())} entries at {where}, and is asked for number {nth}",
                code="SCRIPT_EXHAUSTED",
            )
        return entries[nth - 1]

    def _record(self, **request: Any) -> None:
        if self._remember:
            self.calls.append(request)
        if self._log is None:
            return
        line = json.dumps(request, ensure_ascii=False, default=repr) + "\n"
        descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode("utf-8", "surrogatepass"))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _shape_problem(script: Any) -> str | None:
    if not isinstance(script, dict):
        return "it is not an object"
    unknown = sorted(set(script) - {"run", "evaluate", "ask", "log"})
    if unknown:
        return f"unknown keys {', '.join(unknown)}; there are run, evaluate, ask and log"
    for name in ("run", "evaluate"):
        part = script.get(name)
        if part is not None and not (
            isinstance(part, dict) and all(isinstance(entries, list) for entries in part.values())
        ):
            return f"{name} is not a mapping of node to a list of entries"
    for node, entries in (script.get("run") or {}).items():
        for index, entry in enumerate(entries):
            calls = entry.get("tool_calls") if isinstance(entry, dict) else None
            if calls is not None and not (
                isinstance(calls, list)
                and all(isinstance(c, dict) and isinstance(c.get("tool"), str) for c in calls)
            ):
                return f"run.{node}[{index}].tool_calls is not a list of {{tool, input}}"
    if script.get("ask") is not None and not isinstance(script["ask"], list):
        return "ask is not a list"
    return None
