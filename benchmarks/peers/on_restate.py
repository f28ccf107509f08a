"""Restate: its server (from npm) beside a service of its Python SDK, both on this machine, asked over HTTP.

Server and service are what one needs to run anything, so both count as the peer: their memory, their start, their kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from peers import work
from peers.line import Lines
from peers.peer import version
from peers.servers import answers, free_port, started

bench = restate.Service("bench")
waits = restate.Workflow("waits")
slows = restate.Workflow("slows")
_completed = 0


async def count(n: int) -> int:
    return work.count(n)


@bench.handler()
async def chain(ctx: restate.Context, steps: int) -> int:
    n = 0
    for _ in range(steps):
        n = await ctx.run_typed("count", count, n=n)
    return n


@bench.handler()
async def fan(ctx: restate.Context, width: int) -> int:
    done = await restate.gather(*(ctx.run_typed("count", count, n=0) for _ in range(width)))
    return sum([await each for each in done])


@bench.handler()
async def leaf(ctx: restate.Context, n: int) -> int:
    global _completed
    found = await ctx.run_typed("count", count, n=n)
    _completed += 1
    return found


@bench.handler()
async def parent(ctx: restate.Context, children: int) -> int:
    done = await restate.gather(*(ctx.service_call(leaf, arg=0) for _ in range(children)))
    return sum([await each for each in done])


@waits.main()
async def wait(ctx: restate.WorkflowContext) -> Any:
    return await ctx.promise("go").value()


@waits.handler()
async def go(ctx: restate.WorkflowSharedContext, sent: int) -> None:
    await ctx.promise("go").resolve(sent)


@slows.main()
async def slowly(ctx: restate.WorkflowContext, steps: int) -> list[str]:
    run = ctx.key()
    return [
        await ctx.run_typed("slow", work.slow, run=run, step=number)  # one after the other
        for number in range(steps + 1)
    ]


class Peer:
    cannot = {"W8": "a library of durable handlers: it has no agent graphs"}  # noqa: RUF012

    @property
    def about(self) -> dict[str, str]:
        return {
            "version": f"server {os.environ['RESTATE_SERVER_VERSION']}, sdk {version('restate-sdk')}",
            "durability": "its own log on RocksDB, write-ahead log with fsync (its defaults), group commit",
            "recovery": "by itself",
            "processes": "a server (Rust, uses both cores) and the service (Python)",
        }

    async def open(self, folder: Path, program: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        ports = folder / "ports.json"
        if not ports.exists():  # an invocation in flight is taken up where its service was
            ports.write_text(json.dumps([free_port() for _ in range(4)]))
        ingress, admin, node, service = json.loads(ports.read_text())
        self._ending = asyncio.Event()
        config = Config()
        config.bind = [f"127.0.0.1:{service}"]
        config.h2_max_concurrent_streams = 2**31 - 1
        config.loglevel = "ERROR"
        app: Any = restate.app([bench, waits, slows], "bidi")
        self._service = asyncio.ensure_future(serve(app, config, shutdown_trigger=self._ending.wait))
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_NODE_NAME": "bench",
            "RESTATE_BASE_DIR": str(folder / "restate"),
            "RESTATE_LOG_FILTER": "error",
            "RESTATE_DISABLE_TELEMETRY": "true",
            # A machine of developers may have this set, and then each error costs it milliseconds.
            "RUST_BACKTRACE": "0",
        }
        log = folder / "server.log"
        self._server = started([os.environ["RESTATE_SERVER"], "--no-logo"], settings, log)
        await answers(admin, self._server, log)
        await answers(ingress, self._server, log)
        self._lines = Lines("127.0.0.1", ingress)
        await self._register(Lines("127.0.0.1", admin), f"http://127.0.0.1:{service}")
        self._ingress = ingress

    async def _register(self, admin: Lines, uri: str) -> None:
        """The server may answer before it is ready to take a deployment."""
        for attempt in range(200):
            try:
                await admin.ask("POST", "/deployments", {"uri": uri, "force": True, "breaking": True})
                break
            except (RuntimeError, OSError, asyncio.IncompleteReadError):
                if attempt == 199:
                    raise
                await asyncio.sleep(0.05)
        admin.close()

    async def close(self) -> None:
        self._lines.close()
        self._server.terminate()
        await asyncio.to_thread(self._server.wait)
        self._ending.set()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._service, 2)

    async def chain(self, steps: int) -> Any:
        return await self._lines.ask("POST", "/bench/chain", steps)

    async def fan(self, width: int) -> Any:
        return await self._lines.ask("POST", "/bench/fan", width)

    async def children(self, count: int) -> Any:
        return await self._lines.ask("POST", "/bench/parent", count)

    async def wait(self, run: str) -> None:
        await self._lines.ask("POST", f"/waits/{run}/wait/send")

    async def wake(self, run: str) -> None:
        await self._lines.ask("POST", f"/waits/{run}/go", 7)

    async def woken(self, run: str) -> Any:
        return await self._lines.ask("GET", f"/restate/workflow/waits/{run}/attach")

    async def slow(self, run: str, steps: int) -> None:
        await self._lines.ask("POST", f"/slows/{run}/slowly/send", steps)

    async def slow_result(self, run: str, steps: int) -> Any:
        return await self._lines.ask("GET", f"/restate/workflow/slows/{run}/attach")

    async def serve(self, folder: Path) -> tuple[str, int, str, Any]:
        await self.open(folder, "chain")
        return "127.0.0.1", self._ingress, "/bench/leaf/send", 0

    async def served(self, folder: Path) -> int:
        return _completed
