"""A warm pool of Python processes, each killable at any time.

A process serves one call at a time. It is killed (with everything it started) when its call is
cancelled or out of time, replaced when it dies, and retired after many calls or when a call left
something behind that cannot be put back (`python_state`). Every frame begins with the id of its call,
which nobody can guess: what is written to the pipe by others, or for another call, ends the process
and fails the call at hand; it is never taken for its answer. Processes get a small environment: none
of the engine's secrets are in it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import secrets
import signal
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from .base import RESULT_BYTES_MAX
from .pipes import ReadPipe
from .watchdog import WATCHDOG

CALLS_PER_PROCESS_MAX: Final = 2_000
# Above this, decoding is done on a thread: it would hold up all others on the loop.
_LARGE_BYTES: Final = 256 * 1024
_ID_BYTES: Final = 16
_HEAD_BYTES: Final = _ID_BYTES + 4
STDERR_TAIL_BYTES: Final = 4096
_LAST_WORDS_S: Final = 1.0
_CHILD: Final = str(Path(__file__).with_name("python_child.py"))
# What a program needs to find its files, its language and its way out. Everything else of the
# engine's environment stays with the engine; a task names what it wants under `env`.
_ENVIRONMENT: Final = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|TEMP|TMP|PYTHONPATH|VIRTUAL_ENV|LD_LIBRARY_PATH|"
    "SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|(?i:https?_proxy|no_proxy)|SYSTEMROOT"
)
# The child's own folder must not be on its import path: it holds files named http.py and nats.py.
_BOOT: Final = "import sys; sys.path.pop(0); import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"


class ProcessDied(Exception):
    """The process ended in the middle of a call. `signal` is its name if one ended it."""

    def __init__(self, returncode: int | None, stderr: str) -> None:
        self.signal = signal.Signals(-returncode).name if returncode is not None and returncode < 0 else None
        self.returncode = returncode
        self.stderr = stderr
        how = f"was ended by {self.signal}" if self.signal else f"exited with code {returncode}"
        super().__init__(f"the Python process {how} in the middle of the task")


class ForeignAnswer(Exception):
    """Something that is no answer to this call came through the pipe of answers."""

    def __init__(self) -> None:
        super().__init__(
            "the code, or a process that it started, wrote to the pipe of its answer; the process was ended"
        )


class PythonRequest(msgspec.Struct, kw_only=True):
    """One piece of code and its surroundings, as the child wants them."""

    code: str
    name: str
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    context: dict[str, Any] = msgspec.field(default_factory=dict)
    libs: dict[str, Any] = msgspec.field(default_factory=dict)
    packages: list[str] = msgspec.field(default_factory=list)
    sys_path: list[str] = msgspec.field(default_factory=list)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    cwd: str | None = None
    memory_bytes: int = 2048 * 1024 * 1024
    result_bytes_max: int = RESULT_BYTES_MAX

    def encode(self, tag: str) -> bytes:
        def raw(value: bytes) -> dict[str, str]:
            return {tag: base64.b64encode(value).decode()}

        body = msgspec.structs.asdict(self)
        # Values of the run are texts of their own: only in them may there be bytes under the tag.
        values = {name: json.dumps(body[name], default=raw) for name in ("args", "context")}
        return json.dumps({**body, **values}).encode()


OnOutput = Callable[[str, str], Awaitable[None]]


class _Answers(asyncio.StreamReader):
    """Knows how much has come, so that it can be told whether anything is left."""

    received = 0

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # a pipe's protocol feeds bytes
        self.received += len(data)
        super().feed_data(data)


class PythonProcess:
    """One child: started, used, killed."""

    def __init__(
        self, process: asyncio.subprocess.Process, answers: _Answers, out: ReadPipe, err: ReadPipe
    ) -> None:
        self._process = process
        self._answers = answers
        self._out = out
        self._err = err
        self._stderr = b""
        self._drain = asyncio.create_task(self._keep_stderr_tail())
        self._read = 0
        self.calls = 0
        WATCHDOG.add(process.pid)
        self.usable = True

    @classmethod
    async def start(cls, interpreter: str) -> PythonProcess:
        environment = {k: v for k, v in os.environ.items() if _ENVIRONMENT.fullmatch(k)}
        answers = _Answers()
        out, err = await ReadPipe.pair(answers)
        try:
            process = await asyncio.create_subprocess_exec(
                *(interpreter, "-X", "utf8", "-u", "-c", _BOOT, _CHILD),
                stdin=asyncio.subprocess.PIPE,
                stdout=out.fd,
                stderr=err.fd,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            out.close()
            err.close()
            raise
        out.started()
        err.started()
        return cls(process, answers, out, err)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come since the last answer; else the process is not to be trusted."""
        return self._answers.received == self._read and self._process.returncode is None

    async def call(self, request: PythonRequest, on_output: OnOutput) -> dict[str, Any]:
        """The child's reply. Raises ProcessDied, ForeignAnswer; a cancelled call leaves the process
        unusable."""
        self.usable = False
        self.calls += 1
        id = secrets.token_bytes(_ID_BYTES)
        stdin = self._process.stdin
        assert stdin is not None
        try:
            data = request.encode(id.hex())
            stdin.write(id + struct.pack(">I", len(data)) + data)
            await stdin.drain()
            while "out" in (reply := await self._frame(id, request.result_bytes_max)):
                await on_output(reply["stream"], reply["out"])
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            stdin.close()
            await self._process.wait()
            await asyncio.wait([self._drain], timeout=_LAST_WORDS_S)
            raise ProcessDied(self._process.returncode, self._stderr.decode(errors="replace")) from error
        self.usable = not reply["retire"] and self.calls < CALLS_PER_PROCESS_MAX
        return reply

    async def _frame(self, id: bytes, bytes_max: int) -> dict[str, Any]:
        head = await self._answers.readexactly(_HEAD_BYTES)
        (size,) = struct.unpack(">I", head[_ID_BYTES:])
        if not secrets.compare_digest(head[:_ID_BYTES], id) or size > bytes_max + _HEAD_BYTES:
            raise ForeignAnswer
        data = await self._answers.readexactly(size)
        self._read += _HEAD_BYTES + size
        try:
            if size > _LARGE_BYTES:
                return checked_frame(await asyncio.to_thread(_decode, data, id.hex()))
            return checked_frame(_decode(data, id.hex()))
        except (ValueError, RecursionError) as error:  # the code has broken what writes its answers
            raise ForeignAnswer from error

    async def stop(self) -> None:
        """Kills the process and all it started, and waits until it is gone, also for who is cancelled: that takes a
        moment, and nothing is left behind."""
        self.usable = False
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        # A grandchild in a session of its own may hold stderr open; it must not hold us.
        self._drain.cancel()
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await self._process.wait()
                await asyncio.wait([self._drain])
                break
            except asyncio.CancelledError as error:
                cancelled = error
        WATCHDOG.remove(self._process.pid)
        self._out.close()
        self._err.close()
        if cancelled is not None:
            raise cancelled

    async def _keep_stderr_tail(self) -> None:
        while chunk := await self._err.reader.read(65536):
            self._stderr = (self._stderr + chunk)[-STDERR_TAIL_BYTES:]


