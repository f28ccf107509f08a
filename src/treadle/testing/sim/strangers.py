"""Others who can write to the store, and write what no guest would: each message of theirs is refused, and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from treadle.kernel.errors import PASSING, TreadleError
from treadle.kernel.model import Signal
from treadle.kernel.values import encode
from treadle.runtime.commands import Deliver, message_to_bytes
from treadle.store.rows import GUEST

from .clients import PATIENCE_NS, Guest, Once
from .weather import MS

if TYPE_CHECKING:
    from .world import SimWorld

# It stands in all that they write; nothing that is recorded says it.
MARK: Final = "forged"
Forged = Callable[[str], bytes]


def _message(run: str, **more: Any) -> dict[str, Any]:
    signal = {"kind": "signal", "name": "a", "data": {"token": MARK}}
    return {"run": run, "event": signal, **more}


def _event(run: str, kind: str, **fields: Any) -> bytes:
    return encode({"run": run, "event": {"kind": kind, **fields}})


def _plain(run: str) -> bytes:
    return message_to_bytes(Deliver(run, Signal(name="a", data={"token": MARK})))


def _longer(run: str) -> bytes:
    """The same value, written as nobody here writes it: how many fields there are takes two bytes."""
    body = _plain(run)
    return bytes((0xB8, body[0] & 0x1F)) + body[1:]


FORGED: Final[dict[str, Forged]] = {
    "a field that is none": lambda run: encode(_message(run, own=True)),
    "what is only kept in memory": lambda run: encode(_message(run, derived=True)),
    "a payload under a wrong name": lambda run: encode(_message(run, blobs={"sha256:0": b"x"})),
    "an address to report to": lambda run: encode(_message(run, reply=[run, "0"])),
    "what only a run tells itself": lambda run: _event(run, "continue", more=MARK),
    "a name of the engine's own": lambda run: _event(run, "cancel", by="treadle:parent", reason=MARK),
    "an operation and more": lambda run: encode({"operate": {"name": "x", "body": {}}, "own": MARK}),
    "what goes on behind its end": lambda run: _plain(run) + b"\x00",
    "what ends too early": lambda run: _plain(run)[:-3],
    "bytes that nobody writes so": _longer,
}


class Strangers:
    """Where messages of others are read at all."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world
        self._guest = Guest(world)
        self._number = 0
        self.left = 0

    def begin(self) -> None:
        runs = sorted({asked.action.run for asked in self._world.clients.asked})
        if runs and self._world.polls:
            self.left = self._world.rng.randrange(4, 16)
        for _ in range(self.left):
            self._world.after(self._world.rng.randrange(9_000 * MS), partial(self._begin, runs))

    def _begin(self, runs: list[str]) -> None:
        rng: Random = self._world.rng
        self._post(rng.choice(sorted(FORGED)), rng.choice(runs), Once())

    def _post(self, what: str, run: str, once: Once) -> None:
        """Until it is answered."""
        if once.done:
            return
        self._world.after(PATIENCE_NS, lambda: self._post(what, run, once))

        def told(value: Any, error: TreadleError | None) -> None:
            assert error is not None, f"a message with {what} is taken"
            if not once.done:
                once.done = True
                self.left -= 1

        self._number += 1
        with suppress(*PASSING):
            self._guest.post(f"{GUEST}stranger:{self._number}", FORGED[what](run), run, told)

    def committed(self) -> None:
        for life, record in self._world.journals.fresh:
            said = record["event"].values()
            forged = any(part == MARK or (isinstance(part, dict) and MARK in part.values()) for part in said)
            assert not forged, f"{life.id}#{record['seq']} is of a message that somebody forged"
