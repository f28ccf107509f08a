"""What traces cost: W1x100 (10 trivial steps, 100 runs at once) with nobody told, with a collector, and with one that is down.

    python benchmarks/traces.py [RUNS] [ROUNDS]

The collector is a process of its own that throws away what it is sent. Rounds are interleaved; medians are printed: steps a
second while the runs go, CPU of this process a step until everything is told.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from treadle import Engine

STEPS = 10
AT_ONCE = 100
FLOW = "dialect: process\nname: w1\nversion: '1'\nsteps:\n" + "".join(
    f"  - call: {{transport: nothing, payload: {n}, into: r{n}}}\n" for n in range(STEPS)
)
COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


async def measured(runs: int, telemetry: str | None) -> tuple[float, float]:
    """Steps a second, and microseconds of CPU a step."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "w1.yaml").write_text(FLOW)
        engine = Engine(f"sqlite:///{folder}/t.db", telemetry=telemetry)

        @engine.transport("nothing")
        def nothing(payload: Any) -> Any:
            return payload

        engine.deploy(f"{folder}/w1.yaml")
        cpu = time.process_time()
        async with engine:
            left = iter(range(runs))

            async def drive() -> None:
                for _ in left:
                    await (await engine.start("w1")).result()

            begun = time.perf_counter()
            await asyncio.gather(*(drive() for _ in range(AT_ONCE)))
            took = time.perf_counter() - begun
        return runs * STEPS / took, (time.process_time() - cpu) * 1e6 / (runs * STEPS)


def main(runs: int = 600, rounds: int = 5) -> None:
    collector = subprocess.Popen([sys.executable, "-c", COLLECTOR], stdout=subprocess.PIPE, text=True)
    try:
        assert collector.stdout is not None
        port = int(collector.stdout.readline())
        ways = {"off": None, "told": f"http://127.0.0.1:{port}", "collector down": "http://127.0.0.1:9"}
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, url in ways.items():
                found[way].append(asyncio.run(measured(runs, url)))
    finally:
        collector.kill()
        collector.communicate()
    for way, figures in found.items():
        rate, cpu = (statistics.median(part) for part in zip(*figures, strict=True))
        print(f"{way:>15}: {rate:7.0f} steps/s, {cpu:6.0f} µs of CPU a step")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
