"""Treadle, playbooks: steps that call a registered tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from peers import work
from peers.treadle_base import TreadlePeer
from treadle import Engine


def again(field: str, most: str, tool: dict[str, Any]) -> dict[str, Any]:
    """A step that routes to itself until its number has come to the input's."""
    arc = {"step": "s", "when": f"{{{{ {field} < workload.{most} }}}}", "args": {"n": f"{{{{ {field} }}}}"}}
    return {"step": "s", "tool": tool, "next": {"arcs": [arc]}}


def each(items: str, tool: dict[str, Any]) -> dict[str, Any]:
    spec = {"mode": "parallel", "max_in_flight": 1_000, "policy": {"reduce": "sum"}}
    return {
        "step": "each",
        "loop": {"in": f"{{{{ range(workload.{items}) }}}}", "iterator": "n", "spec": spec},
        "tool": tool,
    }


BOOKS: dict[str, dict[str, Any]] = {
    "chain": {
        "workload": {"steps": 1},
        "workflow": [again("event.result", "steps", {"kind": "count", "n": "{{ args.n | default(0) }}"})],
    },
    "fan": {"workload": {"width": 1}, "workflow": [each("width", {"kind": "count", "n": 0})]},
    "leaf": {"workload": {}, "workflow": [{"step": "s", "tool": {"kind": "count", "n": 0}}]},
    "children": {"workload": {"count": 1}, "workflow": [each("count", {"kind": "playbook", "path": "leaf"})]},
    "wait": {"workload": {}, "workflow": [{"step": "s", "tool": {"kind": "await", "signal": "go"}}]},
    "slow": {
        "workload": {"run": "", "steps": 1},
        "workflow": [
            {
                "step": "each",
                "loop": {
                    "in": "{{ range(workload.steps + 1) }}",
                    "iterator": "n",
                    "spec": {"mode": "sequential"},
                },
                "tool": {"kind": "slow", "run": "{{ workload.run }}", "step": "{{ iter.n }}"},
            }
        ],
    },
}
SERVED = """\
metadata: {name: served}
workflow:
  - step: s
    tool: {kind: python, code: "result = 1"}
"""


class Peer(TreadlePeer):
    names = {name: name for name in BOOKS}  # noqa: RUF012
    served_file = ("served.yaml", SERVED)

    def prepare(self, engine: Engine, folder: Path, program: str) -> None:
        @engine.tool("count", idempotent=True, pure=program == "pure")
        def count(n: int = 0) -> int:
            return work.count(n)

        @engine.tool("slow", idempotent=True)
        async def slow(run: str, step: int) -> str:
            return await work.slow(run, step)

        needed = {"children": ("leaf", "children"), "pure": ("chain",)}
        for name in needed.get(program, (program,)):
            path = folder / f"{name}.json"
            path.write_text(json.dumps({"metadata": {"name": name}, **BOOKS[name]}))
            engine.deploy(str(path))

    async def fan(self, width: int) -> Any:
        return (await super().fan(width))["reduced"]

    async def children(self, count: int) -> Any:
        return (await super().children(count))["reduced"]

    async def slow_result(self, run: str, steps: int) -> Any:
        return (await super().slow_result(run, steps))["results"]
