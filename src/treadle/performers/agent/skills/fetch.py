"""Fetching URL Sources: public addresses only, ten seconds, a bearer token only where it belongs.

The guard sits where the socket is opened, so it holds for every hop of a redirect; a token goes to
the place it was configured for, and not where a redirect leads away from it. The ten seconds are
for all of it: every hop, and every byte of the answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx

from treadle.dialects.agent.sources import url_problem
from treadle.kernel.errors import TreadleError
from treadle.performers.agent.sources import CONTENT_BYTES_MAX, Fetch, SourceError
from treadle.work.http_guard import GuardedBackend, GuardedTransport, InsideAddress

TIMEOUT_S: Final = 10.0
REDIRECTS_MAX: Final = 5
PORTS: Final = {"http": 80, "https": 443}
Secret = Callable[[str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class UrlPlace:
    """Where a request goes."""

    scheme: str
    host: str
    port: int

    @staticmethod
    def of(url: str) -> UrlPlace:
        if problem := url_problem(url):
            raise SourceError(f"{url} {problem}", code="SOURCE_URL_UNREACHABLE")
        parts = urlsplit(url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise SourceError(f"{url} is not an http address", code="SOURCE_URL_BLOCKED")
        return UrlPlace(parts.scheme, parts.hostname.lower(), parts.port or PORTS[parts.scheme])


@dataclass(slots=True)
class UrlTokens:
    """`names` maps `host` or `host:port` to the secret or environment variable that holds its token.
    A token for a host goes to the port and scheme that the Source names, one for `host:port` there
    and nowhere else; neither follows a redirect anywhere else, nor from https to http."""

    names: Mapping[str, str]
    secret: Secret
    learn: Callable[[str, str], Any]

    async def headers(self, place: UrlPlace, first: UrlPlace) -> dict[str, str]:
        """What to send to `place`, after a redirect or none, for a Source at `first`."""
        name = self._name(place, first)
        if name is None:
            return {}
        try:
            found = await self.secret(name)
        except (TreadleError, KeyError):
            found = os.environ.get(name)
        if not isinstance(found, str) or not found:
            raise SourceError(
                f"{place.host} wants the token {name}, which is not set", code="SOURCE_URL_AUTH_REQUIRED"
            )
        self.learn(name, found)
        return {"Authorization": f"Bearer {found}"}

    def _name(self, place: UrlPlace, first: UrlPlace) -> str | None:
        host = f"[{place.host}]" if ":" in place.host else place.host
        if (first.scheme, place.scheme) != ("https", "http") and f"{host}:{place.port}" in self.names:
            return self.names[f"{host}:{place.port}"]
        return self.names.get(host, self.names.get(place.host)) if place == first else None


def fetcher(
    settings: Mapping[str, Any],
    secret: Secret,
    learn: Callable[[str, str], Any],
    timeout_s: float = TIMEOUT_S,
) -> Fetch:
    """`settings` is the workflow's `fetch`: `allow` lists hosts that may be inside, `auth` is the
    `names` of `Tokens`."""
    allow = [str(host) for host in settings.get("allow") or ()]
    names = {str(place).lower(): str(name) for place, name in (settings.get("auth") or {}).items()}
    tokens = UrlTokens(names, secret, learn)

    async def fetch(url: str) -> tuple[str, str]:
        limits = httpx.Limits(max_connections=4, max_keepalive_connections=0)
        transport = GuardedTransport(GuardedBackend(allow), verify=True, limits=limits)
        try:
            async with (
                asyncio.timeout(timeout_s),
                httpx.AsyncClient(transport=transport, timeout=timeout_s, follow_redirects=False) as client,
            ):
                return await _follow(client, url, tokens)
        except InsideAddress as error:
            # Its own remedy is for the http tool.
            reason = str(error).partition(";")[0]
            raise SourceError(
                f"{url}: {reason}; list the host in fetch.allow if it is meant", code="SOURCE_URL_BLOCKED"
            ) from error
        except TimeoutError as error:
            raise SourceError(
                f"{url} took longer than {timeout_s:g} s", code="SOURCE_URL_UNREACHABLE"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise SourceError(f"{url} cannot be reached: {reason}", code="SOURCE_URL_UNREACHABLE") from error

    return fetch


async def _follow(client: httpx.AsyncClient, url: str, tokens: UrlTokens) -> tuple[str, str]:
    first = UrlPlace.of(url)
    for _ in range(REDIRECTS_MAX + 1):
        headers = await tokens.headers(UrlPlace.of(url), first)
        async with client.stream("GET", url, headers=headers) as response:
            if response.has_redirect_location:
                url = urljoin(url, response.headers["location"])
                continue
            if response.status_code in (401, 403):
                raise SourceError(
                    f"{url}: HTTP {response.status_code}; name the secret with its token in fetch.auth, "
                    "or set another token there",
                    code="SOURCE_URL_AUTH_REQUIRED",
                )
            if not response.is_success:
                raise SourceError(f"{url}: HTTP {response.status_code}", code="SOURCE_URL_HTTP_ERROR")
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > CONTENT_BYTES_MAX:
                    raise SourceError(f"{url} is larger than 4 MiB", code="SOURCE_URL_HTTP_ERROR")
            at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            return body.decode(response.encoding or "utf-8", "replace"), at
    raise SourceError(f"{url}: more than {REDIRECTS_MAX} redirects", code="SOURCE_URL_HTTP_ERROR")
