"""Values as people type them: `key=value`, JSON, `@file`, `-` for standard input, `2h` ago."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .output import Usage


def standard_input() -> str:
    """All of it; a process may also be started without one."""
    try:
        return sys.stdin.read() if sys.stdin is not None else ""
    except UnicodeDecodeError as error:
        raise Usage("standard input is not UTF-8 text") from error


def is_typed() -> bool:
    """Whether a person can be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def loose(text: str) -> Any:
    """JSON if it parses, else the text itself."""
    try:
        return _json(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise Usage("the JSON is nested too deeply; flatten it") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Usage(f"the key {twice!r} stands twice in the JSON; remove one of the two")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def value(text: str | None, option: str) -> Any:
    """JSON, or `@file` (JSON or YAML), or `-` for standard input."""
    if text is None:
        return None
    if text == "-":
        return _parsed(standard_input(), "standard input")
    if text.startswith("@"):
        path = Path(text[1:])
        try:
            return _parsed(path.read_text("utf-8"), str(path))
        except FileNotFoundError as error:
            raise Usage(f"{option}: there is no file {path}") from error
        except (OSError, UnicodeError) as error:
            raise Usage(f"{option} cannot read {path}: {error}") from error
    try:
        return _json(text)
    except ValueError as error:
        raise Usage(
            f"{option} is not JSON ({error}). Quote it as in {option} '{{\"key\": 1}}', or give @file"
        ) from error


def _parsed(text: str, file: str) -> Any:
    from treadle.lang.text import parse

    return parse(text, file=file).value


def mapping(text: str | None, option: str) -> dict[str, Any]:
    found = value(text, option)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise Usage(f"{option} must be an object, as in {option} '{{\"key\": 1}}'")
    return found


def pairs(items: Sequence[str]) -> dict[str, Any]:
    """`key=value` …; the value is JSON if it parses, else text."""
    out = {}
    for item in items:
        key, sign, text = item.partition("=")
        if not sign or not key:
            raise Usage(f"{item!r} is not key=value")
        out[key] = loose(text)
    return out


def sources(items: Sequence[str], option: str) -> dict[str, Any]:
    """`NAME=SOURCE` …: text, `./file`, an address, or a mapping as in `x={"inline": "/text"}`."""
    out: dict[str, Any] = {}
    for item in items:
        name, _, text = item.partition("=")
        if not name or not text:
            raise Usage(f"{option} {item!r} is not NAME=SOURCE")
        found = loose(text) if text.lstrip().startswith("{") else text
        out[name] = found if isinstance(found, dict) else text
    return out


def secrets_file(path: Path | None) -> str | None:
    """`--secrets`: a file that can be read, told before anything is started."""
    if path is None:
        return None
    if not path.is_file():
        raise Usage(f"--secrets: there is no file {path}")
    from treadle.secrets.files import SecretsUnreadable, read_secrets_file

    try:
        read_secrets_file(path)
    except SecretsUnreadable as error:
        raise Usage(f"--secrets: {error.message}", code=error.code) from error
    return str(path.absolute())


def merged(base: Any, items: Sequence[str], option: str) -> Any:
    """`--input` with the keys of `-i` added."""
    extra = pairs(items)
    if not extra:
        return base
    if base is not None and not isinstance(base, dict):
        raise Usage(f"-i adds keys to {option}, so {option} must be an object")
    return {**(base or {}), **extra}


def budget(items: Sequence[str]) -> dict[str, Any]:
    """`--budget usd=5 --budget classify.tokens=20000`: caps of a run, and of its nodes."""
    found: dict[str, Any] = {}
    for item in items:
        name, sign, text = item.partition("=")
        node, _, cap = name.rpartition(".")
        try:
            amount = int(text) if cap == "tokens" else float(text)
        except ValueError:
            amount = 0
        if not sign or cap not in ("usd", "tokens") or not 0 < amount < float("inf"):
            raise Usage(f"--budget takes usd=N or tokens=N, or NODE.tokens=N for one node; not {item!r}")
        place = found.setdefault("nodes", {}).setdefault(node, {}) if node else found
        place[cap] = amount
    return found
