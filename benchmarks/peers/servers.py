"""Starting a peer's own server: a free port, a process, and patience until it answers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from pathlib import Path


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def started(command: list[str], variables: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(command, env={**os.environ, **variables}, stdout=out, stderr=out)


async def answers(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until something listens there."""
    for _ in range(1_200):
        if server.poll() is not None:
            raise SystemExit(f"the server ended: {log.read_text()[-500:]}")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return
    raise SystemExit("the server does not answer")
