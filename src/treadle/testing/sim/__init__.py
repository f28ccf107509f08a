"""The simulator: the real kernel, core and SQL store on a simulated clock, disk and bus.

One thread, one seed, no real time. A `World` runs engine processes that die at any point of a turn,
lose power, are paused (also in the middle of a turn, while others go on) and usurped by a second owner, lose shards and
get them back, meet failed and torn commits and a full disk, and a file that another one took the place of (`weather.py`);
workers that stall, repeat and lose receipts; clients and people who ask again when they get no
answer; a clock that jumps. Each seed draws a swarm of fault rates and of limits, so that a frequent
fault cannot hide a rare one; in every third seed one kind of fault is met alone, because who begins anew mends what
another fault broke. How long the bad weather lasts is drawn, too. First comes the safety phase, in which anything may fail; then the
weather clears, and everything must come to its right end (liveness).

    python -m treadle.testing.sim 17            one seed, with what happened in it
    python -m treadle.testing.sim --seeds 1000  many; a failure prints the seed and the command for it

Guests are processes too: they leave rows for the owner, look for the rows that answer them, and die at any
point of that. Strangers leave rows that no guest would write (`strangers.py`), and two want to change what both have seen
(`rivals.py`). Dialects are loaded beside the core when they are first needed, late, and not always at the first time (`late_code.py`). Ids are asked for by several, other versions are deployed while runs are under way, and what is past its
date is collected meanwhile. When all is quiet the store is collected, in the old weather again, until nothing is left.

Checked after every commit (`checks.py`): journals are chained and gapless, an intent is opened and
settled once, timers do not fire early, nothing acknowledged is lost, no message is answered and still
there; a record is decided by the definition of its run, what is collected had ended and was due, what records refer to
is there, and no run is passed by another again and again, with its events (`turns.py`) or with its work (`resident.py`); a
tick of a schedule is one run (`ticks.py`), and who did what is told with what was done (`trail.py`). At each dispatch and answer: it is durable already. Whoever is called outside (`outside.py`) is called under one key for all attempts, and once where it must not be repeated. At the end: every journal replays equal, from its start and from every
snapshot; what is damaged is not read (`rot.py`); children report once; messages arrive once; every run ends as its workload says.

Applications (`sums.py`, `--applications`): the real apply over members, snapshots and publishing, driven on a simulated
loop (`loop.py`) in processes that die, stand still and lose shards. Each record is decided by the version that is active
there and then, each event is taken once, a snapshot is of one moment, and whoever asked a process that lives is answered.

Any dialect can be simulated. Write a `Workload` (`workload.py`): its machines, its definitions, an
`async def perform(job)` for each kind of intent it opens (as for a worker), the actions of its clients
(`actions(rng)`: starts, signals, cancels, each with a time), and `check(world)`, which says whether
the runs ended right. Then `simulate(seed, MyWorkload)`; `drill.py` is the example, and what
`make sim` runs.
"""

from __future__ import annotations

from .workload import Action, ForkWanted, Workload
from .world import SimOutcome, SimulationFailed, SimWorld, simulate

__all__ = ["Action", "ForkWanted", "SimOutcome", "SimWorld", "SimulationFailed", "Workload", "simulate"]
