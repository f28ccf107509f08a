"""The measurements of `cluster.py`, one function each: figures from a PostgreSQL, a folder and sizes.

python cluster_measures.py member STORE SECONDS AT_ONCE STEPS COUNT     one of COUNT members, for `members`
python cluster_measures.py fill STORE FILE COUNT SECONDS WAKES          runs that wait, for `waiting`
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cluster_house import Postgres, Process, percentiles, running, serving, shards_of, wait_until
from cluster_sizes import ClusterSizes
from peers.driver import expect, sustained
from peers.line import Lines

HERE = Path(__file__).resolve()
Figures = dict[str, Any]
CHUNK = 500
# How often the runs are counted: the processors are for those who are measured.
LOOK_S = 0.1

WAIT = """\
dialect: process
name: wait
version: "1"
steps:
  - await: go
"""

CHAIN = """\
dialect: process
name: chain
version: "1"
steps:
  - set: {state.n: 0}
  - repeat:
      while: {$: state.n < start.steps}
      max: 1000000
      do:
        - set: {state.n: {$: state.n + 1}}
        - call: {transport: python, code: "result = 1", into: r}
"""

NAPS = """\
import asyncio

from treadle import flow


@flow.step
async def nap() -> int:
    await asyncio.sleep({seconds})
    return 1


@flow.workflow(version="1")
async def naps(ctx: flow.Context, count: int) -> int:
    taken = 0
    for _ in range(count):
        taken += await nap()
    return taken
