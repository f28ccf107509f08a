"""Steps in a process of their own (`process=True`): for what holds the interpreter, leaks, or must be killable.

The process comes from the warm pool of the `python` tool: it is killed with its call's time limit, its run's
cancellation and its engine. There it finds the step by file and name, so only what stands at the top of a module can
go there. Arguments and results cross as canonical bytes. What the step tells meanwhile (`progress`, `save`) comes back
through a socket that only this user can open; `save` returns there when it is durable here.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from treadle.definitions.files import load_python
from treadle.dialects.function.steps import STEPS, Step
from treadle.kernel.errors import Unsupported
from treadle.kernel.values import Value, decode, encode
from treadle.tools.python_pool import ForeignAnswer, ProcessDied, PythonPool, PythonRequest
from treadle.work.job import Done

from .calling import attempt
from .current import Current, StepRaised

# The process is as much the author's as a thread would be: no limit but the machine's.
_MEMORY_BYTES: Final = 2**62
_SIZE: Final = struct.Struct(">I")
_CODE: Final = "from treadle.performers.function.apart import main\nreturn main(call, door)"


class StepProcessEnded(StepRaised):
    """The process of a step ended in the middle of its call."""

    code = "STEP_PROCESS_ENDED"


class Apart:
    """Steps of one engine in processes."""

    def __init__(self) -> None:
        self._pool: PythonPool | None = None

    async def attempt(self, step: Step[..., Any], arguments: Value, now: Current) -> Done:
        """Calls a step once, in a process. However that ends is an outcome."""
        self._pool = self._pool or PythonPool()
        about = {
            "file": str(Path(step.function.__code__.co_filename).resolve()),
            "step": step.name,
            "args": arguments,
            "run": now.run,
            "attempt": now.attempt,
            "key": now.idempotency_key,
            "secrets": now.secrets,
            "saved": now.saved,
        }
        async with _door(now) as door:
            request = PythonRequest(
                code=_CODE,
                name=f"<{step.name}>",
                args={"call": encode(about), "door": door},
                sys_path=[path for path in sys.path if path],
                env=dict(os.environ),
                cwd=str(Path.cwd()),
                memory_bytes=_MEMORY_BYTES,
            )
            try:
                reply = await self._pool.call(request, _printed)
            except (ProcessDied, ForeignAnswer) as error:
                told = StepProcessEnded(f"{step.name}: {error}", details={"exception": type(error).__name__})
                return Done(status="error", error=told.to_value())
        if "error" in reply:
            # Not the step's own doing, which is an outcome: its file cannot be loaded there, or it gives too much.
            unable = StepRaised(
                f"{step.name} could not be called in a process: {reply['error']}",
                details={"exception": reply["error"], "traceback": reply["traceback"]},
            )
            return Done(status="error", error=unable.to_value())
        status, value, failure = decode(reply["result"])
        return Done(status=status, value=value, error=failure)

    async def close(self) -> None:
        """Stops the processes that wait; busy ones stop with their calls."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


async def _printed(stream: str, text: str) -> None:
    """What a step prints is shown where the worker's own output goes."""
    print(text, end="", file=sys.stderr if stream == "stderr" else sys.stdout)


@asynccontextmanager
async def _door(now: Current) -> AsyncIterator[str]:
    """A socket by which the step in its process reaches its job here."""
    served: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.append(task)
        writers.append(writer)
        try:
            while True:
                (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                what, given = decode(await reader.readexactly(size))
                if what == "save":
                    await now.save(given)
                else:
                    await now.progress(given["type"], given["value"], **given["data"])
                writer.write(b"\x01")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the step has nothing more to tell
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    with tempfile.TemporaryDirectory(prefix="treadle-step-") as folder:
        path = str(Path(folder) / "door")
        server = await asyncio.start_unix_server(serve, path)
        try:
            yield path
        finally:
            server.close()
            for writer in writers:  # then whoever reads from it comes to its end
                writer.close()
            await asyncio.gather(*served, return_exceptions=True)


# --- in the process -------------------------------------------------------------------------------


class _FarJob:
    """The job of a step that is worked on in another process, as far as a step may know it."""

    def __init__(self, door: str) -> None:
        self._door = door
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def progress(self, type: str, value: Value = None, /, **data: Value) -> None:
        await self._tell("progress", {"type": type, "value": value, "data": data})

    async def keep(self, value: Value) -> None:
        await self._tell("save", value)

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()

    async def _tell(self, what: str, given: Value) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(self._door)
        reader, writer = self._streams
        body = encode([what, given])
        writer.write(_SIZE.pack(len(body)) + body)
        await writer.drain()
        await reader.readexactly(1)


async def main(call: bytes, door: str) -> bytes:
    """One attempt, here: the step is found by its file and name, and does what it would do in a thread."""
    about = decode(call)
    job = _FarJob(door)
    now = Current(
        about["run"], about["step"], about["attempt"], about["key"], about["secrets"], about["saved"], job
    )
    try:
        done = await attempt(_found(about["file"], about["step"]), about["args"], now)
    finally:
        await job.close()
    return encode([done.status, done.value, done.error])


# When each file was last loaded here: a process is kept for many calls, and a file may change meanwhile.
_LOADED: dict[str, int] = {}


def _found(file: str, name: str) -> Step[..., Any]:
    path = Path(file)
    changed = path.stat().st_mtime_ns
    if name not in STEPS or _LOADED.get(file) != changed:
        load_python(path, None)
        _LOADED[file] = changed
    step = STEPS.get(name)
    if step is None:
        raise Unsupported(f"{file} has no step {name!r} at the top of its module")
    return step
