"""Treadle without a dialect's weight: the toy dialect, whose steps do nothing. What is left is the engine."""

from __future__ import annotations

from pathlib import Path

from peers.treadle_base import TreadlePeer
from treadle import Engine
from treadle.testing import toy

ONLY_STEPS = "a toy has steps, and nothing else"


class Peer(TreadlePeer):
    cannot = dict.fromkeys(("W2steps", "W2children", "W3", "W4", "W8", "W9"), ONLY_STEPS)
    names = {"chain": toy.TOY}  # noqa: RUF012
    served_file = ("", "")

    def prepare(self, engine: Engine, folder: Path, program: str) -> None:
        toy.install(engine)

    async def chain(self, steps: int) -> int:
        return len(await self._ran("chain", {"do": [["work", steps]]}))
