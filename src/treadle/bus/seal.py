"""What a worker shows for work that was handed to it: the intent and the worker, sealed with a key of the store.

A seal needs no memory. So a lease outlives the process that gave it: an owner that was killed and comes back, or
another that took over its shard, knows by the seal alone that the work was in these hands, and takes what they bring.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import urlsafe_b64encode
from typing import Final

KEY_BYTES: Final = 32
_SEAL_BYTES: Final = 18


class Seal:
    def __init__(self, key: bytes | None = None) -> None:
        """Without a key it is good for as long as this object lives."""
        self._key = key or os.urandom(KEY_BYTES)

    def lease(self, intent: str, worker: str) -> str:
        nonce = urlsafe_b64encode(os.urandom(6)).decode()
        return f"{intent}~{nonce}~{self._mark('lease', intent, worker, nonce)}"

    def intent(self, lease: str, worker: str) -> str | None:
        """The intent that was handed to this worker with this lease; None if none was."""
        intent, _, rest = lease.partition("~")
        nonce, _, mark = rest.partition("~")
        good = hmac.compare_digest(
            self._mark("lease", intent, worker, nonce).encode(), mark.encode(errors="replace")
        )
        return intent if good else None

    def key_of(self, worker: str) -> bytes:
        """What a worker signs its messages with."""
        return self._digest("worker", worker)

    def _mark(self, *words: str) -> str:
        return urlsafe_b64encode(self._digest(*words)[:_SEAL_BYTES]).decode()

    def _digest(self, *words: str) -> bytes:
        said = b"".join(
            len(raw).to_bytes(4, "big") + raw for raw in (word.encode(errors="replace") for word in words)
        )
        return hmac.new(self._key, said, hashlib.sha256).digest()
