"""The words in which a router is asked, wherever they are needed."""

from __future__ import annotations

from typing import Final

QUESTION: Final = "Based on the results so far, which condition is true?"
