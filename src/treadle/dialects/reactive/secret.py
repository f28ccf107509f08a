"""Secrets in the params of effects: stored, hashed and shown by name, and only given to the executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from treadle.kernel.values import Value

from .shapes import NAT, TEXT, Misfit, Scalar


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret by name. Only the name is ever stored; an executor gets the value in its place."""

    alias: str
    version: int = 1


def _read_secret(raw: object) -> Value:
    if isinstance(raw, Secret):
        return {"$tag": "secret", "$value": {"alias": raw.alias, "version": raw.version}}
    if isinstance(raw, Mapping) and raw.get("$tag") == "secret" and len(raw) == 2:
        inner = raw.get("$value")
        if isinstance(inner, Mapping) and inner.keys() == {"alias", "version"}:
            return {
                "$tag": "secret",
                "$value": {"alias": TEXT.canon(inner["alias"]), "version": NAT.canon(inner["version"])},
            }
    raise Misfit(f'a secret by name, rx.secret("name") is expected, got {type(raw).__name__}')


class _SecretShape(Scalar):
    secrets = True


SECRET: Final = _SecretShape(
    "secret", _read_secret, lambda value: Secret(value["$value"]["alias"], value["$value"]["version"])
)


def secret_names(value: Value) -> list[str]:
    """The secrets that a canonical value names, in order of their appearance."""
    if isinstance(value, dict):
        if value.get("$tag") == "secret" and isinstance(value.get("$value"), dict):
            return [value["$value"]["alias"]]
        return [name for item in value.values() for name in secret_names(item)]
    if isinstance(value, list):
        return [name for item in value for name in secret_names(item)]
    return []
