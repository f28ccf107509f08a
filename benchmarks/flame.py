"""Where the time of a step goes: a flame graph of W1x100, by looking at all threads' stacks again and again.

    python benchmarks/flame.py treadle_process [OUT.svg [SECONDS]]      default: docs/benchmarks/flame-<subject>.svg

At each look a stack is given the CPU time that its thread has had since the last one, so threads that wait take no room. A width
is a share of the CPU time; hover for the name. The looking itself costs time, so take shares from it, not rates. Linux only.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers import driver
from workloads import Sizes

import treadle

EVERY_S = 0.002
SWITCH_S = 0.0005
"""A looker that has to wait for the interpreter lock gets it where it is given up, that is at commits, and would see the store
everywhere. Python's own 5 ms are longer than a batch; so it may take the lock sooner. Much sooner, and the waiting itself costs."""
WIDTH, ROW = 1200, 17


@dataclass
class Node:
    name: str
    cpu_ns: int = 0
    below: dict[str, Node] = field(default_factory=dict)

    def add(self, stack: list[str], cpu_ns: int) -> None:
        node = self
        node.cpu_ns += cpu_ns
        for name in stack:
            node = node.below.setdefault(name, Node(name))
            node.cpu_ns += cpu_ns


def stack_of(frame: FrameType | None) -> list[str]:
    names = []
    while frame is not None:
        code = frame.f_code
        path = Path(code.co_filename)
        names.append(f"{path.parent.name}/{path.stem}:{code.co_qualname}")
        frame = frame.f_back
    return names[::-1]


def looked(root: Node, done: threading.Event) -> None:
    """Looks at every other thread until it is told to stop."""
    spent: dict[int, int] = {}
    while not done.is_set():
        frames = sys._current_frames()
        for thread in threading.enumerate():
            if thread is threading.current_thread() or thread.ident not in frames:
                continue
            now_ns = cpu_ns(thread.native_id)
            since = now_ns - spent.get(thread.native_id or 0, now_ns)
            spent[thread.native_id or 0] = now_ns
            if since > 0:
                root.add(stack_of(frames[thread.ident]), since)
        time.sleep(EVERY_S)


def rooms_of(root: Node) -> dict[str, float]:
    """Shares of the CPU time by the folder of the code that ran; the least ones together."""
    found: dict[str, float] = {}
    house = Path(treadle.__file__).parent
    ours = {house.name, *(path.name for path in house.rglob("*") if path.is_dir())}

    def walk(node: Node) -> None:
        own = node.cpu_ns - sum(child.cpu_ns for child in node.below.values())
        folder = node.name.split("/")[0]
        room = folder if folder in ours else "Python and its library"
        found[room] = found.get(room, 0.0) + own / root.cpu_ns
        for child in node.below.values():
            walk(child)

    walk(root)
    large = {room: share for room, share in found.items() if share >= 0.02}
    return {**large, "others": 1.0 - sum(large.values())}


def cpu_ns(thread: int | None) -> int:
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    except OSError:  # it has ended meanwhile
        return 0


def drawn(root: Node, title: str) -> str:
    """Boxes below each other; what is narrower than half a point is left out."""
    boxes: list[str] = []
    deepest = 0

    def draw(node: Node, x: float, depth: int) -> None:
        nonlocal deepest
        wide = WIDTH * node.cpu_ns / root.cpu_ns
        if wide < 0.5:
            return
        deepest = max(deepest, depth)
        hue = 20 + sum(node.name.split(":")[0].encode()) % 40
        text = node.name.rsplit(":", 1)[-1][: int(wide / 6.5)] if wide > 20 else ""
        y = 30 + depth * ROW
        boxes.append(
            f'<g><title>{escape(node.name)} {node.cpu_ns / root.cpu_ns:.1%}</title><rect x="{x:.1f}" y="{y}" width="{wide:.1f}" '
            f'height="{ROW - 1}" fill="hsl({hue} 85% 68%)"/><text x="{x + 3:.1f}" y="{y + 12}">{escape(text)}</text></g>'
        )
        for child in sorted(node.below.values(), key=lambda each: each.name):
            draw(child, x, depth + 1)
            x += WIDTH * child.cpu_ns / root.cpu_ns

    draw(root, 0.0, 0)
    height = 30 + (deepest + 1) * ROW + 6
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="monospace" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="6" y="19" font-size="13">{escape(title)}</text>'
    )
    return "\n".join([head, *boxes, "</svg>", ""])


def main() -> None:
    subject = sys.argv[1]
    here = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else here / f"flame-{subject.removeprefix('treadle_')}.svg"
    root, done = Node("all"), threading.Event()
    sys.setswitchinterval(SWITCH_S)
    looking = threading.Thread(target=looked, args=(root, done))
    peer = driver.peer_named(subject)
    with tempfile.TemporaryDirectory() as folder:
        looking.start()
        try:
            sizes = Sizes(seconds=float(sys.argv[3]) if len(sys.argv) > 3 else 5.0)
            found = asyncio.run(driver.w1x100(peer, sizes, Path(folder)))
        finally:
            done.set()
            looking.join()
    out.parent.mkdir(parents=True, exist_ok=True)
    title = f"{subject}, 100 runs of 10 steps at once: {root.cpu_ns / 1e9:.1f} s of CPU"
    out.write_text(drawn(root, title), "utf-8")
    print(f"{out}: {found['steps_per_s']:,.0f} steps/s while looked at", file=sys.stderr)
    print(json.dumps(rooms_of(root)))


if __name__ == "__main__":
    main()
