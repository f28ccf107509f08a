"""Every bound in the system, in one file; unit and bound last, so that related names sort together.

A limit protects a neighbour, never refuses a legal definition: a declarative machine that wants
more than one step may open asks for the rest in slices (`Decision.more`).

The names are the defaults. Whoever may be given other limits takes them as a value (`Limits`), so that a test
or the simulator sets them for one core, and nobody else's change.
"""

from __future__ import annotations

from typing import Final

import msgspec

VALUE_DEPTH_MAX = 128
# A value that is so large written out, and so many times larger than in memory, is refused (`lang/handed.py`).
WRITTEN_BYTES_MIN = 16 * 1024 * 1024
WRITTEN_TIMES_MAX = 64
# A value may hold references to values that hold others: so deep is looked into them, all in all.
REFERENCE_LEVELS_MAX = 200
INT_MIN = -(2**63)
INT_MAX = 2**64 - 1
# The last instant that a store's index can hold, in the year 2262. What is due later is due then.
DUE_NS_MAX = 2**63 - 1

STEP_INTENTS_MAX = 64
STEP_EVENTS_MAX = 256
STEP_BYTES_MAX = 1024 * 1024
PAYLOAD_INLINE_BYTES_MAX = 64 * 1024

SNAPSHOT_TAIL_BYTES_MIN = 64 * 1024
SNAPSHOT_TAIL_RECORDS_MAX = 256

RUN_ID_CHARS_MAX = 512
RUN_DEPTH_MAX = 32
SIGNALS_BUFFERED_MAX = 10_000

HOT_RUNS_MAX = 4096
BATCH_RECORDS_MAX = 512
BATCH_BYTES_MAX = 16 * 1024 * 1024
# How long a commit waits for work that was begun ahead of it.
AHEAD_MS_MAX = 10
TIMERS_PER_TURN_MAX = 1_000
INBOX_PER_TURN_MAX = 1_000
RECOVER_PER_TURN_MAX = 250

BLOB_CACHE_BYTES_MAX = 64 * 1024 * 1024
BLOB_INLINE_BYTES_MAX = 64 * 1024
DIAGNOSTICS_PER_RUN_MAX = 1_000

# Work in the hands of another process: its lease, and how often that renews it.
LEASE_DURATION_MS = 10_000
LEASE_RENEW_MS = 3_000
# Work that waits for workers of one pool; what is beyond it stays open and is offered later.
POOL_QUEUE_MAX = 10_000
STORE_BUSY_MS_MAX = 30_000
OWNER_POLL_MS = 25


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one core and of the steps that it takes. None of them has a say in what a step decides, so a
    run replays equal under any others; those that have are the same everywhere, and no setting."""

    snapshot_tail_bytes: int = SNAPSHOT_TAIL_BYTES_MIN
    snapshot_tail_records: int = SNAPSHOT_TAIL_RECORDS_MAX
    run_depth: int = RUN_DEPTH_MAX
    hot_runs: int = HOT_RUNS_MAX
    # With one record a commit, a process may be cut between any two.
    batch_records: int = BATCH_RECORDS_MAX
    batch_bytes: int = BATCH_BYTES_MAX
    ahead_ns: int = AHEAD_MS_MAX * 1_000_000
    timers_per_turn: int = TIMERS_PER_TURN_MAX
    inbox_per_turn: int = INBOX_PER_TURN_MAX
    recover_per_turn: int = RECOVER_PER_TURN_MAX
    blob_cache_bytes: int = BLOB_CACHE_BYTES_MAX


LIMITS: Final = Limits()

assert BATCH_RECORDS_MAX > STEP_INTENTS_MAX, "one step's children must fit into a batch"
