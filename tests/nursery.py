"""Python processes that have imported Treadle before they begin: real ones, forked from one that only imports.

To import takes a second of CPU for each `treadle serve`, and hundreds of tests start processes: to kill them, to see two
of them meet. What such a test is about begins after that. `Process(words)` takes what `python` would (`-m treadle.cli
serve …`, `-c code …`, `file.py …`) and is used like `subprocess.Popen` in text mode. What a cold start itself does is
shown by those tests that start `sys.executable` or the `treadle` command.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
MODES: Final = ("w", "r", "r")


class Process:
    """A forked process, as `subprocess.Popen(…, text=True)` would be one."""

    def __init__(
        self,
        words: Iterable[str | Path],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[str] | None = None,
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
        start_new_session: bool = False,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        ours: list[IO[str] | None] = []
        theirs: list[int] = []
        close: list[int] = []
        for number, asked in enumerate((stdin, stdout, stderr)):
            mine = None
            if asked == PIPE:
                read, write = os.pipe()
                given, kept = (read, write) if number == 0 else (write, read)
                close.append(given)
                mine = open(kept, MODES[number], encoding="utf-8")  # noqa: SIM115  # closed by `communicate` or its owner
            elif asked == DEVNULL:
                given = os.open(os.devnull, os.O_RDWR)
                close.append(given)
            elif asked == STDOUT:
                given = theirs[1]
            else:
                given = number if asked is None else asked if isinstance(asked, int) else asked.fileno()
            ours.append(mine)
            theirs.append(given)
        self.stdin, self.stdout, self.stderr = ours
        self.args = [str(word) for word in words]
        self.returncode: int | None = None
        told, tells = os.pipe()
        try:
            self.pid = _nursery().fork(
                {
                    "words": self.args,
                    "cwd": str(Path(cwd or ".").absolute()),
                    "env": environment,
                    "session": start_new_session,
                },
                [*theirs, tells],
            )
        finally:
            for one in (*close, tells):
                os.close(one)
        self._told = told

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        ended = self._ended(timeout)
        if ended is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return ended

    def _ended(self, patience: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], patience)[0]:
            said = os.read(self._told, 16)
            os.close(self._told)
            assert said, "the process that forks others is gone"
            self.returncode = int(said)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        said = {1: "", 2: ""}

        def read(number: int, stream: IO[str]) -> None:
            said[number] = stream.read()

        reading = [
            threading.Thread(target=read, args=(number, stream), daemon=True)
            for number, stream in ((1, self.stdout), (2, self.stderr))
            if stream is not None and not stream.closed
        ]
        for thread in reading:
            thread.start()
        if self.stdin is not None and not self.stdin.closed:
            if input:
                self.stdin.write(input)
            self.stdin.close()
        for thread in reading:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self._close()
        return said[1], said[2]

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None and not stream.closed:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
        self.wait()

    def __del__(self) -> None:
        if self.returncode is None and hasattr(self, "_told"):
            os.close(self._told)


def run(
    words: Iterable[str | Path],
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    input: str = "",
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run(…, capture_output=True, text=True)`."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as given,
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        given.write(input)
        given.seek(0)
        process = Process(words, cwd=cwd, env=env, stdin=given, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read(), err.read())


class _Nursery:
    """Our side of the process that forks."""

    def __init__(self) -> None:
        self._door, theirs = socket.socketpair()
        self._one_at_a_time = threading.Lock()
        self.variables = _of_python(os.environ)
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def fork(self, asked: dict[str, Any], streams: list[int]) -> int:
        different = _of_python(asked["env"]).items() ^ self.variables.items()
        assert not different, f"Python looks at these when it begins; start it cold: {sorted(different)}"
        message = json.dumps(asked).encode()
        with self._one_at_a_time:
            socket.send_fds(self._door, [len(message).to_bytes(4)], streams)
            self._door.sendall(message)
            return int.from_bytes(_exactly(self._door, 4))

    def close(self) -> None:
        self._door.close()
        self._process.wait(30)


@cache
def _nursery() -> _Nursery:
    return _Nursery()


def _of_python(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith("PYTHON")}


def _exactly(door: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = door.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _main(door: socket.socket) -> None:
    """The process that forks: it says how each of its children ended, and ends with whoever started it."""
    import treadle.bus.nats
    import treadle.bus.postgres
    import treadle.cli.main
    import treadle.engine
    import treadle.lang.yaml_reading
    import treadle.server.joining
    import treadle.server.remote
    import treadle.server.serving  # noqa: F401
    from treadle.cli.application import SUBJECTS
    from treadle.dialects import INSTALLED

    for subject in SUBJECTS:
        subject.load()
    for name in INSTALLED:
        __import__(f"treadle.dialects.{name}.dialect")
    gc.collect()
    gc.freeze()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    tells: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([door, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell(tells)
        if door in ready:
            begins, streams, _, _ = socket.recv_fds(door, 4, 4)
            if not begins:
                return
            size = int.from_bytes(begins + _exactly(door, 4 - len(begins)))
            asked = json.loads(_exactly(door, size))
            pid = os.fork()
            if not pid:
                for one in (door.fileno(), woken, wakes, streams[3], *tells.values()):
                    os.close(one)
                _child(asked, streams[:3])
            tells[pid] = streams[3]
            for one in streams[:3]:
                os.close(one)
            door.sendall(pid.to_bytes(4))


def _tell(tells: dict[int, int]) -> None:
    while tells:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        teller = tells.pop(pid)
        try:
            os.write(teller, str(os.waitstatus_to_exitcode(status)).encode())
        except BrokenPipeError:
            """Nobody asks any more."""
        os.close(teller)


def _child(asked: dict[str, Any], streams: list[int]) -> None:
    """Becomes what `python` with these words would be, up to its last line."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked["session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    code = 0
    try:
        _become(asked["words"], asked["cwd"])
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        if isinstance(left.code, str):
            sys.stderr.write(f"{left.code}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    # As an interpreter leaves, up to the modules, which are not taken apart.
    threading._shutdown()  # type: ignore[attr-defined]  # what Python itself calls here
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _become(words: list[str], folder: str) -> None:
    first, *rest = words
    sys.orig_argv = [sys.executable, *words]
    if first == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path.insert(0, folder)
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        sys.path.insert(0, str(Path(first).absolute().parent))
        sys.argv = words
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
