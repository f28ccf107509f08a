"""A fork that has to wait for its place, of a run that was in the middle of something."""

from __future__ import annotations

from treadle.kernel.history import fork
from treadle.kernel.model import PLACE, Continue, Receipt, Started
from treadle.kernel.run import advance
from treadle.kernel.state import RunState
from treadle.testing.sim.drill_machine import DrillMachine

BODY = {"drill": True}


def test_it_goes_on_with_what_its_original_owed_itself_when_it_has_its_place() -> None:
    machine = DrillMachine()
    source = RunState(id="run", dialect="drill", workflow="drill", version="1.0.0", definition="sha256:0")
    program = {"lanes": [[{"do": "grind", "count": 2}]]}
    advance(source, machine, BODY, Started(definition="sha256:0", input=program, seed=b"s"), at_ns=1)
    assert isinstance(source.pending(), Continue)

    state, _ = fork(source, id="fork", definition="sha256:0", seed=b"f", at_ns=2, by=None, queued=True)
    assert state.pending() is None, "it takes nothing before it has its place"
    assert not state.working

    (place,) = [intent.id for intent in state.open.values() if intent.kind == PLACE]
    advance(state, machine, BODY, Receipt(intent=place), at_ns=3)
    while (owed := state.pending()) is not None:
        advance(state, machine, BODY, owed, at_ns=4)
    assert (state.status, state.result) == ("completed", [["ground"]])
