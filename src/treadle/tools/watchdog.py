"""What the engine starts ends with the engine, however that ends.

A killed engine cannot kill its commands, and the next owner does their work again: the two must not
run side by side. The kernel's own means (a death signal) reaches the first process only and hangs on
the thread that started it. So one small process for each engine process reads from a pipe which process
groups there are; when the pipe closes because the engine is gone, it kills them all.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

log = logging.getLogger("treadle.worker")

# Isolated and without site packages: it starts in a few milliseconds and needs nothing.
_CODE: Final = """
import os, signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
groups = set()
for line in sys.stdin.buffer:
    (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Watchdog:
    """Started with the first group, restarted should it be gone. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()

    @contextmanager
    def over(self, group: int) -> Iterator[None]:
        """While this lasts, the group of processes dies with us."""
        self.add(group)
        try:
            yield
        finally:
            self.remove(group)

    def add(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            if self._process is None or not self._tell(b"+%d\n" % group):
                self._start()

    def remove(self, group: int) -> None:
        with self._lock:
            self._groups.discard(group)
            self._tell(b"-%d\n" % group)

    def _start(self) -> None:
        if self._process is not None:
            self._close()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:  # no descriptor or process is left; the next group tries again
            log.warning("commands will outlive a killed engine: %s", error.strerror)
            return
        self._tell(b"".join(b"+%d\n" % group for group in self._groups))

    def _tell(self, line: bytes) -> bool:
        if self._process is None or self._process.stdin is None:
            return False
        try:
            self._process.stdin.write(line)
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """The engine's process ends in order: nothing is left to be killed."""
        with self._lock:
            for group in self._groups:
                self._tell(b"-%d\n" % group)
            self._close()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
        self._process = None

    def forget(self) -> None:
        """In a forked child: the pipe must close when the engine ends, not when the child does."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.returncode = 0  # not ours to wait for
        self._process, self._groups, self._lock = None, set(), threading.Lock()


WATCHDOG: Final = Watchdog()
atexit.register(WATCHDOG.stop)
os.register_at_fork(after_in_child=WATCHDOG.forget)