"""


# --- members ---


def members(pg: Postgres, sizes: ClusterSizes, count: int, folder: Path) -> Figures:
    """So many processes on one store, each with clients of its own; a run is decided where its shard is."""
    with pg.database() as store:
        command = [
            sys.executable,
            str(HERE),
            "member",
            store,
            str(sizes.seconds),
            str(sizes.at_once // count),
        ]
        command += [str(sizes.steps_long), str(count)]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=folder) for _ in range(count)]
        try:
            said = [process.communicate(timeout=sizes.patience_s)[0] for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        if any(process.returncode for process in started):
            raise SystemExit("a member failed")
    found = [json.loads(text.splitlines()[-1]) for text in said]
    return {
        "steps_per_s": sum(one["steps"] / one["seconds"] for one in found),
        "elsewhere": sum(one["elsewhere"] for one in found) / max(1, sum(one["runs"] for one in found)),
    }


async def member(store: str, seconds: float, at_once: int, steps: int, count: int) -> Figures:
    from treadle import Engine
    from treadle.testing import toy

    engine = Engine(store)
    toy.install(engine)
    async with engine:
        await _alone_or_shared(engine, count)
        elsewhere = runs = 0

        async def once() -> None:
            nonlocal elsewhere, runs
            run = await engine.start(toy.TOY, {"do": [["work", steps]]})
            elsewhere += not engine.decides(run.id)
            runs += 1
            await run.result()

        await sustained(0.0, at_once, once)
        elsewhere = runs = 0
        done, took = await sustained(seconds, at_once, once)
        # Whoever is done first must not leave: its shards would move while the others are measured.
        await asyncio.sleep(1.0)
        return {"steps": done * steps, "seconds": took, "runs": runs, "elsewhere": elsewhere}


async def _alone_or_shared(engine: Any, count: int) -> None:
    """Until so many members share the shards evenly."""
    until = time.monotonic() + 60
    while len(engine.members()) != count or engine.shards["held"] != engine.shards["of"] // count:
        if time.monotonic() > until:
            raise SystemExit("the members do not share the shards")
        await asyncio.sleep(0.02)


# --- workers ---


def workers(
    pg: Postgres, sizes: ClusterSizes, count: int, bus: str, nats: str | None, folder: Path
) -> Figures:
    """A server that decides only, and so many workers, which may do `concurrency` steps at once each."""
    app = folder / "naps.py"
    app.write_text(NAPS.format(seconds=sizes.nap_s), "utf-8")
    carried = bus if bus == "postgres" else str(nats)
    runs = sizes.concurrency * max(sizes.workers) * 4
    with pg.database() as store, contextlib.ExitStack() as stack:
        server = stack.enter_context(
            serving(store, folder, "--no-worker", "--bus", carried, "--app", str(app))
        )
        options = ["--bus", carried] if nats else []
        for number in range(count):
            stack.enter_context(running(_worker(store, folder, app, sizes, number, options)))
        rates = [asyncio.run(_napped(pg, store, server, sizes, runs)) for _ in range(sizes.naps_rounds)]
    return {"steps_per_s": max(rates), "most_possible": count * sizes.concurrency / sizes.nap_s}


def _worker(
    store: str, folder: Path, app: Path, sizes: ClusterSizes, number: int, options: list[str]
) -> Process:
    named = ["--name", f"w{number}", "--concurrency", str(sizes.concurrency), "--app", str(app)]
    return Process("worker", "--store", store, *named, *options, folder=folder)


async def _napped(pg: Postgres, store: str, server: Process, sizes: ClusterSizes, runs: int) -> float:
    """Steps a second: all runs are started at once, and each goes on step by step."""
    lines = Lines(*server.address)
    body = {"workflow": "naps", "input": sizes.naps}
    with pg.asking(store) as ask:

        def completed() -> int:
            return int(ask("SELECT count(*) FROM runs WHERE status = 'completed'")[0][0])

        async def until(count: int) -> None:
            await asyncio.to_thread(
                wait_until, lambda: completed() == count, "the runs", sizes.patience_s, LOOK_S
            )

        before = completed()
        await lines.ask("POST", "/api/v1/runs", body)  # what is loaded once is loaded now
        await until(before + 1)
        begun = time.perf_counter()
        await asyncio.gather(*(lines.ask("POST", "/api/v1/runs", body) for _ in range(runs)))
        await until(before + 1 + runs)
        took = time.perf_counter() - begun
    lines.close()
    return runs * sizes.naps / took


# --- a server that does not decide the run ---


def elsewhere(pg: Postgres, sizes: ClusterSizes, folder: Path) -> Figures:
    """Two servers; every request goes to the first, half of them for runs of the other's shards."""
    file = folder / "wait.yaml"
    file.write_text(WAIT, "utf-8")
    with (
        pg.database() as store,
        serving(store, folder, "--deploy", str(file)) as first,
        serving(store, folder, "--deploy", str(file)) as second,
    ):
        wait_until(
            lambda: {len(shards_of(pg, store, one.pid)) for one in (first, second)} == {32},
            "the servers share the shards",
        )
        own = shards_of(pg, store, first.pid)
        found = asyncio.run(_asked(first, own, sizes))
        expect("the shards that the first server has", shards_of(pg, store, first.pid), own)
    return found


async def _asked(server: Process, own: set[int], sizes: ClusterSizes) -> Figures:
    lines = Lines(*server.address)
    found: Figures = {}
    for clients, suffix in ((1, ""), (sizes.connections, "_many")):
        for place, ids in _ids(own, f"c{clients}-", sizes.requests).items():
            started = await _timed(
                lines, clients, [("/api/v1/runs", {"workflow": "wait", "id": id}) for id in ids]
            )
            signalled = await _timed(
                lines, clients, [(f"/api/v1/runs/{id}/signal", {"name": "go"}) for id in ids]
            )
            found |= {f"start_{place}{suffix}_{key}": value for key, value in started.items()}
            found |= {f"signal_{place}{suffix}_{key}": value for key, value in signalled.items()}
    lines.close()
    return found


def _ids(own: set[int], prefix: str, count: int) -> dict[str, list[str]]:
    """So many ids of runs that the server decides, and of runs that another does."""
    from treadle.kernel.model import shard_of

    found: dict[str, list[str]] = {"owner": [], "elsewhere": []}
    for number in itertools.count():
        id = f"{prefix}{number}"
        place = found["owner" if shard_of(id, 64) in own else "elsewhere"]
        if len(place) < count:
            place.append(id)
        if all(len(ids) == count for ids in found.values()):
            return found
    raise AssertionError


