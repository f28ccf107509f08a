"""How much one decision of a playbook takes, and where a net is stopped: values, handed to the machine.

The kernel bounds a record; a playbook slices what it does so that it stays below that.
"""

from __future__ import annotations

import msgspec


class Slices(msgspec.Struct, frozen=True):
    intents: int = 56
    events: int = 200
    # Causes are told with what they cause, so a decision may go over a little.
    events_hard: int = 250
    bytes: int = 384 * 1024
    # So much is put away in one decision, about; what is left waits for the next.
    stored_bytes: int = 4 * 1024 * 1024
    # A net that doubles its tokens at each of thirty steps would fill the store with its marking.
    tokens: int = 100_000
    # So many results of a loop at most stay in the marking.
    chunk_items: int = 1024
    chunk_bytes: int = 32 * 1024
    # So many chunks of one level become one of the next.
    fold_parts: int = 256


SLICES = Slices()
