"""Whether a store is still where it was opened.

A file that is deleted, moved or replaced while it is open goes on taking writes, and nobody will ever
read them again. So after each commit the file's identity is compared with what it was, and a few times a
second that of its log, too. A call of `stat` is little beside a commit that waits for the disk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

Identity = tuple[int, int] | None


class Place:
    """The identity of a store's file as it was when it was opened; for its owner, also of its log,
    which is there for as long as the owner is."""

    def __init__(self, path: Path, *, log: bool) -> None:
        # Absolute: a process may change its folder.
        self._file = str(path.absolute())
        self._was = (_identity(self._file), _identity(self._file + "-wal") if log else None)

    def holds(self, *, log: bool = False) -> bool:
        """Whether the file is the one that was opened; with `log`, whether its log is, too."""
        was, log_was = self._was
        if _identity(self._file) != was:
            return False
        return not log or log_was is None or _identity(self._file + "-wal") == log_was


def _identity(file: str) -> Identity:
    try:
        found = os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def leave_open(connection: Any) -> None:
    """For a connection to a file that is gone: closing it would remove, by its name, the log of
    whatever store has taken its place. The end of the process closes it without that."""
    import ctypes  # for a store that is lost, and nothing else

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
