"""What bounds a run of the agent dialect. No legal workflow is refused over them: what is larger is
kept by reference, split over several records, cut with a note, or fails its node and nothing else."""

from __future__ import annotations

from typing import Final

# One step: what is left when it has grown this much follows in the next record.
STEP_EVENTS_MAX: Final = 128
STEP_INTENTS_MAX: Final = 48
STEP_BYTES_MAX: Final = 200 * 1024

# A run is stopped in one step, which has room for so many `node:exit` and so much in them.
CUT_EVENTS_MAX: Final = 100
CUT_BYTES_MAX: Final = 600 * 1024

# Warnings of one place that are told one by one.
WARNINGS_MAX: Final = 20

# One node: calls in one answer of the model, and the record of all its calls.
TURN_CALLS_MAX: Final = 128
NODE_CALLS_BYTES_MAX: Final = 512 * 1024

# What is handed on as it is: a child's input, the text a person is asked, each value they are shown, what they note.
CHILD_INPUT_BYTES_MAX: Final = 256 * 1024
PROMPT_CHARS_MAX: Final = 64 * 1024
SHOWN_BYTES_MAX: Final = 16 * 1024
NOTE_CHARS_MAX: Final = 4_000

# A node's data up to this size is changed by the machine; above, a performer does it.
MERGED_BYTES_MAX: Final = 64 * 1024

# Context items that travel in an intent; more of them are stored as a chunk, which costs its commit more than
# it costs a record to hold a few more.
ITEMS_INLINE_MAX: Final = 24
ITEMS_INLINE_BYTES_MAX: Final = 8 * 1024

# A run's results: in its last record, or else sealed in slices. A slice is put onto all that were
# stored before it, so few large ones; a record takes 1 MiB. A trace step is about so many bytes.
RESULT_INLINE_BYTES_MAX: Final = 128 * 1024
SEAL_SLICE_BYTES_MAX: Final = 600 * 1024
TRACE_STEP_BYTES: Final = 160

REASONING_CHARS_MAX: Final = 500
