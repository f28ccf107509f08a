"""Who owns an embedded store: one process at a time, and the next one at once when it dies.

`flock` on a side file is freed by the kernel of the operating system at the death of its holder,
so nobody waits for a time-out. It is for speed and good manners only: what protects the data is
the epoch inside every commit and the unique (run, seq) of the journal.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from .files import written


class OwnerLock:
    def __init__(self, store: Path) -> None:
        self._path = store.with_name(store.name + "-owner")
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Takes the lock if nobody holds it; never waits."""
        if self._fd is not None:
            return True
        with written(self._path):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        with suppress(OSError):  # a full disk: the number is for messages only
            os.ftruncate(fd, 0)
            os.write(fd, str(os.getpid()).encode())
        self._fd = fd
        return True

    def holder(self) -> int | None:
        """The process that holds (or last held) the lock, for messages."""
        try:
            return int(self._path.read_text() or "0") or None
        except (OSError, ValueError):
            return None

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
