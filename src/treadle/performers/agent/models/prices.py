"""What a turn costs: US dollars per million tokens, by the model's exact name (a date behind it aside).

Only prices that were seen published are here; read on 2026-11-15 from Anthropic's model pages and, for
OpenAI, from GitHub's and adk-model's tables of its prices. They change: `TREADLE_PRICES=FILE` names a
JSON mapping of name to `[input, output]` that goes before this table. A model in neither has no
price: its tokens are counted, and a budget in dollars says that it cannot count it.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from treadle.performers.agent.api import ProviderError

PRICES: Final[dict[str, tuple[float, float]]] = {
    "claude-fable-5-1": (10, 50),
    "claude-opus-5-5": (4, 20),
    "claude-opus-5": (5, 25),
    "claude-opus-4-7": (5, 25),
    "claude-opus-4-6": (5, 25),
    "claude-opus-4-5": (5, 25),
    "claude-sonnet-5-5": (2, 10),
    "claude-sonnet-5": (2, 10),
    "claude-sonnet-4-6": (3, 15),
    "claude-sonnet-4-5": (3, 15),
    "claude-haiku-4-5": (1, 5),
    "gpt-5.4": (2.5, 15),
    "gpt-5.4-mini": (0.75, 4.5),
    "gpt-5.2": (1.75, 14),
    "gpt-5": (1.25, 10),
    "gpt-5-mini": (0.25, 2),
    "gpt-4.1": (2, 8),
    "gpt-4o": (2.5, 10),
    "gpt-4o-mini": (0.15, 0.6),
}
_DATED: Final = re.compile(r"(.+?)[-@](\d{8}|\d{4}-\d{2}-\d{2})")


def cost(model: str | None, *, input_tokens: float, output_tokens: int) -> float | None:
    """The price of one answer, or None if no price is known. Cached tokens are weighed by the caller."""
    table = {**PRICES, **_own(os.environ.get("TREADLE_PRICES"))}
    dated = _DATED.fullmatch(model or "")
    price = table.get(model or "") or (table.get(dated[1]) if dated else None)
    if price is None:
        return None
    return round((input_tokens * price[0] + output_tokens * price[1]) / 1_000_000, 10)


def usage(model: str | None, *, input_tokens: int, output_tokens: int, weighed: float) -> dict[str, Any]:
    """Token counts as they are reported, with `usd` if the model has a price; `weighed` is the input
    as it is billed."""
    found: dict[str, Any] = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    usd = cost(model, input_tokens=weighed, output_tokens=output_tokens)
    return found if usd is None else {**found, "usd": usd}


def check() -> None:
    """Refuses prices that cannot be read: better before the first answer is paid for than after it."""
    _own(os.environ.get("TREADLE_PRICES"))


@cache
def _own(path: str | None) -> dict[str, tuple[float, float]]:
    if not path:
        return {}
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
        return {str(name): _price(price) for name, price in given.items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ProviderError(
            f"TREADLE_PRICES={path} is not a JSON mapping of model name to [input, output]: {error}",
            code="PRICES_INVALID",
        ) from error


def _price(written: Any) -> tuple[float, float]:
    input, output = (float(part) for part in written)
    if not (0 <= input < float("inf") and 0 <= output < float("inf")):
        raise ValueError(f"{written} is no price")
    return input, output
