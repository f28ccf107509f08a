"""What a pool of workers may be called, wherever a definition names one."""

from __future__ import annotations

import re
from typing import Final

# A text: compiled when the first is named, not at every start of a process.
_POOL: Final = r"[a-z0-9_-]{1,64}"
POOL_HINT: Final = (
    "a literal name of 1 to 64 of a-z, 0-9, _ and -: those who serve it are `treadle worker --pool NAME`"
)


def is_pool(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(_POOL, value) is not None
