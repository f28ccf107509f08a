"""Texts to documents. Who never reads one (a workflow may be a Python object) does not pay for the reader."""

from __future__ import annotations

from .document import Document, Path, path_text

__all__ = ["Document", "Path", "parse", "path_text"]


def parse(text: str, *, file: str | None = None) -> Document:
    """Parses YAML (and so JSON). Raises DefinitionError with file, line and remedy."""
    from . import json_reading

    if (document := json_reading.read(text, file)) is not None:
        return document
    from .yaml_reading import read  # PyYAML takes as long to import as a third of an engine

    return read(text, file)