def checked_frame(frame: Any) -> dict[str, Any]:
    """What a child sends: a piece of output, its result, or its error. Raises ValueError for anything else."""
    if isinstance(frame, dict):
        for names in (("out", "stream"), ("error", "message", "traceback")):
            if names[0] in frame and not all(isinstance(frame.get(name), str) for name in names):
                raise ValueError("a field that is text is missing")
        if "out" in frame or (("result" in frame or "error" in frame) and "retire" in frame):
            return frame
    raise ValueError("neither output nor an answer")


def _decode(data: bytes, tag: str) -> Any:
    def revive(pairs: dict[str, Any]) -> Any:
        return base64.b64decode(pairs[tag]) if tag in pairs else pairs

    return json.loads(data, object_hook=revive if tag.encode() in data else None)


class PythonPool:
    """Up to `size` processes per interpreter, started when needed and kept warm."""

    def __init__(self, size: int | None = None) -> None:
        given = size or int(os.environ.get("TREADLE_PYTHON_PROCESSES") or 0)
        self._size = given or max(4, os.cpu_count() or 1)
        self._idle: dict[str, deque[PythonProcess]] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}

    async def call(
        self,
        request: PythonRequest,
        on_output: OnOutput,
        *,
        interpreter: str | None = None,
        fresh: bool = False,
    ) -> dict[str, Any]:
        """Runs one request. `fresh` gives it a process that nothing else has used or will use."""
        program = interpreter or sys.executable
        slots = self._slots.setdefault(program, asyncio.Semaphore(self._size))
        async with slots:
            idle = self._idle.setdefault(program, deque())
            process = None if fresh else await _quiet(idle)
            process = process or await PythonProcess.start(program)
            try:
                return await process.call(request, on_output)
            finally:
                if process.usable and not fresh:
                    idle.append(process)
                else:
                    await process.stop()

    async def close(self) -> None:
        """Stops the idle processes; busy ones stop with their calls."""
        for idle in self._idle.values():
            while idle:
                await idle.pop().stop()


async def _quiet(idle: deque[PythonProcess]) -> PythonProcess | None:
    """A warm process that is as its last call left it. One that has spoken since is ended."""
    while idle:
        process = idle.pop()
        if process.is_quiet:
            return process
        await process.stop()
    return None
