"""From the first line of a function to its outcome: what it leaves behind is cleaned up, what it did is undone."""

from __future__ import annotations

import asyncio
import linecache
from collections.abc import Sequence
from pathlib import PurePath
from types import TracebackType
from typing import Any

from treadle.kernel.errors import TreadleError
from treadle.kernel.stops import is_stop

from .context import Context
from .errors import ContinueAs, Dropped, StepFailed
from .guard import unwatched
from .life import Life, Outcome
from .shapes import typed
from .source import is_foreign

MESSAGE_CHARS_MAX = 4_000
FRAMES_MAX = 50


async def main(life: Life, context: Context) -> None:
    """The whole life of a function, as its main task. Leaves the outcome with the life."""
    outcome: tuple[Outcome, Any]
    try:
        code = life.code
        if code.has_input:
            outcome = (
                "completed",
                await code.function(context, typed(unwatched(life.input), code.takes)),
            )
        else:
            outcome = "completed", await code.function(context)
    except Dropped:
        raise
    except BaseException as error:
        if is_stop(error):
            raise
        asked = life.cancelled and isinstance(error, asyncio.CancelledError)
        outcome = ("cancelled" if asked else "failed"), error
        if (again := _again(error)) is not None:
            outcome = "again", again.input
    life.ending = True
    if left := unwatched(life.loop.left):
        await settle(left)
    if outcome[0] == "again" and life.cancelled:  # who is cancelled does not begin anew
        outcome = "cancelled", asyncio.CancelledError()
    if outcome[0] in ("failed", "cancelled") or life.expired is not None:
        await _undo(life)
    life.outcome = outcome


def _again(error: BaseException) -> ContinueAs | None:
    """That the function continues as itself; a TaskGroup wraps it up."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ContinueAs) else None


async def settle(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancels what is not done, once and in order, and waits for its clean-up. A cancel that comes meanwhile is
    raised then."""
    late: asyncio.CancelledError | None = None
    for task in tasks:
        if not task.done():
            task.cancel()
    for task in tasks:
        while not task.done():
            try:
                await quietly(task)
            except asyncio.CancelledError as error:
                late = error
        if not task.cancelled():
            task.exception()
    if late is not None:
        raise late


async def quietly(task: asyncio.Future[Any]) -> None:
    """Waits until a task is done, whatever comes of it. Being cancelled does not cancel the task."""
    done = asyncio.get_running_loop().create_future()

    def wake(_: object) -> None:
        if not done.done():
            done.set_result(None)

    task.add_done_callback(wake)
    try:
        await done
    finally:
        task.remove_done_callback(wake)


async def _undo(life: Life) -> None:
    """Compensations, one by one, the last first. One that fails does not stop the rest."""
    while life.undo:
        step, args, kwargs = life.undo.pop()
        told: dict[str, Any] = {"step": step.name, "status": "completed", "error": None}
        try:
            await step.in_run(life, args, kwargs)
        except Exception as error:
            told = {"step": step.name, "status": "failed", "error": error_of(error)}
        life.undone.append(told)


def error_of(error: BaseException) -> dict[str, Any]:
    """An exception that left the function, as the error of its run."""
    if isinstance(error, StepFailed):
        told: dict[str, Any] = {
            "class": error.cls,
            "code": error.code,
            "message": error.message[:MESSAGE_CHARS_MAX],
        }
        return {**told, "where": None, "details": {**error.details, "step": error.step}}
    if isinstance(error, TreadleError):
        return error.to_value()
    text = _text(error)
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return {
        "class": "user",
        "code": "FUNCTION_RAISED",
        "message": message[:MESSAGE_CHARS_MAX],
        "where": None,
        "details": {"exception": type(error).__name__},
    }


def record_of(error: BaseException) -> int | None:
    """The record that brought the failure of a step, where one is behind an exception: the nearest."""
    todo, seen = [error], set[int]()
    while todo:
        found = todo.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, StepFailed) and found.record is not None:
            return found.record
        if isinstance(found, BaseExceptionGroup):
            records = [record for part in found.exceptions if (record := record_of(part)) is not None]
            if records:
                return min(records)
        todo += [behind for behind in (found.__cause__, found.__context__) if behind is not None]
    return None


def _text(error: BaseException) -> str:
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except BaseException:
        return ""


def traceback_of(traceback: TracebackType | None) -> list[dict[str, Any]]:
    """The author's lines of a traceback, outermost first."""
    found: list[dict[str, Any]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not is_foreign(code.co_filename):
            found.append(
                {
                    "file": PurePath(code.co_filename).name,
                    "line": traceback.tb_lineno,
                    "function": code.co_name,
                    "text": linecache.getline(code.co_filename, traceback.tb_lineno).strip(),
                }
            )
        traceback = traceback.tb_next
    return found[-FRAMES_MAX:]
