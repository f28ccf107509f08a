"""`http`: one request, one outcome.

Connections are kept and shared (HTTP/1.1 and HTTP/2). Unsafe methods carry the call's
`Idempotency-Key`. An answer that is not 2xx is an error outcome that keeps status, headers and the
parsed body. Cookies are not kept: two runs must not see each other's sessions.

With `ssrf_safe` (the field, the constructor, or TREADLE_HTTP_SSRF_SAFE=1 for all tasks) only public
addresses are reached; see `http_guard`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from time import time
from typing import Any, Final

import httpx
import msgspec

from treadle.work import at_hand
from treadle.work.http_guard import (
    GuardedBackend,
    InsideAddress,
    Resolve,
    guarded_by_default,
    listed_as_allowed,
    resolve,
    transport,
)

from .base import BadConfig, ToolBase, local_path, mapping, need, pick, seconds, spec
from .http_auth import auth_headers
from .portable import portable, unreadable
from .protocol import Outcome, ToolCall

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
REDIRECTS_MAX: Final = 10
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_LIMITS: Final = httpx.Limits(max_connections=256, max_keepalive_connections=64, keepalive_expiry=30)
_FORM: Final = "application/x-www-form-urlencoded"
# Longer waits than anybody means, shorter than what is no number any more.
_SECONDS_DIGITS_MAX: Final = 12
_REQUEST_IDS: Final = ("x-request-id", "x-correlation-id", "x-amzn-requestid", "x-trace-id")


class _TooLarge(Exception):
    """The answer is larger than the task allows."""


class HttpTool(ToolBase):
    """Its fields are declared in `fields.HTTP`."""

    kind = "http"
    idempotent = False

    def __init__(
        self,
        *,
        ssrf_safe: bool | None = None,
        allow: Iterable[str] | None = None,
        resolver: Resolve = resolve,
    ) -> None:
        self._ssrf_safe = guarded_by_default() if ssrf_safe is None else ssrf_safe
        self._guard = GuardedBackend(listed_as_allowed() if allow is None else allow, resolver)
        self._clients: dict[tuple[Any, bool], httpx.AsyncClient] = {}

    def idempotent_for(self, config: dict[str, Any]) -> bool:
        """By the method's own promise (RFC 9110): only POST and PATCH are not."""
        return _method(config, None) not in {"POST", "PATCH"}

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        client = self._client(config, call)
        request = await self._request(client, config, call)
        retries = _count(spec(config).get("retries"), "spec.retries")
        for attempt in range(retries + 1):
            outcome = await self._send(client, request, config)
            if outcome.error is None or not outcome.error["retryable"] or attempt == retries:
                break
            await asyncio.sleep(min(0.1 * 2**attempt, 2.0))
        return outcome

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    def _client(self, config: dict[str, Any], call: ToolCall) -> httpx.AsyncClient:
        """One client per way of checking certificates; it holds the connections."""
        verify: Any = config.get("verify_ssl", True)
        guarded = self._ssrf_safe or bool(config.get("ssrf_safe"))
        key = (str(local_path(verify, call)) if isinstance(verify, str) else bool(verify), guarded)
        if (client := self._clients.get(key)) is None:
            context = _ssl_context(key[0])
            client = self._clients[key] = httpx.AsyncClient(
                # The guard brings its own transport, and with it no proxy from the environment.
                transport=transport(self._guard if guarded else None, verify=context, limits=_LIMITS),
                verify=context,
                http2=True,
                limits=_LIMITS,
                max_redirects=REDIRECTS_MAX,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                headers={"User-Agent": "treadle"},
                event_hooks={"request": [_keep_credential_at_home]},
            )
        return client

    async def _request(
        self, client: httpx.AsyncClient, config: dict[str, Any], call: ToolCall
    ) -> httpx.Request:
        url = str(need(config, "url", "endpoint"))
        headers = {str(k): str(v) for k, v in mapping(config, "headers").items() if v is not None}
        params = mapping(config, "params", "query")
        method = _method(config, params)
        present = {name.lower() for name in headers}
        key = config.get("idempotency_key", call.idempotency_key)
        if method not in _SAFE and key and "idempotency-key" not in present:
            headers["Idempotency-Key"] = str(key)
        if "traceparent" not in present and (trace := at_hand.traceparent()) is not None:
            headers["traceparent"] = trace
        credential = await auth_headers(pick(config, "auth", "credential"), call)
        credential = {name: value for name, value in credential.items() if name.lower() not in present}
        headers |= credential
        try:
            home = httpx.URL(url)
            return client.build_request(
                method,
                url,
                params=[pair for k, v in params.items() for pair in _query(k, v)] or None,
                # As UTF-8: httpx would refuse what is not ASCII.
                headers=[(name.encode(), value.encode()) for name, value in headers.items()],
                timeout=_timeouts(config),
                extensions={"treadle.home": (_origin(home), list(credential))},
                **_body(config, headers, method),
            )
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise BadConfig(_not_a_request(error)) from error

    async def _send(
        self, client: httpx.AsyncClient, request: httpx.Request, config: dict[str, Any]
    ) -> Outcome:
        follow = bool(config.get("follow_redirects", True))
        limit = _count(config.get("max_bytes"), "max_bytes") or BODY_BYTES_MAX
        try:
            response = await client.send(request, stream=True, follow_redirects=follow)
            try:
                content = await _read(response, limit)
            finally:
                await response.aclose()
        except _TooLarge:
            message = f"the answer is larger than {limit} bytes; raise max_bytes or ask for less"
            return Outcome.failed("storage_quota", message, code="RESPONSE_TOO_LARGE")
        except InsideAddress as error:
            return Outcome.failed("client_error", str(error), code="SSRF_BLOCKED")
        except httpx.HTTPError as error:
            return _no_answer(error, request)
        return _answer(response, content, str(config.get("response") or "auto"))


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _keep_credential_at_home(request: httpx.Request) -> None:
    """A redirect to another place does not get the credential. httpx sees to `Authorization`; a
    credential may stand in any header."""
    origin, names = request.extensions.get("treadle.home", (None, ()))
    if _origin(request.url) != origin:
        for name in names:
            request.headers.pop(name, None)


