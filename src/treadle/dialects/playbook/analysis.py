"""`treadle check`: what is wrong with the net although every part of it is well formed.

Only what holds whatever the data are is an error (a cycle that no token can leave, tokens that
multiply without bound); what depends on guards, on input or on patches from outside is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.kernel.errors import DefinitionError
from treadle.kernel.values import Value
from treadle.lang.duration import parse_duration
from treadle.lang.text import Path

from .lifetimes import SCOPES
from .multiplying import tokens_multiply
from .needs import RESERVED
from .net import Net, always
from .reading import Reader
from .selection import is_pick
from .templates import expression, is_template
from .unguarded_arcs import arcs_on_failure

_ARC_NAMES = frozenset({"_prev", "_task", "_attempt", "outcome"})
_TASK_NAMES = frozenset({"event"})


def analyse(reader: Reader, body: dict[str, Value]) -> None:
    net = Net(body)
    _unreachable(reader, net)
    _arcs(reader, net)
    arcs_on_failure(reader, net)
    tokens_multiply(reader, net)
    _cycles(reader, net)
    _gates(reader, net)
    _policies(reader, net)
    _parallel_writes(reader, net)
    _names(reader, net)
    _stores(reader, body, ())
    _fan_out(reader, net)


def _fan_out(reader: Reader, net: Net) -> None:
    for name, step in net.steps.items():
        own = (step.get("spec") or {}).get("loop_mode")
        if "loop" in step and (own or net.executor.get("loop_mode")) == "fanout":
            reader.warning(
                "loop_fanout",
                net.path(name, "spec", "loop_mode") if own else ("executor", "spec", "loop_mode"),
                f"the loop of {name!r} runs as its loop.spec says; there are no shards and no fanin in guards",
                hint="mode: parallel spreads iterations over workers; guards read event.total, .success, .failed",
            )


def _stores(reader: Reader, value: Value, path: Path) -> None:
    """`spec.result.store` at any layer: a scope that is known, a TTL that is a duration."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _stores(reader, item, (*path, index))
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        _stores(reader, item, (*path, key))
    if len(path) < 2 or path[-2:] != ("spec", "result"):
        return
    _selects(reader, value.get("select"), (*path, "select"))
    store = value.get("store")
    if not isinstance(store, dict):
        return
    if "scope" in store:
        reader.choice(store["scope"], SCOPES, "scope_invalid", (*path, "store", "scope"), "a result's scope")
    if store.get("ttl") is not None:
        try:
            parse_duration(store["ttl"])
        except DefinitionError as error:
            reader.error("ttl_invalid", (*path, "store", "ttl"), error.message, hint="ttl: 1h, 7d, 3600")


def _selects(reader: Reader, given: Value, path: Path) -> None:
    for index, item in enumerate(given if isinstance(given, list) else [given] if given else ()):
        if not is_pick(item):
            reader.error(
                "select_invalid",
                (*path, index) if isinstance(given, list) else path,
                f"select picks fields of the result by name or path; {item!r:.80} is neither",
                hint='select: [count, paging.next, {path: "$.rows[0].id", as: first}]',
                rule="PLAYBOOK §6.47",
            )


def _unreachable(reader: Reader, net: Net) -> None:
    reached = net.reached()
    for name in net.steps:
        if name not in reached:
            reader.warning(
                "step_unreachable",
                net.path(name),
                f"no arc leads to the step {name!r}, so it never runs",
                hint=f"add an arc to it, or make it executor.spec.entry_step (now {net.entry!r})",
                rule="000 §2.3",
            )


def _arcs(reader: Reader, net: Net) -> None:
    for name in net.steps:
        if net.inclusive(name):
            continue
        behind = False
        for index, arc in enumerate(net.arcs(name)):
            if behind:
                reader.warning(
                    "arc_dead",
                    net.path(name, "next", "arcs", index),
                    f"the arc to {arc['step']!r} stands behind an unconditional one and never matches",
                    hint="put it before the unconditional arc, or set next.spec.mode: inclusive",
                    rule="000 §4.3",
                )
            behind = behind or always(arc)
    final = net.executor.get("final_step")
    if final and net.arcs(final):
        reader.warning(
            "final_step_next",
            net.path(final, "next"),
            "the next of final_step is not followed",
            rule="PLAYBOOK §5.23",
        )


def _cycles(reader: Reader, net: Net) -> None:
    for component in net.components():
        inside = frozenset(component)
        first = min(component, key=net.index.__getitem__)
        loop = " → ".join([*sorted(component, key=net.index.__getitem__), first])
        if all(_stays(net, name, inside) for name in component):
            reader.error(
                "cycle_without_exit",
                net.path(first, "next"),
                f"no token ever leaves the cycle {loop}: every arc in it is unconditional",
                hint="guard an arc with when, or add a guarded arc that leads out before it",
                rule="000 §6.1",
            )
        for name in sorted(component, key=net.index.__getitem__):
            _growth(reader, net, name, inside)


