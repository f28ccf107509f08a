"""Whether a run can go on under another definition: a fork begins under it, a retry moves to it."""

from __future__ import annotations

from treadle.kernel.errors import Unsupported
from treadle.kernel.roles import CellMachine, CodeMachine
from treadle.kernel.state import RunState

from .registry import Loaded, Registry


def check_compatible(loaded: Loaded, run: RunState, *, moves: bool = True) -> None:
    """Refuses a definition of another dialect, and one that the run's state does not fit."""
    if loaded.row.dialect != run.dialect:
        raise Unsupported(f"{run.id} is a {run.dialect} run; the definition is a {loaded.row.dialect}")
    if moves and (problem := loaded.machine.compatible(loaded.definition, run.state)):
        raise Unsupported(
            f"{run.id} cannot go on under {loaded.row.name}: {problem}", code="INCOMPATIBLE_DEFINITION"
        )


def mended(registry: Registry, run: RunState, digest: str) -> Loaded:
    """The definition under which a run goes on from where it stopped."""
    loaded = registry.load(digest)
    if isinstance(loaded.machine, CellMachine | CodeMachine):
        raise Unsupported(
            f"{run.id} takes its code from what is deployed: deploy the mended one, then retry without a definition"
        )
    check_compatible(loaded, run)
    if loaded.row.name != run.workflow:
        raise Unsupported(
            f"{run.id} is a run of {run.workflow}, and the definition is {loaded.row.name}; fork it instead",
            code="INCOMPATIBLE_DEFINITION",
        )
    return loaded
