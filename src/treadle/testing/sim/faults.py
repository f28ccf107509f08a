"""The weather of one seed: how often each thing goes wrong, and how small each limit is.

Only what the contract promises to survive is injected. A swarm switches some faults off and makes
others wild, so that a frequent fault cannot mask a rare one (TigerBeetle's habit). And every third seed has
faults of one kind only: who begins anew finds everything, so that a death mends what another fault broke, and a
world in which processes die, too, would never show it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random

from treadle.kernel.limits import Limits


@dataclass(frozen=True, slots=True)
class Faults:
    # per turn of a process
    crash: float = 0.0  # it dies at a random point of the turn
    power_loss: float = 0.0  # every process dies, the disk keeps what was synced
    usurp: float = 0.0  # a second owner appears while the first one lives; with several, all leases run out
    regain: float = 0.0  # shards are lost and come back; only where several share them
    pause: float = 0.0  # the process stands still for a while
    halt: float = 0.0  # it stands still in the middle of a turn, and others go on
    replaced: float = 0.0  # a copy takes the place of the store's file; only where it is a file
    clock_jump: float = 0.0  # the wall clock moves, either way
    disk_full: float = 0.0  # no room for a while
    late_code: float = (
        0.0  # dialects are loaded when they are needed, beside the core, and that fails so often
    )
    # per statement
    commit_fails: float = 0.0
    read_fails: float = 0.0
    busy: float = 0.0
    conflict: float = 0.0  # an append is refused, as if a rival had been there first
    unknown: float = (
        0.0  # the answer to a commit is lost; only on a store that several share, which is a server
    )
    # per message
    lost: float = 0.0
    duplicated: float = 0.0
    delayed: float = 0.0
    stalled: float = 0.0  # a worker holds its work beyond the lease
    guest: float = 0.0  # a client's message comes through another process

    @classmethod
    def of(cls, seed: int, rng: Random, *, is_file: bool) -> Faults:
        """The weather of a seed: all kinds, or one of them alone. `is_file`: a file can be replaced, a server cannot."""
        number, apart = divmod(seed, APART_EVERY)
        if apart != APART_EVERY - 1:
            return cls.swarm(rng, is_file=is_file)
        kind = KINDS[number % len(KINDS)]
        wild = cls.swarm(rng, still=0, is_file=is_file)
        return cls(**{name: getattr(wild, name) for name in kind})

    @classmethod
    def swarm(cls, rng: Random, *, still: int = 2, is_file: bool) -> Faults:
        """For each fault that is mild, and that is wild, `still` that are off."""

        def rate(mild: float, wild: float) -> float:
            return rng.choice((*[0.0] * still, mild, wild))

        return cls(
            crash=rate(0.01, 0.15),
            power_loss=rate(0.003, 0.05),
            usurp=rate(0.01, 0.1),
            regain=rate(0.01, 0.1),
            pause=rate(0.005, 0.05),
            halt=rate(0.02, 0.2),
            clock_jump=rate(0.005, 0.05),
            disk_full=rate(0.003, 0.02),
            commit_fails=rate(0.02, 0.25),
            read_fails=rate(0.001, 0.01),
            busy=rate(0.01, 0.1),
            lost=rate(0.02, 0.3),
            duplicated=rate(0.02, 0.3),
            delayed=rate(0.05, 0.4),
            stalled=rate(0.02, 0.3),
            guest=rate(0.1, 0.5),
            conflict=rate(0.01, 0.05),
            unknown=rate(0.1, 0.4),
            replaced=rate(0.01, 0.1) if is_file else 0.0,
            late_code=rate(0.1, 0.5),
        )

    def __str__(self) -> str:
        on = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name)]
        return " ".join(on) or "no faults"


CALM = Faults()

# Every so many seeds one kind of fault is met alone.
APART_EVERY = 3
KINDS: tuple[tuple[str, ...], ...] = (
    # shards that are lost and come back to who had them
    ("regain", "halt", "guest", "commit_fails"),
    # shards that move among those who live
    ("usurp", "pause", "halt", "guest"),
    # deaths
    ("crash", "power_loss", "guest"),
    # a store that is gone
    ("replaced", "guest", "halt"),
    # a network and workers without manners
    ("lost", "duplicated", "delayed", "stalled", "guest"),
    # a store that does not take it
    ("disk_full", "commit_fails", "read_fails", "busy", "conflict", "clock_jump"),
    # a store that does not say whether it took it
    ("unknown",),
    # code that comes late
    ("late_code", "crash", "guest"),
)


def small_limits(rng: Random) -> Limits:
    """Small limits bring rare paths (a full batch, a page, a snapshot) into every run."""
    return Limits(
        batch_records=rng.choice((1, 3, 512)),
        snapshot_tail_records=rng.choice((2, 5, 256)),
        recover_per_turn=rng.choice((1, 3, 250)),
        timers_per_turn=rng.choice((1, 1000)),
        inbox_per_turn=rng.choice((1, 1000)),
        hot_runs=rng.choice((1, 4, 4096)),
    )
