"""People whom somebody else vouches for: bearer tokens of an OIDC issuer, verified here with its published keys.

A token counts only if it is signed by a key of the issuer with an algorithm that key is for, is meant for this
audience, and has not expired. Keys are fetched once; a token that names an unknown one has them fetched again, at
most once a minute, so that a key can be rotated and nobody can make us knock at the issuer's door.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import jwt

from treadle.kernel.errors import TreadleError, Unsupported
from treadle.runtime.commands import OWN_NAMES

from .access import Caller, Login, is_loopback
from .problems import RequestRefused

log = logging.getLogger("treadle.server")

LEEWAY_S: Final = 60
REFETCH_S: Final = 60
_FETCH_S: Final = 10
_ANSWER_BYTES_MAX: Final = 1024 * 1024
# Signed with a key pair. A shared secret, or none, proves nothing to somebody who publishes keys.
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OidcOptions:
    issuer: str
    audience: str
    # The claims that name the user and the roles.
    user: str = "sub"
    roles: str = "roles"
    # Their groups to our roles; without any, their names are ours.
    groups: Mapping[str, str] = field(default_factory=dict)
    # The public client as which the console logs people in, and what it asks for besides who they are.
    client: str | None = None
    scope: str = "openid"


class Oidc:
    """An issuer (`access.Issuer`)."""

    def __init__(self, options: OidcOptions, *, now: Callable[[], float] = time.monotonic) -> None:
        _check_address(options.issuer)
        self._options = options
        self._now = now
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched: float | None = None
        self._fetching = asyncio.Lock()

    @property
    def login(self) -> Login | None:
        options = self._options
        if options.client is None:
            return None
        return Login(options.issuer, options.client, options.audience, options.scope)

    async def actor(self, token: str) -> Caller | None:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            return None
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            return None
        key = await self._key(header.get("kid"))
        if key is None or not _is_for(key, algorithm):
            return None
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._options.audience,
                issuer=self._options.issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError:
            return None
        return self._of(claims)

    def _of(self, claims: Mapping[str, Any]) -> Caller | None:
        user = _claim(claims, self._options.user)
        if not isinstance(user, str) or not user or user.startswith(OWN_NAMES):
            return None
        said = _claim(claims, self._options.roles)
        names: Sequence[Any] = (
            said.split() if isinstance(said, str) else said if isinstance(said, list) else ()
        )
        groups = self._options.groups
        mapped = [groups.get(name) if groups else name for name in names if isinstance(name, str)]
        roles = tuple(dict.fromkeys(role for role in mapped if role))
        return Caller(user, roles, "oidc", None, int(claims["exp"]) * 1_000_000_000)

    # --- keys ---

    async def _key(self, name: str | None) -> jwt.PyJWK | None:
        if (known := self._known(name)) is not None:
            return known
        async with self._fetching:
            if (known := self._known(name)) is not None:
                return known
            if self._fetched is None or self._now() - self._fetched >= REFETCH_S:
                await self._fetch()
        return self._known(name)

    def _known(self, name: str | None) -> jwt.PyJWK | None:
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(name)

    async def _fetch(self) -> None:
        before, self._fetched = self._fetched, self._now()
        try:
            async with httpx.AsyncClient(timeout=_FETCH_S, follow_redirects=False) as client:
                about = await _document(
                    client, f"{self._options.issuer.rstrip('/')}/.well-known/openid-configuration"
                )
                if about.get("issuer") != self._options.issuer:
                    raise ValueError("it calls itself by another name")
                _check_address(str(about["jwks_uri"]))
                found = await _document(client, str(about["jwks_uri"]))
            self._keys = {key.get("kid"): jwt.PyJWK(key) for key in found["keys"] if _verifies(key)}
        except (httpx.HTTPError, ValueError, KeyError, TypeError, jwt.PyJWTError, TreadleError) as error:
            log.warning("the keys of %s cannot be fetched: %s", self._options.issuer, type(error).__name__)
            if before is None:
                # Nobody could be told apart from nobody: ask again with the next token.
                self._fetched = None
                raise RequestRefused(
                    "ISSUER_UNAVAILABLE",
                    "the issuer of this token does not answer; try again",
                    cls="transport",
                ) from error


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """A claim by its name, or by the way to it: `realm_access.roles`."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _verifies(key: Mapping[str, Any]) -> bool:
    """Whether a published key is one to verify with. A secret among them is somebody's mistake."""
    return key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"


def _is_for(key: jwt.PyJWK, algorithm: str) -> bool:
    return key.key_type == {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}[algorithm[:2]]


async def _document(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    async with client.stream("GET", url, headers={"Accept": "application/json"}) as answer:
        answer.raise_for_status()
        kept = bytearray()
        async for chunk in answer.aiter_bytes():
            kept += chunk
            if len(kept) > _ANSWER_BYTES_MAX:
                raise ValueError("too much")
    found = json.loads(kept)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return
    raise Unsupported(
        f"{url} is no address of an issuer: https, or http on this machine", code="ISSUER_ADDRESS"
    )
