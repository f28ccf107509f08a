"""Fetching URL Sources: public addresses only, ten seconds, a bearer token only where it belongs.

The guard sits where the socket is opened, so it holds for every hop of a redirect; a token goes to
the host it was configured for and is dropped as soon as a redirect leaves that host.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx

from treadle.kernel.errors import TreadleError
from treadle.tools.http_guard import GuardedBackend, GuardedTransport, InsideAddress
from treadle.work.agent_sources import CONTENT_BYTES_MAX, Fetch, SourceError

TIMEOUT_S: Final = 10.0
REDIRECTS_MAX: Final = 5
Secret = Callable[[str], Awaitable[Any]]


def fetcher(settings: Mapping[str, Any], secret: Secret, learn: Callable[[str, str], Any]) -> Fetch:
    """`settings` is the workflow's `fetch`: `allow` lists hosts that may be inside, `auth` maps a
    host to the name of the secret or environment variable that holds its token."""
    allow = [str(host) for host in settings.get("allow") or ()]
    auth = {str(host).lower(): str(name) for host, name in (settings.get("auth") or {}).items()}

    async def token_for(host: str) -> str | None:
        name = auth.get(host)
        if name is None:
            return None
        try:
            found = await secret(name)
        except (TreadleError, KeyError):
            found = os.environ.get(name)
        if not isinstance(found, str) or not found:
            raise SourceError(
                f"{host} wants the token {name}, which is not set", code="SOURCE_URL_AUTH_REQUIRED"
            )
        learn(name, found)
        return found

    async def fetch(url: str) -> tuple[str, str]:
        limits = httpx.Limits(max_connections=4, max_keepalive_connections=0)
        transport = GuardedTransport(GuardedBackend(allow), verify=True, limits=limits)
        async with httpx.AsyncClient(
            transport=transport, timeout=TIMEOUT_S, follow_redirects=False
        ) as client:
            try:
                return await _follow(client, url, token_for)
            except InsideAddress as error:
                raise SourceError(
                    f"{url}: {error}; list the host in fetch.allow if it is meant", code="SOURCE_URL_BLOCKED"
                ) from error
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                reason = str(error) or type(error).__name__
                raise SourceError(
                    f"{url} cannot be reached: {reason}", code="SOURCE_URL_UNREACHABLE"
                ) from error

    return fetch


async def _follow(
    client: httpx.AsyncClient, url: str, token_for: Callable[[str], Awaitable[str | None]]
) -> tuple[str, str]:
    for _ in range(REDIRECTS_MAX + 1):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceError(f"{url} is not an http address", code="SOURCE_URL_BLOCKED")
        token = await token_for(parts.hostname.lower())
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with client.stream("GET", url, headers=headers) as response:
            if response.is_redirect:
                url = urljoin(url, response.headers["location"])
                continue
            if response.status_code in (401, 403):
                raise SourceError(f"{url}: HTTP {response.status_code}", code="SOURCE_URL_AUTH_REQUIRED")
            if response.status_code >= 400:
                raise SourceError(f"{url}: HTTP {response.status_code}", code="SOURCE_URL_HTTP_ERROR")
            body = b""
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > CONTENT_BYTES_MAX:
                    raise SourceError(f"{url} is larger than 4 MiB", code="SOURCE_URL_HTTP_ERROR")
            at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            return body.decode(response.encoding or "utf-8", "replace"), at
    raise SourceError(f"{url}: more than {REDIRECTS_MAX} redirects", code="SOURCE_URL_HTTP_ERROR")
