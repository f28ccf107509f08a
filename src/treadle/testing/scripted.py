"""A model that answers from a script, for tests of workflows; see `tools/models/scripted.py`."""

from __future__ import annotations

from treadle.tools.models.scripted import ScriptedModel

__all__ = ["ScriptedModel"]