async def _timed(lines: Lines, clients: int, asked: list[tuple[str, Any]]) -> dict[str, float]:
    taken: list[float] = []
    left = iter(asked)

    async def client() -> None:
        for path, body in left:
            begun = time.perf_counter()
            await lines.ask("POST", path, body)
            taken.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return {**percentiles(taken), "per_s": len(taken) / (time.perf_counter() - begun)}


# --- many runs, many records ---


def waiting(pg: Postgres, sizes: ClusterSizes, store: str, folder: Path) -> Figures:
    """Every one of them is started; then a server is started anew among them, and asked."""
    file = folder / "wait.yaml"
    file.write_text(WAIT, "utf-8")
    command = [sys.executable, str(HERE), "fill", store, str(file)]
    command += [str(sizes.waiting), str(sizes.waiting_s), str(sizes.wakes)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, cwd=folder, timeout=sizes.patience_s, check=False, text=True
    )
    if done.returncode:
        raise SystemExit("the runs could not be started")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    pg.ask("VACUUM ANALYZE", database=store)
    size = pg.ask("SELECT pg_database_size(current_database())", database=store)[0][0]
    found["store_bytes_per_run"] = size / found["runs"]
    with serving(store, folder) as server:
        shared = wait_until(
            lambda: len(shards_of(pg, store, server.pid)) == 64, "the shards", sizes.patience_s
        )
        found |= {"ready_s": server.ready_s, "all_shards_s": server.ready_s + shared}
        found |= asyncio.run(_among(server, sizes, found["runs"]))
        found["server_memory_mb"] = server.memory_mb()
    return found


async def _among(server: Process, sizes: ClusterSizes, runs: int) -> Figures:
    """Signals to runs that nobody has in memory, spread over all of them."""
    lines = Lines(*server.address)
    asked = min(sizes.requests, runs - sizes.wakes)
    step = (runs - sizes.wakes) // asked
    paths = [f"/api/v1/runs/w{sizes.wakes + step * number}/signal" for number in range(asked)]
    found = await _timed(lines, 1, [(path, {"name": "go"}) for path in paths])
    lines.close()
    return {f"cold_signal_{key}": value for key, value in found.items()}


async def fill(store: str, file: str, count: int, seconds: float, wakes: int) -> Figures:
    """So many runs, or as many as there is time for."""
    from measures import rss_mb

    from treadle import Engine

    engine = Engine(store)
    engine.deploy(file)
    async with engine:
        await engine.start("wait", {}, id="warm")
        before_mb, begun = rss_mb(), time.perf_counter()
        until = begun + seconds
        started = await _pooled(count, lambda number: engine.start("wait", {}, id=f"w{number}"), until)
        started_s, full_mb = time.perf_counter() - begun, rss_mb()
        begun = time.perf_counter()
        await _pooled(wakes, lambda number: engine.signal(f"w{number}", "go", 7))
        woken_s = time.perf_counter() - begun
    return {
        "runs": started,
        "starts_per_s": started / started_s,
        "wakes_per_s": wakes / woken_s,
        "memory_before_mb": before_mb,
        "memory_mb": full_mb,
    }


async def _pooled(count: int, make: Callable[[int], Awaitable[Any]], until: float = float("inf")) -> int:
    """How many were made by then."""
    numbers, made = iter(range(count)), 0

    async def client() -> None:
        nonlocal made
        while time.perf_counter() < until and (number := next(numbers, None)) is not None:
            await make(number)
            made += 1

    await asyncio.gather(*(client() for _ in range(min(CHUNK, count))))
    return made


# So many ended runs are real.
REAL = 8


