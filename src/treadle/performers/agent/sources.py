"""Resolving Sources: files are read, URLs fetched, each once per run; hashes and origins kept.

A file is looked for beside the workflow first, then in the current directory. How a URL is fetched
safely is injected (`Fetch`), so that this module needs no HTTP library. Whatever goes wrong ends as
a SourceError that names the field.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from treadle.dialects.agent.paths import brief
from treadle.dialects.agent.sources import Source, SourceShape, canonical_url, classify
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value
from treadle.secrets.redact import without_credentials
from treadle.work.job import StaysOpen

CONTENT_BYTES_MAX: Final = 4 * 1024 * 1024

# Fetches an address and gives its text and the instant it was fetched (RFC 3339).
# Raises SourceError.
Fetch = Callable[[str], Awaitable[tuple[str, str]]]


class SourceError(TreadleError):
    """A Source could not be resolved. Its code says why."""

    cls = "user"
    code = "SOURCE_FILE_NOT_FOUND"


async def resolve_all(
    fields: Mapping[str, Value],
    *,
    base: str | None,
    offline: bool,
    fetch: Fetch,
    known: Mapping[str, dict[str, Any]] = MappingProxyType({}),
) -> dict[str, dict[str, Any]]:
    """ResolvedSources by field path. The first that fails is an error that names its field. What is `known` need not
    be resolved."""
    cache: dict[tuple[str, str], dict[str, Any]] = {}
    found: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        if path in known:
            found[path] = known[path]
            continue
        try:
            source = classify(value)
            shown = without_credentials(source.origin) if source.kind == "url" else source.origin
            if source.kind == "inline":
                found[path] = _resolved(source, source.origin)
            else:
                place = await _place(source, base)
                key = (source.kind, place)
                if key not in cache:
                    cache[key] = await _resolve(source, place, offline=offline, fetch=fetch)
                # The same file may be written in several ways; each field keeps what was written there.
                found[path] = {**cache[key], "origin": shown}
            if not found[path]["content"].strip() and path.endswith(".instruction"):
                code = "SOURCE_FILE_READ_FAILED" if source.kind == "file" else "SOURCE_URL_HTTP_ERROR"
                raise SourceError(f"{shown} is empty, and an instruction needs text", code=code)
        except SourceShape as error:
            raise SourceError(str(error), code=error.code, where=path) from error
        except SourceError as error:
            message = without_credentials(error.message)
            raise SourceError(message, code=error.code, where=path, cls=error.cls) from error
    return found


async def _place(source: Source, base: str | None) -> str:
    """What a Source is known by: the same file, the same address are resolved once."""
    if source.kind == "file":
        # A few small files; the thread keeps a slow disk from stopping everybody else.
        return await asyncio.to_thread(_find, source.origin, base)
    return canonical_url(source.origin)


async def _resolve(source: Source, place: str, *, offline: bool, fetch: Fetch) -> dict[str, Any]:
    if source.kind == "file":
        return {**_resolved(source, await asyncio.to_thread(_read, place)), "sourcePath": place}
    if offline:
        raise SourceError(
            f"{source.origin} cannot be fetched: this run is offline", code="SOURCE_OFFLINE_REQUIRES_FETCH"
        )
    try:
        content, at = await fetch(source.origin)
    except (TreadleError, StaysOpen):
        raise
    except Exception as error:  # whatever a library raises: it is this Source that failed
        reason = str(error) or type(error).__name__
        raise SourceError(
            f"{source.origin} cannot be fetched: {reason}", code="SOURCE_URL_UNREACHABLE"
        ) from error
    return {**_resolved(source, content), "fetchedAt": at}


def _resolved(source: Source, content: str) -> dict[str, Any]:
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return {
        "content": content,
        "kind": source.kind,
        "origin": source.origin,
        "resolver": source.kind,
        "hash": digest,
    }


def _find(origin: str, base: str | None) -> str:
    """The file that is meant, as an absolute path without links."""
    path = Path(origin)
    try:
        tried = list(dict.fromkeys((root / path).absolute() for root in (Path(base or ""), Path.cwd())))
        for candidate in tried:
            if candidate.is_file():
                return str(candidate.resolve())
        is_other = any(candidate.exists() for candidate in tried)
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ENOENT):
            raise SourceError(f"{brief(origin)}: {error.strerror}", code="SOURCE_FILE_READ_FAILED") from error
        tried, is_other = [], False
    places = f" ({', '.join(brief(str(place)) for place in tried)})" if tried else ""
    hint = ""
    if origin.startswith(("/", "./", "../")):
        hint = f"; text that starts with {origin.partition('/')[0]}/ is read as a file: write {{inline: …}} if it is text"
    raise SourceError(
        f"{brief(origin)} is not a file{places}{hint}", code="SOURCE_FILE_READ_FAILED" if is_other else None
    )


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(CONTENT_BYTES_MAX + 1)
        text = data.decode("utf-8") if len(data) <= CONTENT_BYTES_MAX else None
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: {error}", code="SOURCE_FILE_READ_FAILED") from error
    if text is None:
        raise SourceError(
            f"{path} is larger than {CONTENT_BYTES_MAX // 1024 // 1024} MiB", code="SOURCE_FILE_READ_FAILED"
        )
    return text
