"""Large payloads in an S3-compatible store, named by their digest: `?blobs=s3://bucket/prefix` at the store's address.

The same promises as files beside a database (`blobs.py`): an object is written before the commit that refers to it, and
read back against size and digest. Keys and region come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
`AWS_ENDPOINT_URL`, …), as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from treadle.kernel.errors import BlobCorrupt, BlobMissing, StoreUnavailable, Unsupported
from treadle.kernel.values import digest_bytes

_PREFIX: Final = "sha256:"


class BlobObjects:
    """As `BlobFiles`, elsewhere."""

    # Each is a request of its own.
    removed_at_once = 2

    def __init__(self, url: str) -> None:
        try:
            from obstore.store import from_url
        except ModuleNotFoundError as error:
            raise Unsupported(f"payloads at {url} need {error.name}: pip install 'treadle[s3]'") from error
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc:
            raise Unsupported(f"payloads are kept at s3://bucket/prefix, not at {url!r}")
        options: dict[str, Any] = {"virtual_hosted_style_request": False}
        self._place = url
        self._store: Any = from_url(url, client_options={"allow_http": True}, **options)

    @staticmethod
    def _path(digest: str) -> str:
        name = digest.removeprefix(_PREFIX)
        return f"{name[:2]}/{name[2:]}"

    def write(self, digest: str, body: bytes) -> None:
        """Once: what is there under a digest is what belongs there."""
        try:
            if self._size(digest) != len(body):
                self._store.put(self._path(digest), body)
        except BlobMissing:
            self._put(digest, body)

    def _put(self, digest: str, body: bytes) -> None:
        try:
            self._store.put(self._path(digest), body)
        except Exception as error:
            raise self._away(error) from error

    def _away(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"{self._place} does not take or give payloads: {type(error).__name__}")

    def _size(self, digest: str) -> int:
        try:
            return int(self._store.head(self._path(digest))["size"])
        except FileNotFoundError as error:
            raise BlobMissing(f"{digest}: it is not at {self._place} any more") from error
        except Exception as error:
            raise self._away(error) from error

    def read(self, digest: str, size: int) -> bytes:
        try:
            body = bytes(self._store.get(self._path(digest)).bytes())
        except FileNotFoundError as error:
            raise BlobMissing(f"{digest}: it is not at {self._place} any more") from error
        except Exception as error:
            raise self._away(error) from error
        if len(body) != size or digest_bytes(body) != digest:
            raise BlobCorrupt(f"{digest}: what is at {self._place} is not it any more")
        return body

    def check(self, digest: str, size: int) -> None:
        if self._size(digest) != size:
            raise BlobCorrupt(f"{digest}: what is at {self._place} is not it any more")

    def remove(self, digest: str) -> None:
        try:
            self._store.delete(self._path(digest))
        except FileNotFoundError:
            return
        except Exception as error:
            raise self._away(error) from error

    def digests(self, before_ns: int | None = None) -> Iterator[str]:
        try:
            for page in self._store.list():
                for row in page:
                    if before_ns is not None and row["last_modified"].timestamp() * 1e9 >= before_ns:
                        continue
                    name = "".join(str(row["path"]).split("/")[-2:])
                    yield f"{_PREFIX}{name}"
        except Exception as error:
            raise self._away(error) from error
