"""Reactive workflows for their authors: `from treadle import reactive as rx`.

A workflow is a pure step function over (state, event, ctx) that returns `rx.Output`. What it asks of the
outside are declared effects, performed by executors once the step is durable. See docs/reactive.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.dialects.reactive.app import App
from treadle.dialects.reactive.effects import (
    BlobStored,
    Call,
    Effect,
    Emission,
    HttpAnswer,
    HttpRequest,
    HttpTimings,
    TimerFired,
    blob_get,
    blob_put,
    effect,
    emit,
    http_request,
    timer,
    tool,
)
from treadle.dialects.reactive.secret import Secret
from treadle.dialects.reactive.step import Context, Frame, Output, Receipt, Rejected, delete
from treadle.dialects.reactive.types import Nat, schema
from treadle.dialects.reactive.workflow import Workflow, workflow

if TYPE_CHECKING:
    from treadle.testing import reactive as testing


def __getattr__(name: str) -> Any:
    """`rx.testing` holds a whole core; only those who test load it."""
    if name != "testing":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("treadle.testing.reactive")


def secret(name: str, *, version: int = 1) -> Secret:
    """Names a secret in an effect's params; only its executor gets the value."""
    return Secret(name, version)


__all__ = [
    "App",
    "BlobStored",
    "Call",
    "Context",
    "Effect",
    "Emission",
    "Frame",
    "HttpAnswer",
    "HttpRequest",
    "HttpTimings",
    "Nat",
    "Output",
    "Receipt",
    "Rejected",
    "Secret",
    "TimerFired",
    "Workflow",
    "blob_get",
    "blob_put",
    "delete",
    "effect",
    "emit",
    "http_request",
    "schema",
    "secret",
    "testing",
    "timer",
    "tool",
    "workflow",
]
