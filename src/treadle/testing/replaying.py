"""The one assertion every workflow's test should end with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.engine import Engine, Run
    from treadle.runs import RunHome

_RUNS_PER_PAGE = 1_000


async def assert_replays(target: Engine | Run) -> int:
    """Decides the journal of a run, or of every run of an engine, once more and compares bytes.

    Returns how many runs were compared. A difference is an AssertionError that names the record, what it
    says, and what the code of today decides.
    """
    from treadle.engine import Run

    engine = target._engine if isinstance(target, Run) else target
    ids = [target.id] if isinstance(target, Run) else await _all_ids(engine)
    for id in ids:
        found = await engine.replay(id)
        assert found["equal"], _difference(found)
    return len(ids)


async def _all_ids(engine: RunHome) -> list[str]:
    def ask(reads: Any) -> list[str]:
        ids: list[str] = []
        before: int | None = None
        while rows := reads.runs(before_no=before, limit=_RUNS_PER_PAGE):
            ids += [row.id for row in rows]
            before = rows[-1].no
        return ids

    return await engine.read(ask)


def _difference(found: dict[str, Any]) -> str:
    return (
        f"{found['id']} does not replay: record {found.get('seq')} says {found.get('expected')!r}, "
        f"the code of today decides {found.get('got')!r}"
    )
