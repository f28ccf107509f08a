"""Files beside a store: what the operating system says when one cannot be written, in our words."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
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
            raise StoreReadOnly(said) from error
        raise StoreUnavailable(said) from error