def records(pg: Postgres, sizes: ClusterSizes, store: str, folder: Path) -> Figures:
    """Ended runs of `copied_steps` steps: a few are real, the others copies of their rows under other numbers and ids,
    which nobody reads at a start. They stand beside whatever is in the store already."""
    file = folder / "chain.yaml"
    file.write_text(CHAIN, "utf-8")
    with serving(store, folder, "--deploy", str(file)) as server:
        asyncio.run(_chained(server, sizes))
    have, a_run = _counted(pg, store)
    copies = max(0, -(-(sizes.records - have) // max(1, a_run)))
    _copy(pg, store, copies)
    pg.ask("VACUUM ANALYZE", database=store)
    have, _ = _counted(pg, store)
    size = pg.ask("SELECT pg_database_size(current_database())", database=store)[0][0]
    with serving(store, folder) as again:
        shared = wait_until(
            lambda: len(shards_of(pg, store, again.pid)) == 64, "the shards", sizes.patience_s
        )
        lines_s = asyncio.run(_first(again, sizes))
        return {
            "records": have,
            "copied_runs": copies * REAL,
            "store_gb": size / 1e9,
            "ready_s": again.ready_s,
            "all_shards_s": again.ready_s + shared,
            "first_run_s": lines_s,
            "server_memory_mb": again.memory_mb(),
        }


async def _chained(server: Process, sizes: ClusterSizes) -> None:
    lines = Lines(*server.address)
    ids = [f"real-{number}" for number in range(REAL)]
    for id in ids:
        await lines.ask(
            "POST", "/api/v1/runs", {"workflow": "chain", "id": id, "input": {"steps": sizes.copied_steps}}
        )
    for id in ids:
        while (await lines.ask("POST", f"/api/v1/runs/{id}/wait"))["status"] != "completed":
            continue
    lines.close()


async def _first(server: Process, sizes: ClusterSizes) -> float:
    """A whole run of one step, as the first thing that this server does."""
    lines = Lines(*server.address)
    begun = time.perf_counter()
    body = {"workflow": "chain", "id": "first", "input": {"steps": 1}}
    await lines.ask("POST", "/api/v1/runs", body)
    expect("the run", (await lines.ask("POST", "/api/v1/runs/first/wait"))["status"], "completed")
    lines.close()
    return time.perf_counter() - begun


def _counted(pg: Postgres, store: str) -> tuple[int, int]:
    """All records, and those of all real runs that are copied."""
    all_ = pg.ask("SELECT count(*) FROM journal", database=store)[0][0]
    query = "SELECT count(*) FROM journal j JOIN runs r ON r.no = j.run WHERE r.id LIKE %s"
    return int(all_), int(pg.ask(query, "real-%", database=store)[0][0])


def _copy(pg: Postgres, store: str, copies: int) -> None:
    """Copy k of run r has the number base + k × REAL + (r's place)."""
    if not copies:
        return
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND table_schema = current_schema()"
    for table in ("runs", "journal"):
        names = [name for (name,) in pg.ask(query, table, database=store) if name != "tx"]
        number = "no" if table == "runs" else "run"
        spelled = {
            number: "p.base + copy.k * p.many + p.place",
            "id": "r.id || '.' || copy.k",
            "shard": "treadle_shard(r.id || '.' || copy.k, 64)",
        }
        chosen = ", ".join(spelled.get(name, f"{'r' if table == 'runs' else 'j'}.{name}") for name in names)
        source = "runs r JOIN copied p ON p.no = r.no"
        if table == "journal":
            source = "journal j JOIN copied p ON p.no = j.run JOIN runs r ON r.no = p.no"
        pg.ask(
            f"""WITH copied AS (SELECT no, (SELECT max(no) FROM runs WHERE id NOT LIKE 'real-%.%') AS base, {REAL} AS many,
                  row_number() OVER (ORDER BY no) AS place FROM runs WHERE id LIKE 'real-%' AND id NOT LIKE 'real-%.%')
                INSERT INTO {table} ({", ".join(names)})
                SELECT {chosen} FROM {source}, generate_series(0, {copies - 1}) AS copy(k)""",
            database=store,
        )


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "member":
        store, seconds, at_once, steps, count = rest
        found = asyncio.run(member(store, float(seconds), int(at_once), int(steps), int(count)))
    else:
        store, file, count, seconds, wakes = rest
        found = asyncio.run(fill(store, file, int(count), float(seconds), int(wakes)))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
