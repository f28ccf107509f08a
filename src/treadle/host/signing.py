"""Receipts signed with the node's key.

Whoever performs an effect signs how it settled; the core verifies that before the receipt counts.
The key is 32 random bytes in a file beside the store that only its owner may read, so a process
that can merely write to the store (a guest, a tool that found the file) cannot settle somebody
else's work. A store in memory has a key of its own life.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from msgspec.structs import replace

from treadle.kernel.model import Receipt
from treadle.kernel.values import encode
from treadle.store.files import written

KEY_BYTES = 32


class Signer:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, receipt: Receipt) -> bytes:
        said = encode([receipt.intent, receipt.status, receipt.value, receipt.error])
        return hmac.new(self._key, said, hashlib.sha256).digest()

    def verify(self, receipt: Receipt) -> bool:
        return hmac.compare_digest(self.sign(receipt), receipt.signature)


class Vouching:
    """What an engine vouches with for work and receipts, once its core has opened the store."""

    def __init__(self) -> None:
        # What leases of work are sealed with; the store's.
        self.work_key = b""
        self._signer: Signer | None = None

    def begin(self, work_key: bytes, signer: Signer) -> None:
        self.work_key, self._signer = work_key, signer

    def sign(self, receipt: Receipt) -> bytes:
        return b"" if self._signer is None else self._signer.sign(receipt)

    def vouched(self, receipt: Receipt) -> Receipt:
        """A receipt with the node's signature, where this process has a key."""
        return receipt if self._signer is None else replace(receipt, signature=self._signer.sign(receipt))


def node_signer(store: Path | None) -> Signer:
    """The signer of the node that owns a store; its key is made when it is first needed."""
    if store is None:
        return Signer(os.urandom(KEY_BYTES))
    path = store.with_name(store.name + "-key")
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != KEY_BYTES:
        # Nothing signed with an earlier key is on its way: receipts live in one process.
        key = os.urandom(KEY_BYTES)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        with written(path):
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(key)
            temporary.replace(path)
    return Signer(key)
