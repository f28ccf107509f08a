"""A simple interpreter of nets, written only to be compared with the machine.

It knows nothing of intents, records or slices: a list of tokens, a loop, recursion-free. Steps have
an outcome that depends on how often the step ran, so cycles end; the order in which tokens are
taken does not matter to what it reports: the multiset of step-runs and the final status.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RefArc:
    to: int
    when: str | None  # None: no guard at all; "any": a guard that is always true; "ok"; "error"


@dataclass
class RefStep:
    fails: bool = False
    inclusive: bool = False
    arcs: list[RefArc] = field(default_factory=list)
    # None: no loop; else how many of its items fail, out of how many.
    loop: tuple[int, int] | None = None
    best_effort: bool = False


@dataclass
class RefNet:
    steps: list[RefStep]
    life: int
    mode: str | None = None
    final: bool = False


def reference_run(net: RefNet) -> tuple[Counter[str], str]:
    """The multiset of step-runs and the final status. `life` is carried by tokens and falls."""
    runs: Counter[str] = Counter()
    tokens = [(0, net.life)]
    succeeded = failed_hard = failed_soft = 0
    while tokens:
        index, life = tokens.pop(0)
        step = net.steps[index]
        runs[f"s{index}"] += 1
        ok = _outcome(step)
        succeeded += ok
        matched = [arc for arc in step.arcs if arc.when in (None, "any") or (arc.when == "ok") == ok]
        if not step.inclusive:
            matched = matched[:1]
        # A token whose life has run out is discarded before it counts as a step-run.
        tokens += [(arc.to, life - 1) for arc in matched if life > 0]
        if not ok and not any(arc.when is not None for arc in matched):
            if net.mode == "best_effort":
                failed_soft += 1
            else:
                failed_hard += 1
    if net.final:
        runs["final"] += 1
    if failed_hard:
        return runs, "failed"
    if failed_soft:
        return runs, "partial" if succeeded else "failed"
    return runs, "completed"


def _outcome(step: RefStep) -> bool:
    if step.loop is None:
        return not step.fails
    bad, _ = step.loop
    return bad == 0 or step.best_effort


def as_playbook(net: RefNet) -> dict[str, Any]:
    """The same net as a playbook."""
    workflow: list[dict[str, Any]] = []
    for index, step in enumerate(net.steps):
        fail = "schema" if step.fails and step.loop is None else None
        policy: dict[str, Any] = {"admit": {"on_deny": "discard", "rules": [_HAS_LIFE]}}
        body: dict[str, Any] = {"step": f"s{index}", "tool": {"kind": "echo", "value": index, "fail": fail}}
        if step.loop is not None:
            bad, total = step.loop
            body["loop"] = {
                "in": list(range(total)),
                "iterator": "i",
                "spec": {"mode": "parallel", "max_in_flight": 2},
            }
            body["tool"]["fail"] = f"{{{{ 'schema' if i < {bad} else none }}}}"
            if step.best_effort:
                policy["failure"] = {"mode": "best_effort"}
        body["spec"] = {"policy": policy}
        mode = "inclusive" if step.inclusive else "exclusive"
        body["next"] = {"spec": {"mode": mode}, "arcs": [_arc(arc, net.life) for arc in step.arcs]}
        workflow.append(body)
    executor: dict[str, Any] = {"policy": {"failure": {"mode": net.mode}} if net.mode else {}}
    if net.final:
        executor["final_step"] = "final"
        workflow.append({"step": "final", "tool": {"kind": "echo", "value": "end"}})
    return {"metadata": {"name": "net"}, "executor": {"spec": executor}, "workflow": workflow}


_HAS_LIFE = {"when": "{{ (args.life | default(1)) >= 0 }}", "then": {"allow": True}}


def _arc(arc: RefArc, life: int) -> dict[str, Any]:
    left = f"(args.life | default({life}))"
    out: dict[str, Any] = {"step": f"s{arc.to}", "args": {"life": f"{{{{ {left} - 1 }}}}"}}
    if arc.when == "any":
        out["when"] = "{{ true }}"
    elif arc.when is not None:
        names = "['step.done', 'loop.done']" if arc.when == "ok" else "['step.failed']"
        out["when"] = f"{{{{ event.name in {names} }}}}"
    return out