def _method(config: dict[str, Any], params: dict[str, Any] | None) -> str:
    """The method; without one, POST if there is something to send. A GET's `data` or `payload` is
    its query, as people who write it mean."""
    sends = pick(config, "json", "body", "payload", "data", "form") is not None
    method = str(config.get("method") or ("POST" if sends else "GET")).upper()
    if params is not None and method in ("GET", "HEAD"):
        for field in ("payload", "data"):
            if isinstance(value := config.get(field), dict):
                params.update(value)
    return method


def _query(name: str, value: Any) -> list[tuple[str, str]]:
    """A parameter as text: lists repeat it, null leaves it out."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [pair for item in value for pair in _query(name, item)]
    if isinstance(value, bool):
        return [(name, "true" if value else "false")]
    return [(name, msgspec.json.encode(value).decode() if isinstance(value, dict) else str(value))]


def _body(config: dict[str, Any], headers: dict[str, str], method: str) -> dict[str, Any]:
    """What to send. Text and bytes go as they are, the rest as JSON, or as a form if the content
    type says so."""
    if (form := config.get("form")) is not None:
        return {"data": {str(k): str(v) for k, v in form.items()}}
    if (value := pick(config, "json")) is not None:
        return {"json": portable(value)}
    names = ("body",) if method in ("GET", "HEAD") else ("body", "payload", "data")
    if (value := pick(config, *names)) is None:
        return {}
    if isinstance(value, str | bytes):
        return {"content": value}
    kind = next((v for k, v in headers.items() if k.lower() == "content-type"), "")
    if kind.startswith(_FORM) and isinstance(value, dict):
        return {"data": {str(k): str(v) for k, v in value.items()}}
    return {"json": portable(value)}


def _timeouts(config: dict[str, Any]) -> httpx.Timeout:
    """connect, read, write and pool; a bare number is for each of them."""
    parts: dict[str, float | None] = {"connect": 10.0, "read": 60.0, "write": 60.0, "pool": 60.0}
    for given in (spec(config).get("timeout"), config.get("timeout")):
        if isinstance(given, dict):
            named = {k: v for k, v in given.items() if k in parts and v is not None}
            parts.update({k: seconds(v, f"timeout.{k}") for k, v in named.items()})
        elif given is not None:
            parts = dict.fromkeys(parts, seconds(given, "timeout"))
    return httpx.Timeout(**parts)


def _ssl_context(verify: bool | str) -> ssl.SSLContext:
    if isinstance(verify, bool):
        return httpx.create_ssl_context(verify=verify)
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        raise BadConfig(f"verify_ssl: the certificates at {verify} cannot be read: {error}") from error


def _count(value: Any, field: str) -> int:
    try:
        number = int(value or 0)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise BadConfig(f"the field {field!r} must be a whole number from zero up, not {value!r}")
    return number


async def _read(response: httpx.Response, limit: int) -> bytes:
    parts, size = [], 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > limit:
            raise _TooLarge
        parts.append(part)
    return b"".join(parts)


def _answer(response: httpx.Response, content: bytes, want: str) -> Outcome:
    headers = {name: response.headers[name] for name in response.headers}
    helper = {
        "status": response.status_code,
        "headers": headers,
        "request_id": next((headers[name] for name in _REQUEST_IDS if name in headers), None),
        "version": response.http_version,
    }
    data, broken = _parse(response, content, want)
    result = {
        "status": response.status_code,
        "status_code": response.status_code,
        "headers": headers,
        "url": str(response.url),
        "data": data,
    }
    if not response.is_success:
        return _refused(response, Outcome(result=result, http=helper))
    if broken is not None:
        message = f"the answer says it is JSON and is not: {broken}"
        return Outcome.failed("parse", message, code="NOT_JSON", result=result, http=helper)
    return Outcome(result=result, http=helper)


def _parse(response: httpx.Response, content: bytes, want: str) -> tuple[Any, str | None]:
    """The body as a value, and what was wrong with it if it should have been JSON."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if want not in ("auto", "json", "text", "bytes"):
        raise BadConfig(f"the field 'response' must be auto, json, text or bytes, not {want!r}")
    if want == "bytes":
        return content, None
    says_json = want == "json" or kind.endswith(("/json", "+json"))
    if want != "text" and (says_json or not kind):
        if not content.strip():
            return None, None
        try:
            return portable(msgspec.json.decode(content)), None
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError) as error:
            if says_json:
                return content.decode(errors="replace"), unreadable(error)
    try:
        return content.decode(response.charset_encoding or "utf-8") if content else None, None
    except (UnicodeDecodeError, LookupError):
        return (content.decode(errors="replace") if want == "text" else content), None


