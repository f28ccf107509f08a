"""Which fields a call may have, by transport.

The transports named here are built in; their fields are checked. Any other transport is a tool or
a function that somebody registered: its fields are its own business, and are passed on.
"""

from __future__ import annotations

from typing import Final

import msgspec

COMMON: Final = (
    "transport",
    "pool",
    "payload",
    "into",
    "timeout",
    "deadline",
    "retry",
    "on_success",
    "on_failure",
    "on_timeout",
    "compensate",
)


class Transport(msgspec.Struct, frozen=True):
    """The address fields of a transport. One of each group in `required` must be there."""

    required: tuple[tuple[str, ...], ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(name for group in self.required for name in group) + self.optional


BUILT_IN: Final[dict[str, Transport]] = {
    "http": Transport((("url",),), ("method", "headers", "params", "auth")),
    "graphql": Transport((("url",), ("query",)), ("variables", "operation", "headers", "auth")),
    "nats": Transport((("subject",),), ("url", "headers")),
    "python": Transport((("callable", "code"),), ("libs", "pure")),
}

# Tools of playbooks, usable as transports wherever a worker has them.
TOOLS: Final = frozenset({"noop", "shell", "postgres", "duckdb", "artifact", "transfer"})
