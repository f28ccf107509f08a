"""Resolving Sources: files are read, URLs fetched, each once per run; hashes and origins kept.

A file is looked for beside the workflow first, then in the current directory. How a URL is fetched
safely is injected (`Fetch`), so that this module needs no HTTP library.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from treadle.dialects.agent.sources import Source, SourceShape, classify
from treadle.kernel.errors import TreadleError
from treadle.kernel.values import Value

CONTENT_BYTES_MAX: Final = 4 * 1024 * 1024

# Fetches an address and gives its text and the instant it was fetched (RFC 3339).
# Raises SourceError.
Fetch = Callable[[str], Awaitable[tuple[str, str]]]


class SourceError(TreadleError):
    """A Source could not be resolved. Its code says why."""

    cls = "user"
    code = "SOURCE_FILE_NOT_FOUND"


async def resolve_all(
    fields: Mapping[str, Value], *, base: str | None, offline: bool, fetch: Fetch
) -> dict[str, dict[str, Any]]:
    """ResolvedSources by field path. The first that fails is an error that names its field."""
    cache: dict[tuple[str, str], dict[str, Any]] = {}
    found: dict[str, dict[str, Any]] = {}
    for path, value in fields.items():
        try:
            source = classify(value)
            key = (source.kind, _canonical(source, base))
            if key not in cache:
                cache[key] = await _resolve(source, base=base, offline=offline, fetch=fetch)
            # The same file may be written in several ways; each field keeps what was written there.
            found[path] = {**cache[key], "origin": source.origin}
        except SourceShape as error:
            raise SourceError(str(error), code=error.code, where=path) from error
        except SourceError as error:
            raise SourceError(error.message, code=error.code, where=path, cls=error.cls) from error
    return found


def _canonical(source: Source, base: str | None) -> str:
    if source.kind == "file":
        return str(_candidates(source.origin, base)[0])
    return source.origin


def _candidates(origin: str, base: str | None) -> list[Path]:
    path = Path(origin)
    roots = [Path(base), Path.cwd()] if base is not None else [Path.cwd()]
    return [path] if path.is_absolute() else [(root / path).absolute() for root in roots]


async def _resolve(source: Source, *, base: str | None, offline: bool, fetch: Fetch) -> dict[str, Any]:
    if source.kind == "inline":
        return _resolved(source, source.origin)
    if source.kind == "file":
        # A few small files; the thread keeps a slow disk from stopping everybody else.
        content, path = await asyncio.to_thread(_read, source.origin, base)
        return {**_resolved(source, content), "sourcePath": path}
    if offline:
        raise SourceError(
            f"{source.origin} cannot be fetched: this run is offline", code="SOURCE_OFFLINE_REQUIRES_FETCH"
        )
    content, at = await fetch(source.origin)
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


def _read(origin: str, base: str | None) -> tuple[str, str]:
    tried = _candidates(origin, base)
    path = next((candidate for candidate in tried if candidate.is_file()), None)
    if path is None:
        hint = ""
        if origin.startswith("/"):
            hint = "; text that starts with / is read as a file: write {inline: …} if it is text"
        is_other = any(candidate.exists() for candidate in tried)
        raise SourceError(
            f"{origin} is not a file ({', '.join(map(str, tried))}){hint}",
            code="SOURCE_FILE_READ_FAILED" if is_other else None,
        )
    try:
        data = path.read_bytes()
        if len(data) > CONTENT_BYTES_MAX:
            raise SourceError(
                f"{path} is larger than {CONTENT_BYTES_MAX // 1024 // 1024} MiB",
                code="SOURCE_FILE_READ_FAILED",
            )
        return data.decode("utf-8"), str(path.resolve())
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: {error}", code="SOURCE_FILE_READ_FAILED") from error