def _refused(response: httpx.Response, got: Outcome) -> Outcome:
    status = response.status_code
    kinds = {401: "auth", 403: "auth", 404: "not_found", 408: "timeout", 410: "not_found", 429: "rate_limit"}
    kind = kinds.get(status, "server_error" if status >= 500 else "client_error")
    message = f"{response.request.method} {response.url} answered {status} {response.reason_phrase}".rstrip()
    outcome = Outcome.failed(
        kind,
        message,
        code=f"HTTP_{status}",
        retryable=status in _RETRYABLE,
        result=got.result,
        http=got.http,
    )
    assert outcome.error is not None
    outcome.error["http_status"] = status
    if (delay_s := _retry_after(response.headers.get("retry-after"))) is not None:
        outcome.error["retry_after"] = delay_s
    return outcome


def _retry_after(text: str | None) -> float | None:
    """Seconds to wait, from a number or a date; None for what is neither."""
    if not text:
        return None
    try:
        if text.strip().isdecimal():
            return float(text) if len(text) <= _SECONDS_DIGITS_MAX else None
        return max(0.0, parsedate_to_datetime(text).timestamp() - time())
    except (ValueError, OverflowError):
        return None


def _not_a_request(error: Exception) -> str:
    """In words of ours: those of a library quote the address or a header, and with it half a secret."""
    if isinstance(error, httpx.InvalidURL):
        return (
            "the field 'url' is not an address; write scheme://host:port/path, and escape (`|urlencode`) "
            "what is not a letter or a digit in a user name, a password or a path"
        )
    return f"the fields do not make a request ({type(error).__name__}); look at headers, params and body"


