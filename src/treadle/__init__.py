"""Treadle: one durable workflow engine for playbooks, agents, processes and state machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine, Run
    from .kernel.errors import RunFailed, TreadleError

__all__ = ["Engine", "Run", "RunFailed", "TreadleError", "__version__"]
__version__ = "0.1.0"

# Imported on first use (PEP 562): `import treadle` stays fast, whatever the engine needs.
_HOMES = {
    "Engine": "treadle.engine",
    "Run": "treadle.engine",
    "RunFailed": "treadle.kernel.errors",
    "TreadleError": "treadle.kernel.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'treadle' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
