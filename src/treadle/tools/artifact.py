"""`artifact`: puts a payload into a store and gives its reference; gets the payload of a reference.

Stores: files (`file://…` or a path, relative to the definition) and the engine's own
(`treadle://…`; `noetl://…` is read as the same). A reference holds size and checksum, and what is read
by it is checked against them. Files are written whole or not at all.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from treadle.kernel.errors import TreadleError
from treadle.kernel.values import digest_bytes

from .base import BadConfig, ToolBase, arguments, local_path, need, pick
from .portable import portable, unreadable
from .protocol import Outcome, ToolCall

_OURS: Final = ("treadle://", "noetl://")
_CHECKSUM: Final = re.compile("sha256:[0-9a-f]{64}")
_GZIP: Final = b"\x1f\x8b"
_LINES: Final = (".jsonl", ".ndjson")


class _Unavailable(Exception):
    """What a reference stands for cannot be had."""


class ArtifactTool(ToolBase):
    """Its fields are declared in `fields.ARTIFACT`; they may stand under `args` too."""

    kind = "artifact"
    idempotent = True

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        config = {**arguments(config), **{key: value for key, value in config.items() if value is not None}}
        action = str(config.get("action") or ("put" if "data" in config else "get"))
        if action not in ("get", "put"):
            raise BadConfig(f"the field 'action' must be get or put, not {action!r}")
        try:
            return Outcome(result=await (_get(config, call) if action == "get" else _put(config, call)))
        except _Unavailable as error:
            return Outcome.failed("not_found", str(error), code="REFERENCE_NOT_AVAILABLE")
        except TreadleError as error:
            if error.code == "BLOB_CORRUPT":
                return Outcome.failed("storage_access", error.message, code="CHECKSUM_MISMATCH")
            raise
        except OSError as error:
            kind = "storage_quota" if error.errno in (28, 122) else "storage_access"
            return Outcome.failed(kind, str(error), code="FILE_ERROR", retryable=kind == "storage_quota")

    async def close(self) -> None:
        """Nothing is held."""


async def _get(config: dict[str, Any], call: ToolCall) -> dict[str, Any]:
    wanted = need(config, "result_ref", "ref", "uri", "path")
    if not isinstance(wanted, Mapping | str):
        return {"data": wanted, "ref": None}
    if isinstance(wanted, Mapping):
        if not _refers(wanted):
            # A template that names a stored result gives the payload itself: it is here already.
            return {"data": dict(wanted), "ref": None}
        location = str(wanted.get("ref") or wanted["key"])
        if wanted["store"] != "file":
            return {"data": await _load(dict(wanted), call), "ref": location}
        path, expected = Path(str(wanted["key"])), wanted
    else:
        location = wanted
        if location.startswith(_OURS):
            return {"data": await _load(_reference(location), call), "ref": _ours(location)}
        path, expected = _file(location, call), {}
    content = await asyncio.to_thread(_read, path, expected)
    return {
        "data": _parse(content, path, str(config.get("format") or "auto")),
        "ref": location,
        "size": len(content),
        "checksum": digest_bytes(content),
    }


def _refers(value: Mapping[str, Any]) -> bool:
    """Whether it is a reference of this tool's: to the engine's own store, or to a file."""
    return {"store", "key", "checksum"} <= value.keys() and value["store"] in ("blob", "file")


async def _load(reference: dict[str, Any], call: ToolCall) -> Any:
    try:
        return await call.load_blob(reference)
    except KeyError as error:
        raise _Unavailable(f"{reference.get('ref') or reference.get('key')} is not in the store") from error
    except TreadleError as error:
        if error.code == "BLOB_MISSING":
            raise _Unavailable(error.message) from error
        raise


async def _put(config: dict[str, Any], call: ToolCall) -> dict[str, Any]:
    if "data" not in config:
        raise BadConfig("the field 'data' is missing: there is nothing to put")
    hint = config.get("schema_hint")
    uri = pick(config, "uri", "path", "ref")
    if uri is None or str(uri).startswith(_OURS):
        try:
            stored = await call.store_blob(portable(config["data"]), schema_hint=hint)
        except KeyError as error:
            raise _Unavailable("there is no store of results here; give a file:// address") from error
        return {**_described(f"treadle://blob/{stored['checksum']}", "execution"), **stored}
    path = _file(str(uri), call)
    content = _bytes(config["data"], path)
    if config.get("compress"):
        content = gzip.compress(content, mtime=0)
    await asyncio.to_thread(_write, path, content)
    return {
        **_described(path.as_uri(), "permanent"),
        "store": "file",
        "key": str(path),
        "checksum": digest_bytes(content),
        "size": len(content),
        "schema_hint": hint,
    }


def _described(address: str, scope: str) -> dict[str, Any]:
    """What every reference has besides the place, size and checksum of its payload."""
    extra: dict[str, Any] = {"scope": scope, "expires_at": None, "extracted": {}, "preview": None}
    return {"kind": "result_ref", "ref": address, "uri": address, **extra}


def _reference(location: str) -> dict[str, Any]:
    """The reference of an address; one that holds a checksum says all there is to know."""
    if found := _CHECKSUM.search(location):
        return {"ref": _ours(location), "store": "blob", "key": found[0], "checksum": found[0]}
    return {"ref": _ours(location)}


def _ours(location: str) -> str:
    return "treadle://" + location.partition("://")[2]


def _file(location: str, call: ToolCall) -> Path:
    if "://" in location and not location.startswith("file://"):
        scheme = location.partition("://")[0]
        raise BadConfig(f"{scheme}:// is not a store of this tool; use file:// or treadle://")
    return local_path(location, call).absolute()


def _read(path: Path, expected: Mapping[str, Any]) -> bytes:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise _Unavailable(f"there is no file {path}") from error
    checksum = expected.get("checksum")
    if checksum is not None and digest_bytes(content) != checksum:
        raise TreadleError(f"{path} is not what was put there: its checksum differs", code="BLOB_CORRUPT")
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise BadConfig(f"{path} is not gzip, or it was cut or damaged") from error


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _bytes(value: Any, path: Path) -> bytes:
    """Text and bytes as they are, a list as lines if the name says so, the rest as JSON."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list) and path.name.removesuffix(".gz").endswith(_LINES):
        return b"".join(msgspec.json.encode(portable(item)) + b"\n" for item in value)
    return msgspec.json.encode(portable(value))


def _parse(content: bytes, path: Path, wanted: str) -> Any:
    """What the name or `format` says: json, jsonl, text or bytes."""
    name = path.name.removesuffix(".gz")
    if wanted == "auto":
        suffix = ".jsonl" if name.endswith(_LINES) else Path(name).suffix
        wanted = {".json": "json", ".jsonl": "jsonl"}.get(suffix, "auto")
    try:
        match wanted:
            case "json":
                return portable(msgspec.json.decode(content))
            case "jsonl":
                return [portable(msgspec.json.decode(line)) for line in content.splitlines() if line.strip()]
            case "bytes":
                return content
            case "text":
                return content.decode()
            case "auto":
                try:
                    return content.decode()
                except UnicodeDecodeError:
                    return content
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadConfig(f"{path} is not {wanted}: {unreadable(error)}") from error
    raise BadConfig(f"the field 'format' must be auto, json, jsonl, text or bytes, not {wanted!r}")