def _stays(net: Net, name: str, inside: frozenset[str]) -> bool:
    """Whether a token of this step goes on inside the cycle, whatever the data are."""
    if _holds_back(net, name, "rules", "once"):
        return False
    if net.inclusive(name):
        return any(always(arc) and arc["step"] in inside for arc in net.arcs(name))
    for arc in net.arcs(name):
        if arc["step"] not in inside:
            return False
        if always(arc):
            return True
    return False


def _holds_back(net: Net, name: str, *ways: str) -> bool:
    """Whether admission may keep tokens of this step from going on, in one of these ways."""
    admit = ((net.steps[name].get("spec") or {}).get("policy") or {}).get("admit") or {}
    return any(admit.get(way) for way in ways)


def _returns(net: Net, start: str, name: str, inside: frozenset[str]) -> bool:
    """Whether a token may come from `start` back to a step of its cycle as one of its own: a join or a
    latch on the way makes one token of several."""
    seen: dict[str, None] = {}
    ahead = [start]
    while ahead:
        step = ahead.pop()
        if step in seen or step not in inside or _holds_back(net, step, "join", "once"):
            continue
        if step == name:
            return True
        seen[step] = None
        ahead += [arc["step"] for arc in net.arcs(step)]
    return False


def _growth(reader: Reader, net: Net, name: str, inside: frozenset[str]) -> None:
    if not net.inclusive(name):
        return
    back = [arc for arc in net.arcs(name) if _returns(net, arc["step"], name, inside)]
    if len(back) < 2:
        return
    gated = any(step in inside and _holds_back(net, step, "rules") for step in net.steps)
    certain = sum(1 for arc in back if always(arc)) >= 2 and not gated
    report = reader.error if certain else reader.warning
    report(
        "tokens_unbounded",
        net.path(name, "next"),
        f"each round of the cycle makes {len(back)} tokens of one at {name!r}",
        hint="join them (spec.policy.admit.join), or keep one arc of the cycle inclusive only",
        rule="000 §4.3",
    )


def _gates(reader: Reader, net: Net) -> None:
    written = frozenset(_ctx_writes(net.body))
    for name, step in net.steps.items():
        admit = ((step.get("spec") or {}).get("policy") or {}).get("admit") or {}
        rules = admit.get("rules")
        if rules is None:
            continue
        path = net.path(name, "spec", "policy", "admit", "rules")
        opening = [
            rule
            for rule in rules
            if (rule["else"]["then"] if "else" in rule else rule["then"]).get("allow") is True
        ]
        if not opening or all(rule.get("when") is False for rule in opening):
            reader.warning(
                "gate_closed",
                path,
                f"no rule ever admits the step {name!r}",
                hint="add a rule with allow: true",
                rule="000 §3.2",
            )
            continue
        if all(is_template(rule.get("when")) for rule in opening):
            uses = [use for rule in opening for use in expression(rule["when"]).uses]
            if uses and all(root == "ctx" and key is not None and key not in written for root, key in uses):
                reader.warning(
                    "gate_unopened",
                    path,
                    f"the gate of {name!r} reads ctx keys that no task writes",
                    hint=f"only a patch from outside opens it: treadle patch ID {uses[0][1]}=…",
                    rule="000 §3.2",
                )
        if "else" not in rules[-1]:
            reader.warning(
                "else_missing",
                path,
                "admission rules without else deny what no rule matches",
                hint="end them with - else: {then: {allow: …}}",
            )


def _policies(reader: Reader, net: Net) -> None:
    for name, step in net.steps.items():
        for index, task in enumerate(step.get("tool") or ()):
            rules = ((task.get("spec") or {}).get("policy") or {}).get("rules")
            if rules and "else" not in rules[-1]:
                reader.warning(
                    "else_missing",
                    net.path(name, "tool", index, "spec", "policy", "rules"),
                    f"the policy of {task['name']!r} has no else: an outcome that no rule matches continues, errors too",
                    hint="end the rules with - else: {then: {do: …}}",
                    rule="PLAYBOOK §3.6",
                )


def _parallel_writes(reader: Reader, net: Net) -> None:
    for name, step in net.steps.items():
        spec = (step.get("loop") or {}).get("spec") or {}
        policy = spec.get("policy") or {}
        parallel = (spec.get("mode") or policy.get("mode")) == "parallel"
        if parallel and policy.get("ctx", "reject") == "reject":
            for index, task in enumerate(step.get("tool") or ()):
                for key in dict.fromkeys(_ctx_writes(task)):
                    reader.warning(
                        "parallel_ctx_write",
                        net.path(name, "tool", index),
                        f"parallel iterations write ctx.{key}; different values fail an iteration (ctx_conflict)",
                        hint="use set_iter, or loop.spec.policy.ctx: last_write | append",
                        rule="004 §6.2",
                    )
        if net.inclusive(name):
            _sibling_writes(reader, net, name)


