"""Neither a step nor loading a run gets dearer with the run's length: counted in bytes and records, not in time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from treadle.engine import Engine
from treadle.store.open import read_sqlite
from treadle.testing import toy

STEPS = 1_200
TAIL_RECORDS_MAX = 256


async def test_a_step_and_a_load_cost_the_same_however_long_the_run_is(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    toy.install(engine)
    engine.deploy(toy.TOY)
    async with engine:
        run = await engine.start("toy", {"do": [["work", STEPS]], "keep": False}, id="r")
        await run.result(timeout=300)
        assert (await engine.replay("r"))["equal"]
    reads = read_sqlite(tmp_path / "t.db")
    row = reads.run("r")
    assert row is not None
    bodies = [len(stored.body) for stored in reads.journal(row.no)]
    assert len(bodies) > STEPS
    assert max(bodies[-100:-1]) <= max(bodies[100:200]) + 16, (
        "a record is no larger at the end than at the beginning"
    )
    cuts = reads.snapshot_seqs(row.no)
    gaps = [after - before for before, after in pairwise([0, *cuts, len(bodies)])]
    assert max(gaps) <= TAIL_RECORDS_MAX, "loading decides no more than one tail again"
    sizes = [len(found[1]) for cut in cuts if (found := reads.snapshot(row.no, until_seq=cut)) is not None]
    assert max(sizes) - min(sizes) <= 64, "a state that does not grow is cut at the same size each time"
    reads.close()
