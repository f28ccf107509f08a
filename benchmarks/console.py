"""How the console feels with 100,000 runs and 1,000,000 events in the store.

    nice -n 10 .venv/bin/python benchmarks/console.py [--runs 100000] [--store FILE] [--json FILE]

Fills a SQLite store through the engine (playbooks and processes that complete, fail and wait, and one run with 1,000 steps
and more than 10,000 events), serves it, and measures what a person waits for: questions over HTTP, and pages in Chromium.
A store that is there already is used again. Needs the console (`make web`) and Chromium (`make browser`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

from treadle import Engine

AT_ONCE = 400
STEPS = 1000
ORDER = """
metadata: {name: order, version: "1"}
workload: {n: 1}
workflow:
  - step: price
    tool: {kind: noop, result: 1}
    next: {arcs: [{step: charge}]}
  - step: charge
    tool: {kind: noop, result: 2}
"""
FILED = """
dialect: process
name: filed
version: "1"
steps:
  - set: {state.a: 1}
  - if: {$: "start.n % 20 == 7"}
    then: [{fail: the folder is full}]
  - complete: {ok: true}
"""
ASKED = """
dialect: process
name: asked
version: "1"
tasks: {review: {roles: [boss]}}
steps:
  - task: review
"""


def long_playbook() -> str:
    """A chain with a short cut at every tenth step: a graph that is no mere line."""
    lines = ['metadata: {name: long, version: "1"}', "workflow:"]
    for n in range(STEPS):
        tasks = ", ".join(f"{{name: t{k}, kind: noop}}" for k in range(3))
        lines += [f"  - step: s{n}", f"    tool: [{tasks}]"]
        arcs = [f"{{step: s{n + 1}}}"] if n + 1 < STEPS else []
        if n % 10 == 0 and n + 5 < STEPS:
            arcs.append(f'{{step: s{n + 5}, when: "{{{{ false }}}}"}}')
        if arcs:
            lines.append(f"    next: {{arcs: [{', '.join(arcs)}]}}")
    return "\n".join(lines) + "\n"


async def fill(store: Path, runs: int) -> None:
    async with Engine(f"sqlite:///{store}") as engine:
        for name, text in {"order": ORDER, "filed": FILED, "asked": ASKED, "long": long_playbook()}.items():
            file = store.with_name(f"{name}.yaml")
            file.write_text(text, "utf-8")
            engine.deploy(str(file))
        room = asyncio.Semaphore(AT_ONCE)

        async def one(n: int) -> None:
            # Six in ten are playbooks with 16 events; one in a hundred waits for somebody, one in twenty fails.
            workflow = "asked" if n % 100 == 99 else "order" if n % 10 < 6 else "filed"
            async with room:
                run = await engine.start(
                    workflow, {"n": n}, id=f"{workflow}-{n:06}", reference=f"C-{n % 997}"
                )
                if workflow != "asked":
                    async for _ in run.events():
                        continue

        for first in range(0, runs, 10_000):
            await asyncio.gather(*(one(n) for n in range(first, min(first + 10_000, runs))))
            print(f"{min(first + 10_000, runs):,} runs", file=sys.stderr, flush=True)
        await (await engine.start("long", id="the-long-one")).result(timeout=900)


@contextmanager
def serving(store: Path) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "treadle.cli",
        "serve",
        "--json",
        "--port",
        "0",
        "--store",
        f"sqlite:///{store}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.terminate()


def timed(act: Callable[[], Any], times: int = 9) -> dict[str, float]:
    """Milliseconds: the median and the longest."""
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        act()
        took.append((time.perf_counter() - begun) * 1000)
    return {"median_ms": round(statistics.median(took), 1), "longest_ms": round(max(took), 1)}


def questions(url: str) -> dict[str, dict[str, float]]:
    """What the console asks, as it asks it."""
    with httpx.Client(base_url=f"{url}/api/v1", timeout=120) as http:

        def get(path: str, **query: Any) -> Any:
            answer = http.get(path, params=query)
            answer.raise_for_status()
            return answer.json()

        deep = None
        for _ in range(20):
            deep = get("/runs", limit=200, **({"cursor": deep} if deep else {}))["next"]
        asked = {
            "200 runs, newest first": lambda: get("/runs", limit=200),
            "200 runs after 4,000": lambda: get("/runs", limit=200, cursor=deep),
            "200 that failed": lambda: get("/runs", limit=200, status="failed"),
            "200 of one workflow that wait": lambda: get(
                "/runs", limit=200, status="waiting", workflow="asked"
            ),
            "a reference": lambda: get("/runs", limit=200, reference="C-7"),
            "a search that finds one": lambda: get("/runs", limit=200, search="order-000001"),
            "a search that finds none": lambda: get("/runs", limit=200, search="nobody"),
            "of the last hour": lambda: get("/runs", limit=200, since="1h"),
            "counts by status": lambda: get("/stats"),
            "counts over a day": lambda: get("/stats/history", since="24h"),
            "what the newest have in common": lambda: get("/stats/insights", since="24h"),
            "one run": lambda: get("/runs/order-000001"),
            "the run with 1,000 steps": lambda: get("/runs/the-long-one"),
            "its picture": lambda: get("/runs/the-long-one/graph"),
            "its timeline": lambda: get("/runs/the-long-one/steps"),
        }
        return {name: timed(act) for name, act in asked.items()}


FRAMES = """async ([selector, by, times]) => {
  const box = document.querySelector(selector);
  const gaps = [];
  let last = performance.now();
  for (let n = 0; n < times; n += 1) {
    box.scrollTop += by;
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    gaps.push(now - last);
    last = now;
  }
  gaps.sort((a, b) => a - b);
  return {median_ms: gaps[gaps.length >> 1], p95_ms: gaps[Math.floor(gaps.length * 0.95)], longest_ms: gaps[gaps.length - 1]};
}"""


# The picture is pulled as a hand pulls it, and one looks at how long each frame takes.
FRAMES_OF_A_MOVE = """async (times) => {
  const pane = document.querySelector('.react-flow__pane');
  const box = pane.getBoundingClientRect();
  const at = (type, x, y, target) => target.dispatchEvent(new MouseEvent(type, {bubbles: true, cancelable: true, view: window, button: 0, buttons: 1, clientX: x, clientY: y}));
  const x = box.left + box.width / 2;
  const y = box.top + box.height - 30;
  at('mousedown', x, y, pane);
  const gaps = [];
  let last = performance.now();
  for (let n = 0; n < times; n += 1) {
    at('mousemove', x, y - n * 20, window);
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    gaps.push(now - last);
    last = now;
  }
  at('mouseup', x, y, window);
  gaps.sort((a, b) => a - b);
  return {median_ms: gaps[gaps.length >> 1], p95_ms: gaps[Math.floor(gaps.length * 0.95)], longest_ms: gaps[gaps.length - 1]};
}"""


def unfolded(page: Page) -> None:
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("button", name="start, done", exact=True).wait_for(timeout=120_000)


def shown(page: Page, url: str, selector: str, times: int = 5) -> dict[str, float]:
    """From the address to what one came for, each time in a page without anything kept but the files."""

    def once() -> None:
        page.goto(url)
        page.locator(selector).first.wait_for(timeout=120_000)

    once()
    return timed(once, times)


def pages(url: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1360, "height": 860})
        found["runs: the first rows"] = shown(page, f"{url}/runs", ".table [role=rowgroup] a")
        found["runs: a frame while scrolling through 6,000"] = page.evaluate(FRAMES, [".table", 600, 320])
        found["overview: all of it"] = shown(page, f"{url}/", "[aria-label='Slowest steps']")
        found["a run: its title"] = shown(page, f"{url}/runs/order-000001", "h1")
        found["the long run: its title"] = shown(page, f"{url}/runs/the-long-one", "h1")
        found["the long run: its picture"] = shown(page, f"{url}/runs/the-long-one", ".react-flow__node", 3)
        found["the long run: all of its 1,000 nodes, after a click"] = timed(lambda: unfolded(page), 1)
        found["the long run: a frame while moving its picture"] = page.evaluate(FRAMES_OF_A_MOVE, 300)
        page.wait_for_function("document.querySelector('.events')?.scrollHeight > 200000", timeout=120_000)
        found["the long run: a frame while scrolling its events"] = page.evaluate(
            FRAMES, [".events", 600, 200]
        )
        browser.close()
    return {name: {key: round(value, 1) for key, value in row.items()} for name, row in found.items()}


def size(store: Path, url: str) -> dict[str, Any]:
    counts = httpx.get(f"{url}/api/v1/stats").json()["runs"]
    import sqlite3

    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as rows:
        events = rows.execute(
            "SELECT sum(last) FROM (SELECT max(event_no) AS last FROM journal GROUP BY run)"
        ).fetchone()[0]
    return {"runs": counts, "events": events, "megabytes": round(store.stat().st_size / 1e6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--store", type=Path, default=Path("benchmarks/.cache/console.db"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    store = given.store.resolve()
    store.parent.mkdir(parents=True, exist_ok=True)
    if not store.exists():
        asyncio.run(fill(store, given.runs))
    with serving(store) as url:
        report = {"store": size(store, url), "questions": questions(url), "pages": pages(url)}
    print(json.dumps(report, indent=2))
    if given.json:
        given.json.write_text(json.dumps(report, indent=2), "utf-8")


if __name__ == "__main__":
    main()
