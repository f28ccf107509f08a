"""What providers share: how a request is put into words, and how an answer is read.

The instruction is the system prompt, as it is. The context is the first message of the user. An
answer that was cut off or refused is no answer: a turn fails with what there is of it, and a
question is not answered at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from treadle.kernel.values import Value
from treadle.performers.agent.api import ChooseRequest, ProviderError

# Time-outs, rate limits, overload; 5xx are besides.
RETRYABLE: Final = frozenset({408, 429, 529})
NONE: Final = "none"
# What servers call an error that comes when the answer has begun, and its status is long sent.
_STATUS_OF: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "tokens": 429,
    "requests": 429,
    "api_error": 500,
    "server_error": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "service_unavailable": 503,
    "service_unavailable_error": 503,
    "timeout": 504,
    "timeout_error": 504,
    "overloaded": 529,
    "overloaded_error": 529,
    "engine_overloaded": 529,
}
SAID_CHARS_MAX: Final = 1000
_CODE: Final = re.compile(r"^Error code: \d+( - )?")
_NEGATED: Final = re.compile(
    r"\b(not|never|neither|nor|cannot|avoid|except|instead|rather|without)\b|n['’]t\b", re.I
)
_LABEL: Final = re.compile(r"^(?:the )?(?:answer|choice|id)(?: is)?\s*:?\s+", re.I)


def as_json(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, default=repr)


def first_message(context: Mapping[str, Any]) -> str:
    return (
        "This is the context so far: the workflow's input and the results of the steps before this one.\n\n"
        f"```json\n{as_json(context)}\n```\n\nCarry out your instructions now."
    )


def question(request: ChooseRequest, context: Mapping[str, Any]) -> str:
    listed = "\n".join(f"- {choice['id']}: {choice['description']}" for choice in request.choices)
    return (
        f"{request.question}\n\n```json\n{as_json(context)}\n```\n\nChoices:\n{listed}\n\n"
        f"Answer with the id of one choice and nothing else, or with {NONE} if none applies."
    )


def choice_of(text: str, request: ChooseRequest) -> str | None:
    """The id that an answer names; its own words are kept if it names none. A line that is nothing
    but an id counts, the last one most; an id inside a sentence counts if it is the only one there
    and the sentence does not say no."""
    said = _bare(text)
    ids = [choice["id"] for choice in request.choices]
    lines = [_bare(line) for line in text.splitlines()]
    for line in (said, *reversed(lines)):
        for candidate in (line, _bare(_LABEL.sub("", line, count=1))):
            if candidate in ids:
                return candidate
            if candidate.lower() == NONE:
                return None
    named = [id for id in ids if re.search(rf"(?<![\w-]){re.escape(id)}(?![\w-])", text)]
    if len(named) == 1 and _NEGATED.search(text.replace(named[0], "")) is None:
        return named[0]
    return said or None


def _bare(text: str) -> str:
    return text.strip().strip("`\"'.* ")


def no_answer(reason: str) -> ProviderError:
    """A question whose answer broke off or was refused: whatever there is of it must not count."""
    return ProviderError(f"there is no answer: {reason}", code="REPLY_INVALID")


def data_of(text: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """A node's data from the text of an answer: the JSON in it, and the text as `summary`."""
    found = _json_in(text)
    if found is None:
        return {"summary": text}
    if schema is not None and text.strip().startswith("{"):
        # The answer is the result and nothing else; there is no text beside it.
        return found
    return with_summary(found, text, schema)


def with_summary(found: dict[str, Any], text: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """A result with the text that came with it, unless its schema might not allow that."""
    if not text.strip() or "summary" in found or not _is_open(schema or {}):
        return found
    return {"summary": text, **found}


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether `summary` may surely be added to what the schema describes."""
    if "summary" in (schema.get("properties") or {}) or schema.get("additionalProperties") not in (
        None,
        True,
    ):
        return False
    return not _CLOSING.intersection(schema)


_CLOSING: Final = frozenset(
    {"unevaluatedProperties", "propertyNames", "patternProperties", "maxProperties", "const", "enum"}
    | {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas"}
    | {"dependentRequired", "dependencies"}
)


def _json_in(text: str) -> dict[str, Any] | None:
    candidates = [text.strip(), *_fenced(text)]
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        candidates.append(text[start : end + 1])
    for candidate in candidates:
        if not candidate.startswith("{"):
            continue
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def _fenced(text: str) -> Iterator[str]:
    """What stands between fences, in one pass however long the answer is."""
    for part in text.split("```")[1:-1]:
        language, newline, body = part.partition("\n")
        if newline and language.strip().lower() in ("", "json"):
            yield body.strip()


def status_error(status: int, message: str, headers: Mapping[str, str]) -> ProviderError:
    """The error of an HTTP status; §8.15 says which of them are worth asking again."""
    retryable = status in RETRYABLE or status >= 500
    code = "PROVIDER_RATE_LIMITED" if status in (429, 529) else "PROVIDER_FAILED"
    if status in (401, 403):
        code = "PROVIDER_AUTH"
    return ProviderError(
        f"HTTP {status}: {message}" if message else f"HTTP {status}",
        code=code,
        retryable=retryable,
        retry_after_s=retry_after(headers) if retryable else None,
    )


def stream_error(body: object, message: str, headers: Mapping[str, str]) -> ProviderError:
    """The error that a server reported after its answer had begun: by its kind, as the status it
    would have been."""
    error, said = _error_in(body), said_by(body, message)
    for name in ("code", "status", "type"):
        kind = error.get(name)
        if isinstance(kind, int) and 400 <= kind < 600:
            return status_error(kind, said, headers)
        if isinstance(kind, str) and kind.lower() in _STATUS_OF:
            return status_error(_STATUS_OF[kind.lower()], said, headers)
    return ProviderError(f"the provider broke off its answer: {said}")


def said_by(body: object, message: str) -> str:
    """What a server says is wrong, in its own words; else `message`, which an SDK put around its answer."""
    found = _error_in(body).get("message")
    if not isinstance(found, str) or not found.strip():
        found = body if isinstance(body, str) else _CODE.sub("", message)
    return found.strip()[:SAID_CHARS_MAX]


def _error_in(body: object) -> Mapping[str, Any]:
    error = body.get("error", body) if isinstance(body, Mapping) else None
    return error if isinstance(error, Mapping) else {"message": error}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, in any of the ways servers say it."""
    text = headers.get("retry-after-ms")
    try:
        if text is not None:
            return max(0.0, float(text) / 1000)
        text = headers.get("retry-after")
        if text is None:
            return None
        if re.fullmatch(r"\s*\d+(\.\d+)?\s*", text):
            return float(text)
        date = headers.get("date")
        at = parsedate_to_datetime(text)
        # Measured against the server's own clock, which is the one it promised by.
        return None if date is None else max(0.0, (at - parsedate_to_datetime(date)).total_seconds())
    except (ValueError, TypeError):
        return None