def _sibling_writes(reader: Reader, net: Net, name: str) -> None:
    writers: dict[str, str] = {}
    for target in dict.fromkeys(arc["step"] for arc in net.arcs(name)):
        for key in dict.fromkeys(_ctx_writes(net.steps[target])):
            if key in writers:
                reader.warning(
                    "parallel_ctx_write",
                    net.path(target),
                    f"{writers[key]!r} and {target!r} run side by side and both write ctx.{key}; the last commit wins",
                    hint="write to two keys, or put one step after the other",
                    rule="004 §6.2",
                )
            else:
                writers[key] = target


def _ctx_writes(value: Value) -> Iterator[str]:
    return _writes(value, "set_ctx")


def _writes(value: Value, setter: str) -> Iterator[str]:
    """The keys that every `set_ctx` or `set_iter` in a value writes to."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key == setter and isinstance(item, dict):
                yield from (str(path).partition(".")[0] for path in item)
            else:
                yield from _writes(item, setter)
    elif isinstance(value, list):
        for item in value:
            yield from _writes(item, setter)


# What every step-run may read by its bare name besides: the arguments of final_step and of a join.
_GIVEN_NAMES = frozenset({"status", "steps", "branches", "results", "failures", "tokens"})


def _names(reader: Reader, net: Net) -> None:
    workload = net.body["workload"]
    shared = {*net.steps, *workload, *_ctx_writes(net.body), *_GIVEN_NAMES}
    for step in net.steps.values():
        for arc in (step.get("next") or {}).get("arcs") or ():
            shared.update(arc.get("args") or {})
        shared.update(step.get("args") or {})
    for name, step in net.steps.items():
        tasks = step.get("tool") or []
        own = {*_writes(step, "set_iter")}
        for looped in (step, *tasks):
            if "loop" in looped:
                own.add(looped["loop"]["iterator"])
        for key in ("spec", "loop", "args", "set_ctx", "next"):
            for path, text in _texts(step.get(key), net.path(name, key)):
                _check_names(reader, text, path, (shared, own), forbidden=_ARC_NAMES)
        known = (shared, own | {task["name"] for task in tasks})
        for index, task in enumerate(tasks):
            for path, text in _texts(task, net.path(name, "tool", index)):
                if task["kind"] == "python" and path[-1] in ("code", "code_b64"):
                    continue
                _check_names(reader, text, path, known, forbidden=_TASK_NAMES)
                _check_workload(reader, text, path, workload)
                if task["kind"] == "shell":
                    _check_command(reader, text, path)


def _check_command(reader: Reader, text: str, path: Path) -> None:
    """Whoever may list the processes of the machine reads their command lines."""
    if "env" not in path and any(root == "keychain" for root, _ in expression(text).uses):
        reader.warning(
            "keychain_in_command",
            path,
            "a value of the keychain stands in the command line, which every user of the machine can read",
            hint='pass it by the environment: env: {TOKEN: "{{ keychain.x.token }}"}, and "$TOKEN" in the command',
        )


def _check_names(
    reader: Reader, text: str, path: Path, known: tuple[set[str], set[str]], *, forbidden: frozenset[str]
) -> None:
    for root, _ in dict.fromkeys(expression(text).uses):
        if root in forbidden:
            reader.warning(
                "name_out_of_scope",
                path,
                f"{root!r} has no value here",
                hint="event is for arcs and admission; outcome, _prev, _task and _attempt are for tasks",
                rule="004 §4",
            )
        elif root not in RESERVED and not any(root in names for names in known):
            reader.warning(
                "name_unknown",
                path,
                f"{root!r} is no workload key, step, task, argument or ctx key of this playbook",
                hint="it is undefined, and fails its step as an argument, unless the run's input or a patch brings it",
            )


def _check_workload(reader: Reader, text: str, path: Path, workload: dict[str, Value]) -> None:
    for root, key in dict.fromkeys(expression(text).uses):
        if (
            root == "workload"
            and key is not None
            and workload
            and key not in workload
            and not hasattr(dict, key)
        ):
            reader.warning(
                "workload_key_unknown",
                path,
                f"workload has no default for {key!r}",
                hint="add one, or give it with every run",
            )


def _texts(value: Value, path: Path) -> Iterator[tuple[Path, str]]:
    if is_template(value):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))
