"""The servers on one file, each with a small file of its own beside it that says who it is.

A file has one owner; other servers are its guests, and nothing in the store tells of them. Each holds a lock on what it
wrote, which the operating system frees when it dies. So nobody writes now and then that it is still there: a store that
is idle is not written to.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from .files import folder_mode, mode_beside, written
from .owner import close_in_children

# A row is written in one go, always as long: whoever reads it meanwhile sees one or the other.
_BYTES: Final = 4096
# How long a server is remembered that is gone.
FORGOTTEN_NS: Final = 3_600_000_000_000


class ServerSeen(NamedTuple):
    id: str
    about: dict[str, Any]
    is_there: bool
    seen_ns: int


class FilePresence:
    """One server among those on a file."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._folder = store.with_name(store.name + "-servers")
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._fd: int | None = None
        self._said = b""

    def say(self, about: Mapping[str, Any]) -> None:
        """Says who we are; nothing is written where that has been said."""
        said = json.dumps(about).encode().ljust(_BYTES)
        if said == self._said or len(said) > _BYTES:
            return
        if self._fd is None:
            self._fd = self._opened()
            close_in_children(self)
        with written(self._folder):
            os.pwrite(self._fd, said, 0)
        self._said = said

    def _opened(self) -> int:
        mode = mode_beside(self._store)
        path = self._folder / self.id
        with written(path):
            self._folder.mkdir(mode=folder_mode(mode), exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def others(self) -> list[ServerSeen]:
        """Everybody else who is there, or was a while ago."""
        found = []
        for path in sorted(self._folder.glob("*")) if self._folder.is_dir() else ():
            if path.name != self.id and (seen := _seen(path)) is not None:
                found.append(seen)
        return found

    def dismiss(self, id: str) -> bool | None:
        """Forgets a server that is gone; False if it is there, None if nobody knows it."""
        path = self._folder / id
        if id == self.id:
            return False
        if path.name != id or not path.is_file():
            return None
        with _free(path) as free:
            if free:
                path.unlink(missing_ok=True)
        return free

    def leave(self) -> None:
        if self._fd is None:
            return
        with suppress(OSError):
            (self._folder / self.id).unlink()
            self._folder.rmdir()
        self.release()

    def release(self) -> None:
        """In a child: what is locked is its parent's."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd, self._said = None, b""


@contextmanager
def _free(path: Path) -> Iterator[bool]:
    """Whether nobody holds a file; nobody takes it meanwhile."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(fd)


def _seen(path: Path) -> ServerSeen | None:
    now = time.time_ns()
    with suppress(OSError, ValueError), _free(path) as free:
        written_ns = path.stat().st_mtime_ns
        if free and now - written_ns > FORGOTTEN_NS:
            path.unlink()
            return None
        about: dict[str, Any] = json.loads(path.read_bytes())
        return ServerSeen(path.name, about, not free, written_ns if free else now)
    return None