def _place(url: httpx.URL) -> str:
    """Where a request went, without what may be secret: user, path and query."""
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{host}:{port}" if port else host


def _no_answer(error: httpx.HTTPError, request: httpx.Request) -> Outcome:
    """What an error of the connection means, in words of ours: those of the library name no address, or
    quote one with its secrets."""
    url = request.url
    place = _place(url)
    if isinstance(error, httpx.TimeoutException):
        doing = {
            httpx.ConnectTimeout: f"no connection to {place} in time",
            httpx.ReadTimeout: f"{place} did not answer in time",
            httpx.WriteTimeout: f"{place} did not take the request in time",
            httpx.PoolTimeout: f"no connection to {place} became free in time",
        }
        message = doing.get(type(error), f"{place} did not answer in time")
        return Outcome.failed("timeout", message, code="TIMEOUT", retryable=True)
    if isinstance(error, httpx.UnsupportedProtocol):
        # A request without a host has lost its scheme; as it was written it is in the extension.
        scheme = url.scheme or request.extensions["treadle.home"][0][0]
        message = f"the address begins with {scheme or 'nothing'!r}; it must begin with http:// or https://"
        return Outcome.failed("client_error", message, code="BAD_URL")
    if isinstance(error, httpx.TooManyRedirects):
        message = f"{place} leads on more than {REDIRECTS_MAX} times"
        return Outcome.failed("client_error", message, code="BAD_URL")
    if isinstance(error, httpx.DecodingError):
        message = f"the answer of {place} is not encoded as it says"
        return Outcome.failed("parse", message, code="BAD_ENCODING")
    if isinstance(error, httpx.LocalProtocolError):
        message = f"the request to {place} breaks the rules of HTTP; look at its headers"
        return Outcome.failed("client_error", message, code="BAD_REQUEST")
    why, code = _why(error)
    return Outcome.failed("connection", f"{place}: {why}", code=code, retryable=code == "NO_CONNECTION")


_ERRORS: Final = {
    errno.ECONNREFUSED: "the connection was refused; nothing listens there",
    errno.ECONNRESET: "the connection was reset",
    errno.EHOSTUNREACH: "there is no way to this host",
    errno.ENETUNREACH: "there is no way to this network",
    errno.EMFILE: "this process has no file descriptor left for a connection; raise ulimit -n",
}


def _why(error: BaseException) -> tuple[str, str]:
    """The reason for no connection, found among the causes of the error, and its code."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted ({cause.verify_message})", "TLS"
        if isinstance(cause, ssl.SSLError):
            return "no secure connection could be agreed on", "NO_CONNECTION"
        if isinstance(cause, socket.gaierror):
            return "the name of this host is not known", "NO_CONNECTION"
        if isinstance(cause, OSError) and cause.errno in _ERRORS:
            return _ERRORS[cause.errno], "NO_CONNECTION"
    if isinstance(error, httpx.RemoteProtocolError):
        return "the server broke off, or what it said is not HTTP", "NO_CONNECTION"
    if isinstance(error, httpx.ProxyError):
        return "the proxy did not let the request through", "NO_CONNECTION"
    return f"no connection ({type(error).__name__})", "NO_CONNECTION"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it, groups looked into."""
    waiting: list[BaseException] = [error]
    for _ in range(64):
        if not waiting:
            return
        one = waiting.pop(0)
        yield one
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
