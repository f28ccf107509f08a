"""What a provider answers, as it can be used: a provider may be anybody's code, and what it passes on is a model's.

Whatever it is, the node fails over it with words that say what is wrong; the engine goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from treadle.dialects.agent.visiting import STATUSES
from treadle.kernel.errors import TreadleError
from treadle.kernel.showing import kind_of, shown
from treadle.kernel.values import Value
from treadle.lang.handed import copied_from_caller

from .api import AskReply, ChooseReply, ProviderError, TurnReply

COUNT_MAX: Final = 10**12
Reply = TypeVar("Reply", TurnReply, ChooseReply, AskReply)


def reply_of(found: object, kind: type[Reply]) -> Reply:
    """The answer, which is of the kind that was asked for, with its usage as a mapping."""
    if not isinstance(found, kind):
        raise _invalid(f"the provider answered with {kind_of(found)}, not with {kind.__name__}")
    if type(found.usage) is not dict and not isinstance(found.usage, Mapping):
        raise _invalid(f"the usage of the answer is {kind_of(found.usage)}, not a mapping")
    return found


def checked_calls(calls: object) -> list[dict[str, Any]]:
    """The tool calls of an answer: each names its tool."""
    if not isinstance(calls, list) or not all(isinstance(c, dict) and c.get("tool") for c in calls):
        raise _invalid("the calls of the answer are not a list of {tool, input}")
    return calls


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Token counts and cost, of a shape that adds up whatever a provider reported."""
    found: dict[str, Any] = {"usd": 0.0, "input_tokens": 0, "output_tokens": 0}
    if not usage:
        return found
    for name in ("input_tokens", "output_tokens"):
        amount = usage.get(name)
        found[name] = amount if isinstance(amount, int) and 0 < amount < COUNT_MAX else 0
    usd = usage.get("usd")
    found["usd"] = float(usd) if isinstance(usd, int | float) and 0 < usd < COUNT_MAX else 0.0
    return found


def text_of(value: object) -> str:
    """Text that can be stored: what is not UTF-8 in it is replaced. A name may be a number; nothing else is text."""
    if not isinstance(value, str | int | float):
        raise _invalid(f"the model's answer has {kind_of(value)} where there is text")
    text = value if isinstance(value, str) else shown(value)
    return text.encode("utf-8", "replace").decode()


def status_of(status: Any) -> Value:
    """What became of a node; a status that is none is the machine's to refuse."""
    return status if type(status) is str and status in STATUSES else storable(status)


def storable(value: Any) -> Value:
    """What a model said, as a value; what no journal can hold fails the node, not the engine."""
    return written(value)[0]


def written(value: Any) -> tuple[Value, bytes]:
    """`storable`, and the canonical bytes of what it gives."""
    try:
        return copied_from_caller(value)
    except (TreadleError, RecursionError) as error:
        raise _invalid(f"the model's answer cannot be stored: {error}") from error


def _invalid(message: str) -> ProviderError:
    return ProviderError(message, code="REPLY_INVALID")
