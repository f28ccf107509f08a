"""A warm pool of Python processes, each killable at any time.

A process serves one call at a time. It is killed (with everything it started) when its call is
cancelled or out of time, replaced when it dies, and retired after many calls or when it leaves
threads behind. Processes get a small environment: none of the engine's secrets are in it.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .pipes import ReadPipe

CALLS_PER_PROCESS_MAX: Final = 2_000
REPLY_BYTES_MAX: Final = 256 * 1024 * 1024
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


@dataclass(slots=True, kw_only=True)
class PythonRequest:
    """One piece of code and its surroundings, as the child wants them."""

    code: str
    name: str
    args: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    libs: dict[str, Any] = field(default_factory=dict)
    packages: list[str] = field(default_factory=list)
    sys_path: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    memory_bytes: int | None = None

    def encode(self, tag: str) -> bytes:
        def raw(value: bytes) -> dict[str, str]:
            return {tag: base64.b64encode(value).decode()}

        body = {name: getattr(self, name) for name in self.__slots__}
        # Values of the run are texts of their own: only in them may there be bytes under the tag.
        values = {name: json.dumps(body[name], default=raw) for name in ("args", "context")}
        return json.dumps({**body, **values, "tag": tag}).encode()


OnOutput = Callable[[str, str], Awaitable[None]]


class PythonProcess:
    """One child: started, used, killed."""

    def __init__(self, process: asyncio.subprocess.Process, out: ReadPipe, err: ReadPipe) -> None:
        self._process = process
        self._out = out
        self._err = err
        self._stderr = b""
        self._drain = asyncio.create_task(self._keep_stderr_tail())
        self.calls = 0
        self.usable = True

    @classmethod
    async def start(cls, interpreter: str) -> PythonProcess:
        environment = {k: v for k, v in os.environ.items() if _ENVIRONMENT.fullmatch(k)}
        out, err = await ReadPipe.open(), await ReadPipe.open()
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
        return cls(process, out, err)

    async def call(self, request: PythonRequest, on_output: OnOutput) -> dict[str, Any]:
        """The child's reply. Raises ProcessDied; a cancelled call leaves the process unusable."""
        self.usable = False
        self.calls += 1
        tag = secrets.token_hex(16)
        stdin, stdout = self._process.stdin, self._out.reader
        assert stdin is not None
        try:
            data = request.encode(tag)
            stdin.write(struct.pack(">I", len(data)) + data)
            await stdin.drain()
            while True:
                (size,) = struct.unpack(">I", await stdout.readexactly(4))
                if size > REPLY_BYTES_MAX:
                    raise ProcessDied(None, f"a reply of {size} bytes is larger than {REPLY_BYTES_MAX}")
                reply = self._decode(await stdout.readexactly(size), tag)
                if "out" not in reply:
                    break
                await on_output(reply["stream"], reply["out"])
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            stdin.close()
            await self._process.wait()
            await asyncio.wait([self._drain], timeout=_LAST_WORDS_S)
            raise ProcessDied(self._process.returncode, self._stderr.decode(errors="replace")) from error
        self.usable = not reply["retire"] and self.calls < CALLS_PER_PROCESS_MAX
        return reply

    @staticmethod
    def _decode(data: bytes, tag: str) -> dict[str, Any]:
        def revive(pairs: dict[str, Any]) -> Any:
            return base64.b64decode(pairs[tag]) if tag in pairs else pairs

        reply: dict[str, Any] = json.loads(data, object_hook=revive if tag.encode() in data else None)
        return reply

    async def stop(self) -> None:
        """Kills the process and all it started, and waits until it is gone."""
        self.usable = False
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        # A grandchild in a session of its own may hold stderr open; it must not hold us.
        self._drain.cancel()
        await asyncio.gather(self._drain, return_exceptions=True)
        self._out.close()
        self._err.close()

    async def _keep_stderr_tail(self) -> None:
        while chunk := await self._err.reader.read(65536):
            self._stderr = (self._stderr + chunk)[-STDERR_TAIL_BYTES:]


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
            process = idle.pop() if idle and not fresh else await PythonProcess.start(program)
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
