"""A model that answers from a script: for tests, and for trying a workflow without a key.

Which entry answers follows from the request alone (the n-th invocation of a node in this run), so
a resumed run gets the same answers as an undisturbed one. With `log: FILE` every request is
written down and synced *before* it is answered: the log proves what was asked, and how often.
What a script may hold is in `script.py`.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from treadle.kernel.errors import TreadleError
from treadle.performers.agent.api import (
    AskReply,
    AskRequest,
    ChooseReply,
    ChooseRequest,
    ProviderError,
    TurnReply,
    TurnRequest,
)

from .script import problem_of, script_at


class ScriptedModel:
    """`ScriptedModel({"run": {"gather": [{"data": {…}}]}, "evaluate": …, "ask": […] | {node: […]}})`.

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
        problem = problem_of(script)
        if problem is not None:
            raise TreadleError(f"the script is not valid: {problem}", cls="user", code="SCRIPT_INVALID")
        self._script: Mapping[str, Any] = script
        log = script.get("log")
        self._log = None if log is None else Path(base or ".") / log
        # Quiet: nothing is remembered, so nothing has to be loaded either. For benchmarks.
        self._quiet = (quiet or not remember) and self._log is None
        self._remember = remember
        # Who reads nothing and writes nothing, and is told nowhere to pause; of a class derived from this nobody knows.
        self.answers_at_once = self._quiet and type(self) is ScriptedModel and not _pauses(script)
        self.calls: list[dict[str, Any]] = []

    @classmethod
    def load(cls, path: str | Path) -> ScriptedModel:
        if not str(path):
            raise _invalid("the scripted model needs a script: --model scripted:FILE")
        try:
            script = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise _invalid(f"the script {path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise _invalid(f"the script {path} is not JSON: {error}") from error
        if problem := problem_of(script):
            raise _invalid(f"the script {path} is not valid: {problem}")
        base = Path(path).resolve().parent
        log = base / (script.get("log") or "")
        if not log.parent.is_dir():
            raise _invalid(
                f"the script {path} is not valid: log is to be in {log.parent}, which is no folder"
            )
        # Whoever names a file reads the log, if anything; a server must not remember every request.
        return cls(script, base=base, remember=False)

    def within(self, calls: Sequence[Sequence[Any]]) -> Self:
        """The same model, for a run that was called by nodes of others: `[[node, invocation], …]`."""
        inner = copy.copy(self)
        inner._script = script_at(self._script, calls)
        return inner

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
        where = f"run.{request.node}"
        entry = self._entry("run", request.node, request.nth)
        turns = _turns_of(entry)
        if "turns" in entry and request.turn > len(turns):
            raise _exhausted(f"{where}[{request.nth - 1}].turns", len(turns), request.turn)
        said = turns[min(request.turn, len(turns)) - 1]
        await _pause(said)
        for message in said.get("progress") or ():
            await request.progress(message)
        calls = [
            {"id": f"call_{index}", "tool": call["tool"], "input": call.get("input", {})}
            for index, call in enumerate(said.get("tool_calls") or ())
        ]
        if not calls:
            _throw(said)
        return TurnReply(
            calls=calls,
            status=said.get("status", "success"),
            data=said.get("data", {}),
            text=str(said.get("text") or ""),
            usage=said.get("usage") or {},
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
        entry = self._entry("evaluate", request.node, request.nth)
        if not isinstance(entry, dict):
            return ChooseReply(choice=entry)
        await _pause(entry)
        _throw(entry)
        return ChooseReply(choice=entry.get("choice"), usage=entry.get("usage") or {})

    async def ask(self, request: AskRequest) -> AskReply:
        if not self._quiet:
            self._record(op="ask", instruction=request.instruction, model=request.model)
        by_node = isinstance(self._script.get("ask"), dict)
        entry = (
            self._entry("ask", request.node, request.node_nth)
            if by_node
            else self._entry("ask", None, request.nth)
        )
        if not isinstance(entry, dict):
            return AskReply(text=entry if isinstance(entry, str) else json.dumps(entry))
        await _pause(entry)
        _throw(entry)
        return AskReply(text=str(entry.get("text", "")), usage=entry.get("usage") or {})

    async def close(self) -> None:
        """Nothing is held open."""

    def _entry(self, part: str, node: str | None, nth: int) -> Any:
        found = self._script.get(part) or {}
        entries = found if node is None else found.get(node)
        if not entries or nth > len(entries):
            raise _exhausted(part if node is None else f"{part}.{node}", len(entries or ()), nth)
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


def _turns_of(entry: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The answers an invocation is made of: those written out as `turns`, or the calls and then the result."""
    if "turns" in entry:
        written: Sequence[Mapping[str, Any]] = entry["turns"]
        return written
    if not entry.get("tool_calls"):
        return (entry,)
    calling = {name: value for name, value in entry.items() if name not in ("throw", "data", "status")}
    ending = {name: value for name, value in entry.items() if name not in ("tool_calls", "progress", "usage")}
    return (calling, ending)


def _invalid(message: str) -> ProviderError:
    return ProviderError(message, code="SCRIPT_INVALID")


def _exhausted(where: str, count: int, nth: int) -> ProviderError:
    message = f"the script has {count} entries at {where}, and is asked for number {nth}"
    return ProviderError(message, code="SCRIPT_EXHAUSTED")


def _pauses(part: Any) -> bool:
    """Whether there is a delay anywhere in a script."""
    if isinstance(part, dict):
        return bool(part.get("delay")) or any(map(_pauses, part.values()))
    return isinstance(part, list) and any(map(_pauses, part))


async def _pause(said: Mapping[str, Any]) -> None:
    if not said.get("delay"):
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        # On the thread of a worker: the script has been changed since its work was handed there.
        time.sleep(float(said["delay"]))  # noqa: ASYNC251 -- there is no loop
    else:
        await asyncio.sleep(float(said["delay"]))


def _throw(said: Mapping[str, Any]) -> None:
    if "throw" in said:
        raise ProviderError(str(said["throw"]), code="SCRIPT_THROW")
