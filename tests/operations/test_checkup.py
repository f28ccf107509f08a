"""The doctor says what workers sent back that nobody could use, and what to do about it."""

from __future__ import annotations

from pathlib import Path

from tests.backdoor import change

from treadle import Engine
from treadle.host.checkup import examine
from treadle.kernel.values import encode
from treadle.store.figures import DEAD_LETTER


async def test_dead_letters_are_listed_with_what_to_do(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    letter = {
        "id": "l1",
        "at": "2026-11-16T00:00:00Z",
        "run": "r1",
        "worker": "w1",
        "reason": "NOT_CANONICAL",
    }
    async with Engine(url) as engine:
        await change(engine, lambda desk: desk.batch.documents.append((DEAD_LETTER, "l1", 1, encode(letter))))
    found = examine(url)
    assert (found["ok"], found["dead_letters"]) == (True, 1)
    (remark,) = [remark for remark in found["remarks"] if "dead letter" in remark]
    assert all(word in remark for word in ("l1", "r1", "w1", "NOT_CANONICAL", "/deadletters/l1/replay"))
