"""Who may do what: tokens, and the log of who did it. Shared by the server and the command line."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import hooks, tokens, trail

__all__ = ["hooks", "tokens", "trail"]


# Imported on first use (PEP 562): an engine that nobody asks from outside never needs them.
def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
