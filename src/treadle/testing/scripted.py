"""A tool and a model that answer from a script, for tests of workflows.

    http = ScriptedTool("http", [Outcome.failed("server_error", "busy"), {"data": [1, 2]}])
    engine.register(http)

The model is `ScriptedModel`, of `performers/agent/models/scripted.py`. A scripted tool keeps what it was asked in
`calls`, in order; it knows nothing of the real tool, so a wrong field in a task goes unnoticed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treadle.performers.agent.models.scripted import ScriptedModel
from treadle.tools.functions import exception_outcome
from treadle.tools.protocol import Outcome, ToolCall

__all__ = ["Outcome", "ScriptedModel", "ScriptedTool"]


class ScriptedTool:
    """The tool of one kind: each call takes the next answer, and the last one stays."""

    def __init__(self, kind: str, answers: Iterable[Any] = (None,), *, idempotent: bool = True) -> None:
        """An answer is a result, an `Outcome`, or an exception: what the real tool might have raised."""
        self.kind = kind
        self.idempotent = idempotent
        self.calls: list[dict[str, Any]] = []
        self._answers = list(answers)
        if not self._answers:
            raise ValueError(f"a scripted {kind!r} needs an answer; give [None] for none in particular")

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        answer = self._answers[min(len(self.calls), len(self._answers) - 1)]
        self.calls.append(config)
        if isinstance(answer, Exception):
            return exception_outcome(answer)
        return answer if isinstance(answer, Outcome) else Outcome(result=answer)

    async def close(self) -> None:
        """A script holds nothing."""
