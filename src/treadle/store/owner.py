"""Who owns an embedded store: one process at a time, and the next one at once when it dies.

`flock` on a side file is freed by the operating system at the death of its holder, so nobody waits
for a time-out. It is for speed and good manners only: what protects the data is the epoch inside
every commit and the unique (run, seq) of the journal.

A lock belongs to the open file, which a child made by fork() without exec shares (a pool of
`multiprocessing`, for one): its copy would keep the lock when the owner dies. So children close it.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .files import mode_beside, written

if TYPE_CHECKING:

    class HeldFile(Protocol):
        def release(self) -> None: ...


_HELD: weakref.WeakSet[HeldFile] = weakref.WeakSet()


def close_in_children(held: HeldFile) -> None:
    """A lock of ours, which a child made by fork() must not keep."""
    _HELD.add(held)


if TYPE_CHECKING:

    class Tenure(Protocol):
        """How one process comes to own a store. The operating system keeps it for as long as the process is there."""

        # Whether the owner works for its own runs only; set before it is taken.
        alone: bool

        def acquire(self) -> bool:
            """Takes the store if nobody has it; never waits."""
            ...

        def helps(self) -> None:
            """From now on the owner works for everybody."""
            ...

        def works_alone(self) -> str | None:
            """Who owns the store and works for its own runs only; None: the owner helps everybody."""
            ...

        def waits_for(self) -> str:
            """Who keeps us from owning the store, and what to do about it."""
            ...

        def release(self) -> None: ...


class OwnerLock:
    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = store.with_name(store.name + "-owner")
        self._fd: int | None = None
        # Whether the owner works for its own runs only; set before the lock is taken.
        self.alone = False

    def acquire(self) -> bool:
        """Takes the lock if nobody holds it; never waits."""
        if self._fd is not None:
            return True
        try:
            # Nearly always it is there: a guest asks again and again.
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            mode = mode_beside(self._store)
            with written(self._path):
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        self._sign()
        close_in_children(self)
        return True

    def helps(self) -> None:
        """From now on the owner works for everybody."""
        self.alone = False
        self._sign()

    def _sign(self) -> None:
        assert self._fd is not None
        # The instant tells one opening by a process from its next.
        text = f"{os.getpid()} alone {time.time_ns()}" if self.alone else str(os.getpid())
        with suppress(OSError):  # a full disk: it is for messages and good manners only
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def works_alone(self) -> str | None:
        """Who owns the store and works for its own runs only; None: the owner helps everybody."""
        try:
            text = self._path.read_text()
        except OSError:
            return None
        return text if " alone " in text else None

    def holder(self) -> int | None:
        """The process that holds (or last held) the lock, for messages."""
        try:
            return int(self._path.read_text().partition(" ")[0] or "0") or None
        except (OSError, ValueError):
            return None

    def waits_for(self) -> str:
        """Who keeps us from owning the store, and what to do about it, for whoever waits long."""
        holder = self.holder()
        if holder is None or _is_alive(holder):
            return f"process {holder} owns this store and has not answered yet; if it hangs, stop it"
        return (
            f"process {holder} owned this store and is gone, but a process that it left behind holds its "
            f"lock; find that one with `fuser {self._path}` and stop it"
        )

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            _HELD.discard(self)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _let_go() -> None:
    """In a child: the lock is its parent's. Closing our copy frees nothing while the parent has its own."""
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_let_go)
