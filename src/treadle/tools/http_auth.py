"""How a credential becomes headers of a request: bearer, basic, or a header of its own."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from .base import BadConfig, credential, need, pick
from .protocol import ToolCall


async def auth_headers(auth: Any, call: ToolCall) -> dict[str, str]:
    """`auth: NAME` reads the credential of that name; a mapping may name it (`credential`), give
    the fields itself, and say the `type`. A credential that is only a text is a bearer token."""
    if auth is None:
        return {}
    if isinstance(auth, str):
        auth = {"credential": auth}
    if not isinstance(auth, Mapping):
        raise BadConfig("the field 'auth' must be the name of a credential or a mapping")
    fields: dict[str, Any] = dict(auth)
    if (name := pick(auth, "credential", "key", "name")) is not None and "value" not in auth:
        found = await credential(call, str(name))
        fields = {**({"token": found} if isinstance(found, str) else found), **fields}
    return _headers(fields)


def _headers(fields: Mapping[str, Any]) -> dict[str, str]:
    kind = str(fields.get("type") or _kind_of(fields)).lower().replace("-", "_")
    token = pick(fields, "access_token", "token", "bearer", "value", "api_key")
    match kind:
        case "bearer" | "oauth2" | "token":
            return {"Authorization": f"Bearer {_need(token, 'token')}"}
        case "basic":
            user = need(fields, "username", "user", "client_id")
            password = pick(fields, "password", "client_secret", "token") or ""
            return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
        case "header" | "api_key" | "apikey":
            header = str(pick(fields, "header", "header_name") or "X-API-Key")
            return {header: f"{fields.get('prefix') or ''}{_need(token, 'value')}"}
    raise BadConfig(f"auth.type {kind!r} is not known; use bearer, basic or header")


def _kind_of(fields: Mapping[str, Any]) -> str:
    """What the fields themselves say."""
    if pick(fields, "header", "header_name", "api_key") is not None:
        return "header"
    if pick(fields, "access_token", "token", "bearer") is not None:
        return "bearer"
    return "basic" if pick(fields, "username", "user") is not None else "bearer"


def _need(value: Any, field: str) -> str:
    if value is None:
        raise BadConfig(f"the credential has no field {field!r}")
    return str(value)
