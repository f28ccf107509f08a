"""What a turn costs: US dollars per million tokens, by the longest model name that fits.

Prices change; `TREADLE_PRICES=FILE` names a JSON mapping of name to `[input, output]` that goes
before this table. A model that is in neither costs nothing here; its tokens are counted all the same.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Final

from treadle.kernel.errors import TreadleError

PRICES: Final[dict[str, tuple[float, float]]] = {
    "claude-opus-4-0": (15, 75),
    "claude-opus-4-1": (15, 75),
    "claude-opus-4": (5, 25),
    "claude-sonnet-4": (3, 15),
    "claude-haiku-4": (1, 5),
    "claude-3-5-haiku": (0.8, 4),
    "gpt-4o": (2.5, 10),
    "gpt-4o-mini": (0.15, 0.6),
    "gpt-4.1": (2, 8),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4.1-nano": (0.1, 0.4),
    "gpt-5": (1.25, 10),
    "gpt-5-mini": (0.25, 2),
    "gpt-5-nano": (0.05, 0.4),
    "o3": (2, 8),
    "o4-mini": (1.1, 4.4),
}


def cost(model: str | None, *, input_tokens: float, output_tokens: int) -> float:
    """The price of one answer. Cached tokens are weighed by the caller."""
    table = {**PRICES, **_own(os.environ.get("TREADLE_PRICES"))}
    names = [name for name in table if model is not None and model.startswith(name)]
    if not names:
        return 0.0
    per_input, per_output = table[max(names, key=len)]
    return round((input_tokens * per_input + output_tokens * per_output) / 1_000_000, 10)


@cache
def _own(path: str | None) -> dict[str, tuple[float, float]]:
    if not path:
        return {}
    try:
        given = json.loads(Path(path).read_text(encoding="utf-8"))
        return {str(name): (float(price[0]), float(price[1])) for name, price in given.items()}
    except (OSError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise TreadleError(
            f"TREADLE_PRICES={path} is not a JSON mapping of model name to [input, output]: {error}",
            cls="user",
            code="PRICES_INVALID",
        ) from error
