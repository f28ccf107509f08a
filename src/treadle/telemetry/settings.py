"""Where traces go, and how: what was asked for here, and what the variables of OpenTelemetry say.

https://opentelemetry.io/docs/specs/otel/protocol/exporter: `OTEL_EXPORTER_OTLP_*`, for traces alone with `TRACES_` before
the word, which comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from treadle.kernel.errors import Unsupported

PATH: Final = "/v1/traces"
TIMEOUT_S: Final = 10.0
_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
_DEFAULT: Final = "http://localhost:4318"


class OtlpSettings(NamedTuple):
    url: str
    headers: dict[str, str]
    timeout_s: float = TIMEOUT_S
    gzip: bool = False
    # Files: of the authority that the collector's certificate is signed by, and of our own certificate and key.
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    # What every span is said to be from; `service.name` is there if somebody said it.
    resource: Mapping[str, str] = MappingProxyType({})
    # How many of the traces that begin here are told at all.
    ratio: float = 1.0


def settings(given: str | bool | None, environment: Mapping[str, str]) -> OtlpSettings | None:
    """None if nobody is to be told: `given` is False, or nothing and the environment names no collector."""

    def said(word: str) -> str | None:
        return environment.get(f"{_PREFIX}TRACES_{word}") or environment.get(f"{_PREFIX}{word}") or None

    if given is False or (given is None and not is_asked(environment)):
        return None
    protocol = said("PROTOCOL") or "http/protobuf"
    if protocol != "http/protobuf":
        raise Unsupported(
            f"{_PREFIX}PROTOCOL is {protocol!r:.40}; traces are sent as http/protobuf, mostly to port 4318"
        )
    return OtlpSettings(
        _url(given if isinstance(given, str) else None, environment),
        _pairs(said("HEADERS") or ""),
        _seconds(said("TIMEOUT")),
        said("COMPRESSION") == "gzip",
        said("CERTIFICATE"),
        said("CLIENT_CERTIFICATE"),
        said("CLIENT_KEY"),
        _resource(environment),
        _ratio(environment),
    )


def is_asked(environment: Mapping[str, str]) -> bool:
    """Whether the environment names a collector, and nobody switched it off."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return any(environment.get(f"{_PREFIX}{part}ENDPOINT") for part in ("TRACES_", ""))


def _url(given: str | None, environment: Mapping[str, str]) -> str:
    """An address for traces alone is taken as it is; to one for everything the path of traces is added."""
    url = said = given or environment.get(f"{_PREFIX}TRACES_ENDPOINT") or ""
    if given or not url:
        said = given or environment.get(f"{_PREFIX}ENDPOINT") or _DEFAULT
        url = said.rstrip("/")
        url = url if url.endswith(PATH) else url + PATH
    if not _is_address(url):
        raise Unsupported(f"the address of a collector is http:// or https:// and a host, not {said!r:.60}")
    return url


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an open bracket, a port that is none
        return False


def _pairs(text: str) -> dict[str, str]:
    """`name=value,name=value`, percent-encoded as in W3C Baggage."""
    found = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name).strip(): unquote(value).strip() for name, _, value in found}


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    found = _pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := environment.get("OTEL_SERVICE_NAME"):
        found["service.name"] = name
    return found


def _seconds(text: str | None) -> float:
    """The standard counts milliseconds."""
    try:
        return float(text or "") / 1000 or TIMEOUT_S
    except ValueError:
        return TIMEOUT_S


def _ratio(environment: Mapping[str, str]) -> float:
    """`OTEL_TRACES_SAMPLER`, as far as it speaks of traces that begin here."""
    sampler = environment.get("OTEL_TRACES_SAMPLER", "").removeprefix("parentbased_")
    if sampler == "always_off":
        return 0.0
    if sampler != "traceidratio":
        return 1.0
    try:
        return min(1.0, max(0.0, float(environment.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
    except ValueError:
        return 1.0
