"""Large payloads as files beside the database, named by their digest.

A file is written under a temporary name, synced, renamed, and its folder synced, before the commit
that refers to it: a reference never outlives its payload. Reading verifies size and digest, so a
damaged file is an error, never wrong data. In memory there are no files: the table holds it all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from treadle.kernel.errors import BlobCorrupt, BlobMissing, StoreFull, StoreReadOnly
from treadle.kernel.values import digest_bytes

from .files import folder_mode, mode_beside

if TYPE_CHECKING:

    class BlobPlace(Protocol):
        """Where payloads are that are too large for the table. What is written is there when `write` returns."""

        # How many can be removed in no time.
        removed_at_once: int

        def write(self, digest: str, body: bytes) -> None: ...
        def read(self, digest: str, size: int) -> bytes: ...
        def check(self, digest: str, size: int) -> None:
            """Whether it is there and as large as it was."""
            ...

        def remove(self, digest: str) -> None: ...
        def digests(self, before_ns: int | None = None) -> Iterator[str]:
            """What is there; with a time, only what was written before it, and what was not written to its end."""
            ...


def blobs_at(place: str | None, store: Path | None) -> BlobPlace | None:
    """Where a store keeps its large payloads: at s3://bucket/prefix or in a folder, if that is said (TREADLE_BLOBS);
    else in files beside a file, and in the table of a server. Everybody on a store must be told the same."""
    if place and place.startswith("s3://"):
        from .objects import BlobObjects

        return BlobObjects(place)
    if place:
        return BlobFiles(Path(place) / "treadle")
    return None if store is None else BlobFiles(store)


def known(blobs: BlobPlace | None, digest: str) -> BlobPlace:
    """Where a payload is that is not in the table."""
    if blobs is None:
        raise BlobMissing(f"{digest} is not in the database; say where payloads are with TREADLE_BLOBS")
    return blobs


class BlobFiles:
    removed_at_once = 100

    def __init__(self, store: Path) -> None:
        self._store = store
        self._folder = store.with_name(store.name + "-blobs")

    def path(self, digest: str) -> Path:
        name = digest.removeprefix("sha256:")
        return self._folder / name[:2] / name[2:]

    def write(self, digest: str, body: bytes) -> None:
        path = self.path(digest)
        if path.exists() and path.stat().st_size == len(body):
            # Whoever wrote it may have died before its name was durable.
            self._sync(path.parent)
            return
        # Of its own: in containers every process has the same number.
        temporary = path.with_name(f"{path.name}.{os.urandom(8).hex()}.tmp")
        try:
            mode = mode_beside(self._store)
            for folder in (self._folder, path.parent):
                if not folder.is_dir():
                    folder.mkdir(folder_mode(mode), exist_ok=True)
                    folder.chmod(folder_mode(mode))
                    self._sync(folder.parent)
            with temporary.open("wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            self._sync(path.parent)
        except PermissionError as error:
            raise StoreReadOnly(f"cannot write {path}: {error.strerror}") from error
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreFull(f"cannot write {path}: {error.strerror}") from error

    def read(self, digest: str, size: int) -> bytes:
        try:
            body = self.path(digest).read_bytes()
        except FileNotFoundError as error:
            raise BlobMissing(f"{digest}: its file {self.path(digest)} is gone") from error
        if len(body) != size or digest_bytes(body) != digest:
            raise BlobCorrupt(f"{digest}: the file {self.path(digest)} does not hold it any more")
        return body

    def check(self, digest: str, size: int) -> None:
        """Whether the file is there and as large as it was."""
        try:
            found = self.path(digest).stat().st_size
        except FileNotFoundError as error:
            raise BlobMissing(f"{digest}: its file {self.path(digest)} is gone") from error
        if found != size:
            raise BlobCorrupt(f"{digest}: the file {self.path(digest)} does not hold it any more")

    def remove(self, digest: str) -> None:
        self.path(digest).unlink(missing_ok=True)

    def digests(self, before_ns: int | None = None) -> Iterator[str]:
        if self._folder.is_dir():
            for path in self._folder.glob("??/*"):
                if path.suffix != ".tmp" if before_ns is None else _was_written(path, before_ns):
                    yield f"sha256:{path.parent.name}{path.name}"

    @staticmethod
    def _sync(folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _was_written(path: Path, before_ns: int) -> bool:
    try:
        return path.stat().st_mtime_ns < before_ns
    except FileNotFoundError:
        return False  # somebody removed it just now, or gave it its name
