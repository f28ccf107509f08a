"""What tests of workflows need: a driver without an engine, a virtual clock, scripted tools and models, replay.

Nothing here is imported by the engine. Names are loaded on first use, so that the pytest plug-in
costs a test session nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import VirtualClock
    from .driver import Driver
    from .playing import Play, play
    from .replaying import assert_replays
    from .scripted import Outcome, ScriptedModel, ScriptedTool

__all__ = [
    "Driver",
    "Outcome",
    "Play",
    "ScriptedModel",
    "ScriptedTool",
    "VirtualClock",
    "assert_replays",
    "play",
]

_HOMES = {
    "Driver": "driver",
    "Outcome": "scripted",
    "Play": "playing",
    "play": "playing",
    "ScriptedModel": "scripted",
    "ScriptedTool": "scripted",
    "VirtualClock": "clock",
    "assert_replays": "replaying",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
