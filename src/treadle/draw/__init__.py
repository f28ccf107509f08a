"""Graphs of definitions and runs as pictures: SVG, Mermaid, DOT, PNG."""

from __future__ import annotations

from typing import Final

# Here, so that whoever only names them draws nothing in.
FORMATS: Final = ("svg", "mermaid", "png", "dot")
TEXT_FORMATS: Final = tuple(format for format in FORMATS if format != "png")
