"""OAuth 2.0 tokens: fetched once, shared by all runs of a worker, renewed shortly before they expire.

Client credentials, password and refresh grants against any token endpoint. A token is found by the
request that fetches it, so two keychain entries that mean the same client share one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from treadle.kernel.errors import SecretMissing
from treadle.kernel.values import digest
from treadle.lang.duration import instant_text

from .redact import without_credentials

RENEW_BEFORE_S: Final = 60.0
TOKEN_LIFE_S_DEFAULT: Final = 3600.0
# So long after its end a token that was renewed is no secret any more.
FORGOTTEN_AFTER_S: Final = 3600.0
TOKEN_LIFE_S_MAX: Final = 10 * 365 * 86_400.0


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask the endpoint for. `renew_before_s` is the safety margin at the end of a life."""

    endpoint: str
    data: dict[str, str]
    headers: dict[str, str]
    method: str = "POST"
    auto_renew: bool = True
    renew_before_s: float = RENEW_BEFORE_S

    def key(self) -> str:
        return digest([self.endpoint, self.method, self.headers, self.data])


class Token(msgspec.Struct, frozen=True):
    fields: dict[str, str]
    refresh_token: str | None
    renew_at: float
    # When it opens nothing any more, if its endpoint said so.
    until: float | None


class Tokens:
    """Tokens by request."""

    def __init__(
        self, clock: Callable[[], float] = time.time, forget: Callable[[str], None] = lambda text: None
    ) -> None:
        """`forget` is told of a token that is no secret any more: there are ever new ones, and each is looked for in all that
        leaves the worker."""
        self._clock = clock
        self._forget = forget
        self._kept: dict[str, Token] = {}
        # Those that were renewed, each with its end.
        self._renewed: list[tuple[float, str]] = []
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, request: TokenRequest) -> dict[str, str]:
        """`access_token` (also as `token`), `token_type`, `expires_at`. Callers that ask at the same
        time wait for one fetch. Raises SecretMissing with what the endpoint said."""
        key = request.key()
        async with self._locks.setdefault(key, asyncio.Lock()):
            token, now = self._kept.get(key), self._clock()
            if token is None or (request.auto_renew and now >= token.renew_at):
                before, token = token, await _renew(request, token, now)
                self._kept[key] = token
                self._tidy(before, now)
            return dict(token.fields)

    def _tidy(self, before: Token | None, now: float) -> None:
        if before is not None and before.until is not None:
            self._renewed.append((before.until, before.fields["token"]))
        over = [(until, text) for until, text in self._renewed if until + FORGOTTEN_AFTER_S <= now]
        self._renewed = [one for one in self._renewed if one not in over]
        # Some endpoints give the same one again while it is good.
        in_use = {token.fields["token"] for token in self._kept.values()} | {
            text for _, text in self._renewed
        }
        for _, text in over:
            if text not in in_use:
                self._forget(text)


async def _renew(request: TokenRequest, old: Token | None, now: float) -> Token:
    """A new token: by the refresh token if there is one, else as the first time."""
    if old is not None and old.refresh_token is not None:
        who = {k: v for k, v in request.data.items() if k in ("client_id", "client_secret")}
        refresh = {**who, "grant_type": "refresh_token", "refresh_token": old.refresh_token}
        # A refresh token can be revoked or used up; the first way still works, or says why not.
        with suppress(SecretMissing):
            return _token(request, await _fetch(request, refresh), now, old.refresh_token)
    return _token(request, await _fetch(request, request.data), now, None)


def _token(request: TokenRequest, answer: dict[str, Any], now: float, refresh: str | None) -> Token:
    text = str(answer["access_token"])
    said_s = _life_s(answer.get("expires_in"))
    life_s = TOKEN_LIFE_S_DEFAULT if said_s is None else said_s
    fields = {
        "access_token": text,
        "token": text,
        "token_type": str(answer.get("token_type") or "Bearer"),
        "expires_at": instant_text(int((now + life_s) * 1e9)),
    }
    # A token that lives shorter than the margin is still used for half its life.
    renew_at = now + max(life_s - request.renew_before_s, life_s / 2)
    until = None if said_s is None else now + said_s
    return Token(fields, answer.get("refresh_token") or refresh, renew_at, until)


def _life_s(said: Any) -> float | None:
    """As the endpoint says it, if that is a time that one can count on."""
    with suppress(TypeError, ValueError, OverflowError):
        if 0 < (life_s := float(said)) < TOKEN_LIFE_S_MAX:
            return life_s
    return None


async def _fetch(request: TokenRequest, data: dict[str, str]) -> dict[str, Any]:
    import httpx

    from treadle.work import http_guard

    guard = http_guard.GuardedBackend(http_guard.listed_as_allowed())
    guarded = guard if http_guard.guarded_by_default() else None
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)
    transport = http_guard.transport(guarded, verify=True, limits=limits)
    headers = {"Accept": "application/json", **request.headers}
    kind = next((v for k, v in headers.items() if k.lower() == "content-type"), "")
    try:
        async with httpx.AsyncClient(timeout=30, transport=transport) as client:
            response = await client.request(
                request.method,
                request.endpoint,
                headers=headers,
                json=data if "json" in kind else None,
                data=None if "json" in kind else data,
            )
    except http_guard.InsideAddress as error:
        raise SecretMissing(
            f"the token endpoint {_place(request)} is not reached: {error}", details={"code": "SSRF_BLOCKED"}
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SecretMissing(
            f"the token endpoint {_place(request)} does not answer ({type(error).__name__})",
            details={"retryable": True},
        ) from error
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        answer = None
    if response.is_success and isinstance(answer, dict) and answer.get("access_token"):
        return answer
    said = answer.get("error_description") or answer.get("error") if isinstance(answer, dict) else None
    raise SecretMissing(
        f"the token endpoint {_place(request)} answered {response.status_code}: {said or 'no access_token'}",
        details={"http_status": response.status_code, "retryable": response.status_code >= 500},
    )


def _place(request: TokenRequest) -> str:
    """The endpoint without what may be secret in it."""
    return without_credentials(request.endpoint).partition("?")[0]
