"""`noop`: does nothing, so that a task's policy can decide, patch or route without outside work."""

from __future__ import annotations

from typing import Any

from .protocol import Outcome, ToolCall


class NoopTool:
    """The result is `{"status": "noop"}`, or the task's `result` field if it has one."""

    kind = "noop"
    idempotent = True
    sync = True

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        return Outcome(result=config.get("result", {"status": "noop"}))

    async def close(self) -> None:
        """Nothing is held."""
