"""Every bound in the system, in one file; unit and bound last, so that related names sort together.

A limit protects a neighbour, never refuses a legal definition: a declarative machine that wants
more than one step may open asks for the rest in slices (`Decision.more`).
"""

from __future__ import annotations

VALUE_DEPTH_MAX = 128
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
TIMERS_PER_TURN_MAX = 1_000
INBOX_PER_TURN_MAX = 1_000

BLOB_CACHE_BYTES_MAX = 64 * 1024 * 1024
BLOB_INLINE_BYTES_MAX = 64 * 1024
DIAGNOSTICS_PER_RUN_MAX = 1_000

LEASE_DURATION_MS = 30_000
STORE_BUSY_MS_MAX = 30_000
OWNER_POLL_MS = 25

assert BATCH_RECORDS_MAX > STEP_INTENTS_MAX, "one step's children must fit into a batch"
