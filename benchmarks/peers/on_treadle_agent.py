"""Treadle, agents: a chain of nodes, answered by a model that costs nothing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from peers.treadle_base import TreadlePeer
from treadle import Engine
from treadle.agent import TurnReply, TurnRequest

ELSEWHERE = "an agent's step is a model's turn: see W8"


class Instant:
    """A model that answers at once, and asks for nothing."""

    default_model: str | None = None
    small_model: str | None = None
    keeps_history = False
    instant = True

    def __init__(self, *, pure: bool) -> None:
        self.turns = 0
        self.pure = pure

    async def turn(self, request: TurnRequest) -> TurnReply:
        self.turns += 1
        return TurnReply(data={"node": request.node, "ok": True})

    async def close(self) -> None:
        """Nothing is held open."""


class Peer(TreadlePeer):
    cannot = dict.fromkeys(("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W9"), ELSEWHERE)

    def prepare(self, engine: Engine, folder: Path, program: str) -> None:
        self._folder, self._model = folder, Instant(pure=program == "pure")
        engine.models["instant"] = self._model

    async def nodes(self, count: int) -> int:
        names = [f"n{index}" for index in range(count)]
        path = self._folder / f"chain{count}.json"
        if not path.exists():
            nodes = {name: {"name": name, "instruction": f"Do {name}."} for name in names}
            edges = [{"from": a, "to": b} for a, b in itertools.pairwise(names)]
            chain = {"id": f"chain{count}", "name": "Chain", "entry": names[0], "max_steps": count}
            path.write_text(json.dumps({**chain, "nodes": nodes, "edges": edges}))
            self.engine.deploy(str(path))
        before = self._model.turns
        await (await self.engine.start(f"chain{count}", model="instant")).result()
        return self._model.turns - before
