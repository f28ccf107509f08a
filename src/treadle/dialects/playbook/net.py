"""A canonical playbook as a net: which steps there are, which arcs lead from one to another."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.kernel.values import Value
from treadle.lang.text import Path


class Net:
    def __init__(self, body: dict[str, Value]) -> None:
        self.body = body
        self.steps: dict[str, dict[str, Value]] = {step["step"]: step for step in body["workflow"]}
        self.index = {name: position for position, name in enumerate(self.steps)}
        self.executor = (body.get("executor") or {}).get("spec") or {}
        self.entry = self.executor.get("entry_step") or next(iter(self.steps))
        self.roots = [
            self.entry,
            *(self.executor[k] for k in ("final_step", "on_failure", "on_cancel") if self.executor.get(k)),
        ]

    def arcs(self, name: str) -> list[dict[str, Value]]:
        return (self.steps[name].get("next") or {}).get("arcs") or []

    def inclusive(self, name: str) -> bool:
        return ((self.steps[name].get("next") or {}).get("spec") or {}).get("mode") == "inclusive"

    def path(self, name: str, *more: str | int) -> Path:
        return ("workflow", self.index[name], *more)

    def reached(self) -> dict[str, None]:
        seen = dict.fromkeys(self.roots)
        queue = list(seen)
        while queue:
            for arc in self.arcs(queue.pop(0)):
                if arc["step"] not in seen:
                    seen[arc["step"]] = None
                    queue.append(arc["step"])
        return seen

    def components(self) -> list[list[str]]:
        """Strongly connected components with a cycle in them (Tarjan, without recursion)."""
        order: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: dict[str, None] = {}
        found: list[list[str]] = []
        for root in self.steps:
            if root in order:
                continue
            work: list[tuple[str, Iterator[str]]] = []
            self._visit(root, order, low, stack, work)
            while work:
                node, targets = work[-1]
                target = next(targets, None)
                if target is not None:
                    if target not in order:
                        self._visit(target, order, low, stack, work)
                    elif target in stack:
                        low[node] = min(low[node], order[target])
                    continue
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component = [stack.popitem()[0]]
                    while component[-1] != node:
                        component.append(stack.popitem()[0])
                    if len(component) > 1 or any(arc["step"] == node for arc in self.arcs(node)):
                        found.append(component)
        return found

    def _visit(
        self,
        node: str,
        order: dict[str, int],
        low: dict[str, int],
        stack: dict[str, None],
        work: list[tuple[str, Iterator[str]]],
    ) -> None:
        order[node] = low[node] = len(order)
        stack[node] = None
        work.append((node, iter([arc["step"] for arc in self.arcs(node)])))


def always(arc: dict[str, Value]) -> bool:
    """Whether an arc matches whatever the data are."""
    return arc.get("when", True) is True
