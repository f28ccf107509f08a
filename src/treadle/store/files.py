"""Files beside a store: who may read them, and what the operating system says when one cannot be written.

A new store is its owner's alone, whatever the umask: it holds everything that ran. Whoever wants to
share it changes the mode of its one file; what is made beside it later takes after that file.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from treadle.kernel.errors import StoreFull, StoreReadOnly, StoreUnavailable

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Around the making or writing of a file."""
    try:
        yield
    except OSError as error:
        said = f"cannot write {path}: {error.strerror}"
        if error.errno in _FULL:
            raise StoreFull(f"{said}; nothing was lost, make room and go on") from error
        if error.errno in _READ_ONLY:
            raise StoreReadOnly(f"{said}; let this user write there, or choose another --store") from error
        raise StoreUnavailable(f"{said}; choose another --store") from error


PRIVATE: Final = 0o600


def mode_beside(store: Path) -> int:
    """The permissions of a file beside a store: those of the store itself."""
    with suppress(OSError):
        return store.stat().st_mode & 0o666
    return PRIVATE


def folder_mode(mode: int) -> int:
    """The permissions of a folder whose files have these: whoever may read may also enter."""
    return mode | (mode & 0o444) >> 2


def make_private(path: Path) -> None:
    """Makes a file that only its owner may read, if none is there."""
    with written(path), suppress(FileExistsError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
        try:
            os.fchmod(fd, PRIVATE)  # a umask may take even the owner's own rights away
        finally:
            os.close(fd)
