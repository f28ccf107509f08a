"""What a durable function may catch, and what stops a run that this code cannot take on.

The first kind is raised inside the function, at an await. The second never is: a function that swallows every
exception must not be able to go on past it.
"""

from __future__ import annotations

from typing import Any

from treadle.kernel.errors import Undecidable
from treadle.kernel.values import Value


class CodeMissing(Undecidable):
    """The code of this run is not loaded here. Load it (--app FILE.py, engine.deploy), then retry."""

    code = "CODE_MISSING"


class CodeChanged(Undecidable):
    """The code of this run has changed in a way that its past does not allow. Give the change a version of its
    own, guard it with ctx.patched(name), or fork the run."""

    code = "CODE_CHANGED"


class NotDeterministic(Undecidable):
    """The function did something else than it did before, or asked for what is not recorded: clock, chance,
    files. Use ctx.now(), ctx.random, ctx.uuid(), ctx.sleep(), or a step."""

    code = "NOT_DETERMINISTIC"


class DecisionTooLong(Undecidable):
    """The function computed for too long without an await, which holds up every other run. Compute in a step."""

    code = "DECISION_TOO_LONG"


class StepFailed(Exception):
    """A step did not succeed, with all its attempts."""

    def __init__(
        self,
        message: str,
        *,
        step: str,
        cls: str = "transport",
        code: str = "STEP_FAILED",
        type: str | None = None,
        attempts: int = 1,
        details: dict[str, Any] | None = None,
        record: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.step = step
        self.cls = cls
        self.code = code
        self.type = type
        self.attempts = attempts
        self.details = details or {}
        # The record that brought the failure: a retry goes back to before it.
        self.record = record


class StepTimeout(StepFailed, TimeoutError):
    """A step, a child or a run did not end in time."""


class ChildFailed(StepFailed):
    """A child run failed, or was cancelled; `.run` is its id."""

    def __init__(self, message: str, *, run: str | None, **more: Any) -> None:
        super().__init__(message, **more)
        self.run = run


class Fatal(Exception):
    """Raised in a step: ends its attempts, whatever its retry says."""

    def __init__(self, message: str = "", *, code: str = "FATAL", details: Value = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.details = details


class ContinueAs(BaseException):
    """How `ctx.continue_as` leaves the function; no `except Exception` holds it."""

    def __init__(self, input: Value) -> None:
        super().__init__("continue_as")
        self.input = input


class Dropped(BaseException):
    """Whatever a task asks for that is being dropped: it reaches nothing."""
