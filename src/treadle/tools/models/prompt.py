"""What providers share: how a request is put into words, and how an answer is read.

The instruction is the system prompt, as it is. The context is the first message of the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

from treadle.kernel.values import Value
from treadle.work.agent_api import ChooseRequest, ProviderError

RETRYABLE: Final = frozenset({408, 409, 429, 529})
NONE: Final = "none"
_FENCED: Final = re.compile(r"```(?:json)?\s*\n(.*?)```", re.S)


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
    """The id that an answer names; its own words are kept if it names none."""
    said = text.strip().strip("`\"'.* ")
    ids = [choice["id"] for choice in request.choices]
    if said in ids:
        return said
    if said.lower() == NONE:
        return None
    named = [id for id in ids if re.search(rf"(?<![\w-]){re.escape(id)}(?![\w-])", text)]
    return named[0] if len(named) == 1 else said or None


def data_of(text: str, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """A node's data from the text of an answer: the JSON in it, and the text as `summary`."""
    found = _json_in(text)
    if found is None:
        return {"summary": text}
    closed = schema is not None and schema.get("additionalProperties") is False
    if closed or "summary" in found or text.strip().startswith("{"):
        return found
    return {"summary": text, **found}


def _json_in(text: str) -> dict[str, Any] | None:
    candidates = [text.strip(), *(match.strip() for match in _FENCED.findall(text))]
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


def status_error(status: int, message: str, headers: Mapping[str, str]) -> ProviderError:
    """The error of an HTTP status; §8.15 says which of them are worth asking again."""
    retryable = status in RETRYABLE or status >= 500
    code = "PROVIDER_RATE_LIMITED" if status in (429, 529) else "PROVIDER_FAILED"
    if status in (401, 403):
        code = "PROVIDER_AUTH"
    return ProviderError(
        f"HTTP {status}: {message}",
        code=code,
        retryable=retryable,
        retry_after_s=retry_after(headers) if retryable else None,
    )


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
