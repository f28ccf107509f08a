"""Spans on their way to a collector: OTLP over HTTP.

A collector that is away, too busy or set up wrongly is tried again, with longer and longer waits. What it will never take
is divided until only the span is left that it does not like; that one is dropped, and counted.
"""

from __future__ import annotations

import gzip
import logging
import ssl
import threading
from collections.abc import Sequence
from typing import Final, Literal

import httpx

from treadle.kernel.errors import Unsupported

from .settings import OtlpSettings
from .spans import Attribute, Span
from .wire import request

log = logging.getLogger("treadle.telemetry")

SPANS_MAX: Final = 512
# What a collector says to what it will never take; anything else may be mended.
_NEVER: Final = frozenset({400, 413, 422})
_WAIT_S: Final = 0.5
_WAIT_S_MAX: Final = 30.0
_SAID_AGAIN_S: Final = 60.0

Answer = Literal["taken", "away", "refused"]


class Otlp:
    """One connection to a collector. Not for two threads at once; `stop` is for any."""

    def __init__(self, settings: OtlpSettings, service: str, instance: str = "") -> None:
        self._settings = settings
        self._resource: dict[str, Attribute] = {"service.name": service, **settings.resource}
        if instance:
            self._resource["service.instance.id"] = instance
        headers = {**settings.headers, "Content-Type": "application/x-protobuf", "User-Agent": "treadle"}
        if settings.gzip:
            headers["Content-Encoding"] = "gzip"
        self._client = httpx.Client(headers=headers, timeout=settings.timeout_s, verify=_verified(settings))
        self._stopping = threading.Event()
        self._why = ""
        # For whoever watches: what was sent, and what the collector would not have.
        self.sent = 0
        self.dropped = 0

    def deliver(self, spans: Sequence[Span], *, once: bool = False) -> bool:
        """Until the collector has them; False if we stop before (or, with `once`, if it does not take them now)."""
        for first in range(0, len(spans), SPANS_MAX):
            if not self._delivered(spans[first : first + SPANS_MAX], once):
                return False
        return True

    def stop_within(self, limit_s: float, sender: threading.Thread) -> None:
        """Leaves whoever sends a while to end; then it stops waiting for the collector."""
        if sender.ident is not None:
            sender.join(limit_s)
            self._stopping.set()
            sender.join(self._settings.timeout_s)
        self._client.close()

    def _delivered(self, spans: Sequence[Span], once: bool) -> bool:
        body = request(self._resource, spans)
        wait_s, waited_s = _WAIT_S, _SAID_AGAIN_S
        while True:
            answer = self._send(body)
            if answer == "taken":
                self.sent += len(spans)
                return True
            if answer == "refused":
                return self._refused(spans, once)
            if once or self._stopping.is_set():
                return False
            if waited_s >= _SAID_AGAIN_S:
                waited_s = 0.0
                log.warning("the collector of traces %s; runs go on, and it is tried again", self._why)
            self._stopping.wait(wait_s)
            waited_s += wait_s
            wait_s = min(wait_s * 2, _WAIT_S_MAX)

    def _refused(self, spans: Sequence[Span], once: bool) -> bool:
        if len(spans) > 1:
            middle = len(spans) // 2
            return self._delivered(spans[:middle], once) and self._delivered(spans[middle:], once)
        self.dropped += 1
        log.warning("the collector of traces %s: the span %r is dropped", self._why, spans[0].name)
        return True

    def _send(self, body: bytes) -> Answer:
        try:
            content = gzip.compress(body, 1) if self._settings.gzip else body
            status = self._client.post(self._settings.url, content=content).status_code
        except httpx.HTTPError as error:
            self._why = f"does not answer ({type(error).__name__})"
            return "away"
        self._why = f"answers HTTP {status}"
        if status < 300:
            return "taken"
        return "refused" if status in _NEVER else "away"


def _verified(settings: OtlpSettings) -> ssl.SSLContext | bool:
    """How the collector is known to be itself, and we to it."""
    if not settings.url.startswith("https:"):
        return False  # there is nothing to verify, and the list of authorities is long
    if settings.authority is None and settings.certificate is None:
        return True
    try:
        context = ssl.create_default_context(cafile=settings.authority)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise Unsupported(
            f"OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY: {error}"
        ) from error
    return context
