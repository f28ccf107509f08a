"""What built-in skills keep from models: files that hold keys, and the engine's own.

A model may be led astray by a text it reads. So the files that would cost most are not there for it: `.env`
files and key files by their names, the store (database, logs, key, secrets, blobs) wherever it is, and the
secrets file and the script of the run. To list, read, search, query or write them is refused alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from treadle.performers.agent.skill import ToolContext


# What a store has beside its database.
_BESIDE: Final = ("-wal", "-shm", "-journal", "-key", "-owner", "-servers", "-blobs", ".secrets")
_NAMES: Final = re.compile(
    r"""\.env.*                                             # .env, .env.local, .envrc
    | .+\.secrets(\.key|\.lock)?                            # the secrets of any store
    | .+\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk)
    | id_(rsa|dsa|ecdsa|ed25519)(_sk)?
    | [._]netrc | \.pgpass | \.git-credentials | \.npmrc | \.pypirc
    | \.ssh | \.gnupg | \.aws | \.kube | \.docker           # folders of such
    """,
    re.X | re.I,
)


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """The engine's own files, as real paths: a store, and what a run was started with."""

    store: str | None = None
    files: tuple[str, ...] = ()

    @staticmethod
    def of(store: Path | None, ctx: ToolContext) -> OwnFiles:
        return OwnFiles(None if store is None else os.path.realpath(store), tuple(_given(ctx._options)))

    def holds(self, path: str) -> bool:
        beside = () if self.store is None else tuple(f"{self.store}{end}" for end in _BESIDE)
        return path == self.store or path in self.files or path.startswith(beside)


def _given(options: Mapping[str, Any]) -> list[str]:
    provider, _, script = str(options.get("model") or "").partition(":")
    found = [options.get("secrets"), script if provider == "scripted" else None]
    return [os.path.realpath(str(path)) for path in found if path]


def is_hidden(path: str, root: str, own: OwnFiles) -> bool:
    """Whether a real path below a root is one of these, or lies in one."""
    below = os.path.relpath(path, root).split(os.sep)
    return any(_NAMES.fullmatch(part) for part in below) or own.holds(path)
