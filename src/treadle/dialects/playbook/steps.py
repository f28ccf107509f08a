"""Steps: admission, lifecycle, loop, router (seed 000 §3-§5, seed 004 §5.2-§5.5 and §8)."""

from __future__ import annotations

from typing import Final

from treadle.kernel.values import Value
from treadle.lang.text import Path

from .pools import check_one_pool, check_pool
from .reading import CONDITIONS, LEGACY, Reader, kind_of, reject_conditions, reject_legacy
from .spelling import canonical_event_names, output_as_result, rename, split_set
from .tasks import read_rules, read_tool
from .templates import is_template

_NOTES: Final = ("desc", "description", "label", "title", "tags", "doc", "comment", "metadata")
_STEP_KEYS: Final = ("step", "spec", "loop", "tool", "next", "args", "set_ctx", *_NOTES)
_POLICY_KEYS: Final = (
    "admit",
    "lifecycle",
    "failure",
    "emit",
    "tracing",
    "quotas",
    "compensation",
    "results",
    "limits",
    "defaults",
)
_LOOP_POLICY_KEYS: Final = ("exec", "mode", "max_in_flight", "ctx", "reduce")
_ADMIT_KEYS: Final = ("mode", "rules", "on_deny", "join", "once")
_ARC_KEYS: Final = ("step", "when", "args", "spec", "set_ctx", *_NOTES)
FAILURE_MODES: Final = ("fail_fast", "best_effort")
# More cannot be counted in nanoseconds.
_SECONDS_MAX: Final = 10**15
_CONTROL: Final = ("do", "retry", "jump", "break", "continue", "fail")


def read_step(reader: Reader, value: Value, path: Path, steps: frozenset[str]) -> dict[str, Value] | None:
    if not isinstance(value, dict):
        reader.error(
            "step_invalid", path, f"a step must be a mapping, not {kind_of(value)}", hint="- step: <name>"
        )
        return None
    name = value.get("step")
    if not isinstance(name, str) or not name:
        reader.error("step_name_missing", path, "a step needs step: <name>", rule="000 §2")
        return None
    reject_legacy(reader, value, path, f"the step {name!r}")
    reject_conditions(
        reader, value, path, f"the step {name!r}", "guard the arc that leads here, or spec.policy.admit.rules"
    )
    if "when" in value:
        reader.error(
            "step_when",
            (*path, "when"),
            "a step has no when",
            hint="write spec.policy.admit.rules: [{when: …, then: {allow: true}}, {else: {then: {allow: false}}}]",
            rule="004 §13",
        )
    if "vars" in value:
        reader.error(
            "step_vars",
            (*path, "vars"),
            "a step has no vars",
            hint="use set_ctx in a task's policy",
            rule="004 §2",
        )
    step = rename(reader, value, path, "input", "args")
    step = split_set(reader, step, path, scopes=("ctx",))
    step = output_as_result(reader, step, path)
    for key in step:
        if key not in (*_STEP_KEYS, *CONDITIONS, *LEGACY, "when", "vars") and not key.startswith("x-"):
            reader.unknown_key("step_unknown_key", path, key, _STEP_KEYS, "a step")
    return _canonical_step(reader, name, step, path, steps)


def _canonical_step(
    reader: Reader, name: str, step: dict[str, Value], path: Path, steps: frozenset[str]
) -> dict[str, Value]:
    out: dict[str, Value] = {"step": name}
    for key in (*_NOTES, "set_ctx"):
        if key in step:
            out[key] = step[key]
    if "args" in step:
        out["args"] = reader.mapping(step["args"], "args_invalid", (*path, "args"), "args") or {}
    if "spec" in step:
        out["spec"] = _read_spec(reader, step["spec"], (*path, "spec"))
    if step.get("tool") is not None:
        out["tool"] = read_tool(reader, name, step["tool"], (*path, "tool"), steps)
        check_one_pool(reader, out, path)
    if "loop" in step:
        out["loop"] = read_loop(reader, step["loop"], (*path, "loop"))
        if "tool" not in out:
            reader.error(
                "loop_without_tool",
                (*path, "loop"),
                "a loop needs a tool to run for each item",
                rule="004 §8",
            )
    if step.get("next") is not None:
        out["next"] = _read_next(reader, step["next"], (*path, "next"), steps)
    if "tool" not in out and "next" not in out:
        reader.warning(
            "step_empty",
            path,
            f"the step {name!r} has neither tool nor next: it does nothing and ends its branch",
            hint="leave it out (a branch ends where no arc leads on), or give it a tool",
            rule="000 §5.1",
        )
    return out


def reject_control(reader: Reader, value: Value, path: Path, scope: str) -> None:
    """Control actions belong to task policies only (004 §5.2.2)."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in _CONTROL and not (key == "fail" and isinstance(item, bool)):
                reader.error(
                    "do_outside_task",
                    (*path, key),
                    f"{key!r} is a control action; {scope} policies have none",
                    hint="move it to the spec.policy.rules of a task",
                    rule="004 §5.2.2",
                )
            else:
                reject_control(reader, item, (*path, key), scope)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            reject_control(reader, item, (*path, index), scope)


def _read_spec(reader: Reader, value: Value, path: Path) -> dict[str, Value]:
    spec = dict(reader.mapping(value, "spec_invalid", path, "spec") or {})
    reader.slips(spec, path, ("policy", "timeout", "result", "loop_mode", "pool"), "a step's spec")
    check_pool(reader, spec, path)
    if "policy" not in spec:
        return spec
    place = (*path, "policy")
    policy = dict(reader.mapping(spec["policy"], "policy_invalid", place, "a step's policy") or {})
    if "rules" in policy:
        reader.error(
            "policy_scope",
            (*place, "rules"),
            "a step's policy has no rules",
            hint="admission rules stand under admit.rules, outcome rules under a task's spec.policy",
            rule="004 §5",
        )
        policy.pop("rules")
    for key in policy:
        if key == "exec":
            reader.error(
                "policy_scope",
                (*place, key),
                "exec is a loop policy",
                hint="move it to loop.spec.policy",
                rule="004 §5.3",
            )
        elif key not in (*_POLICY_KEYS, *_CONTROL) and not key.startswith("x-"):
            reader.unknown_key("policy_unknown_key", place, key, _POLICY_KEYS, "a step's policy")
    reject_control(reader, policy, place, "step")
    if "admit" in policy:
        policy["admit"] = _read_admit(reader, policy["admit"], (*place, "admit"))
    check_failure(reader, policy, place)
    lifecycle = (
        reader.mapping(policy.get("lifecycle"), "lifecycle_invalid", (*place, "lifecycle"), "lifecycle") or {}
    )
    for key in ("timeout_s", "deadline_s"):
        seconds = lifecycle.get(key, 1)
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
            or not 0 < seconds <= _SECONDS_MAX
        ):
            reader.error(
                "lifecycle_invalid",
                (*place, "lifecycle", key),
                f"{key} is {seconds!r}",
                hint="seconds, above 0 and at most 10^15",
            )
    return {**spec, "policy": policy}


def check_failure(reader: Reader, policy: dict[str, Value], path: Path) -> None:
    failure = reader.mapping(policy.get("failure"), "failure_invalid", (*path, "failure"), "failure") or {}
    if "mode" in failure:
        reader.choice(
            failure["mode"], FAILURE_MODES, "failure_mode_invalid", (*path, "failure", "mode"), "failure.mode"
        )


def _read_admit(reader: Reader, value: Value, path: Path) -> dict[str, Value]:
    admit = reader.mapping(value, "admit_invalid", path, "admit")
    if admit is None:
        return {}
    out = dict(admit)
    for key in admit:
        if key not in _ADMIT_KEYS:
            reader.unknown_key("admit_unknown_key", path, key, _ADMIT_KEYS, "admit")
    if "mode" in admit:
        reader.choice(
            admit["mode"], ("exclusive", "inclusive"), "admit_mode_invalid", (*path, "mode"), "admit.mode"
        )
    if "on_deny" in admit:
        reader.choice(
            admit["on_deny"], ("pending", "discard"), "on_deny_invalid", (*path, "on_deny"), "on_deny"
        )
    if "rules" in admit:
        out["rules"] = read_rules(reader, admit["rules"], (*path, "rules"), _read_allow)
        for rule in out["rules"]:
            if "when" in rule:
                rule["when"] = canonical_event_names(reader, rule["when"], (*path, "rules"))
    if "join" in admit:
        _check_join(reader, admit["join"], (*path, "join"))
    return out


def _read_allow(reader: Reader, value: Value, path: Path) -> dict[str, Value]:
    if not isinstance(value, dict) or not isinstance(value.get("allow"), bool):
        if not (isinstance(value, dict) and "do" in value):
            reader.error(
                "allow_missing",
                path,
                "an admission rule needs then: {allow: true} or {allow: false}",
                rule="000 §3.1",
            )
        return {"allow": False}
    return value


def _check_join(reader: Reader, value: Value, path: Path) -> None:
    join = reader.mapping(value, "join_invalid", path, "join")
    if join is None:
        return
    mode = join.get("mode", "all")
    reader.choice(mode, ("all", "any", "count"), "join_invalid", (*path, "mode"), "join.mode")
    count = join.get("count")
    if mode == "count" and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        reader.error("join_invalid", path, "join.mode: count needs count: 1 or more")
    sources = join.get("from", [])
    if not isinstance(sources, list) or not all(isinstance(item, str) for item in sources):
        reader.error("join_invalid", (*path, "from"), "join.from must be a list of step names")


def read_loop(reader: Reader, value: Value, path: Path) -> dict[str, Value]:
    loop = reader.mapping(value, "loop_invalid", path, "loop")
    if loop is None:
        return {"in": [], "iterator": "item"}
    iterator = _read_iteration(reader, loop, path)
    spec = dict(reader.mapping(loop.get("spec"), "spec_invalid", (*path, "spec"), "loop.spec") or {})
    for key in ("mode", "max_in_flight"):
        if key in loop:
            reader.spelled_b((*path, key), f"loop.{key}", f"loop.spec.{key}")
            reader.moved[(*path, "spec", key)] = (*path, key)
            spec.setdefault(key, loop[key])
    place = (*path, "spec")
    policy = (
        reader.mapping(spec.get("policy"), "policy_invalid", (*place, "policy"), "loop.spec.policy") or {}
    )
    reject_control(reader, policy, (*place, "policy"), "loop")
    reader.slips(spec, place, ("mode", "max_in_flight", "policy", "pool"), "loop.spec")
    check_pool(reader, spec, place)
    reader.slips(policy, (*place, "policy"), _LOOP_POLICY_KEYS, "loop.spec.policy")
    for source, where in ((spec, place), (policy, (*place, "policy"))):
        if "mode" in source:
            reader.choice(
                source["mode"],
                ("sequential", "parallel", "cursor"),
                "loop_mode_invalid",
                (*where, "mode"),
                "loop mode",
            )
        if "max_in_flight" in source:
            _check_in_flight(reader, source["max_in_flight"], (*where, "max_in_flight"))
    if "admit" in policy or "rules" in policy:
        wrong = "admit" if "admit" in policy else "rules"
        reader.error(
            "policy_scope", (*place, "policy", wrong), f"{wrong!r} is no loop policy", rule="004 §5.3"
        )
    for key, allowed in (
        ("exec", ("distributed", "local")),
        ("ctx", ("reject", "last_write", "append")),
        ("reduce", ("collect", "sum", "merge")),
    ):
        if key in policy:
            reader.choice(
                policy[key], allowed, f"loop_{key}_invalid", (*place, "policy", key), f"loop policy {key}"
            )
    for key in loop:
        if key not in ("in", "iterator", "spec", "mode", "max_in_flight", "cursor"):
            reader.unknown_key("loop_unknown_key", path, key, ("in", "iterator", "spec"), "a loop")
    out = {"in": loop.get("in"), "iterator": iterator}
    return {**out, "spec": spec} if spec else out


def _read_iteration(reader: Reader, loop: dict[str, Value], path: Path) -> str:
    """Checks what a loop goes over; gives the name of its item."""
    if "cursor" in loop:
        reader.error(
            "loop_cursor",
            (*path, "cursor"),
            "loops that claim rows through a cursor are not supported",
            hint='read the rows in a step before, and loop over its result: in: "{{ read.rows }}"',
        )
    elif "in" not in loop:
        reader.error("loop_in_missing", path, "a loop needs in: <collection>", rule="004 §12")
    iterator = loop.get("iterator")
    if not isinstance(iterator, str) or not iterator.isidentifier():
        reader.error(
            "loop_iterator_missing",
            path,
            "a loop needs iterator: <name>",
            hint="iterator: item",
            rule="004 §12",
        )
        iterator = "item"
    if iterator in ("parent", "index"):
        reader.error(
            "loop_iterator_reserved",
            (*path, "iterator"),
            f"iter.{iterator} has a meaning of its own",
            hint="choose another name",
        )
    return iterator


def _check_in_flight(reader: Reader, value: Value, path: Path) -> None:
    if not is_template(value) and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        reader.error("max_in_flight_invalid", path, f"max_in_flight is {value!r}", hint="1 or more")


def _read_next(reader: Reader, value: Value, path: Path, steps: frozenset[str]) -> dict[str, Value]:
    if isinstance(value, list | str):
        code = "next_list" if isinstance(value, list) else "next_text"
        reader.error(
            code,
            path,
            f"next must be a router object, not {kind_of(value)}",
            hint="write next: {spec: {mode: exclusive}, arcs: [{step: …, when: …}]}",
            rule="004 §13",
        )
        return {"arcs": []}
    router = reader.mapping(value, "next_invalid", path, "next")
    if router is None:
        return {"arcs": []}
    spec = reader.mapping(router.get("spec"), "spec_invalid", (*path, "spec"), "next.spec") or {}
    if "mode" in spec:
        reader.choice(
            spec["mode"],
            ("exclusive", "inclusive"),
            "next_mode_invalid",
            (*path, "spec", "mode"),
            "next.spec.mode",
        )
    reject_control(reader, spec.get("policy"), (*path, "spec", "policy"), "router")
    for key in router:
        if key not in ("spec", "arcs"):
            reader.unknown_key("next_unknown_key", path, key, ("spec", "arcs"), "next", fatal=True)
    arcs = router.get("arcs")
    if not isinstance(arcs, list):
        reader.error(
            "arcs_invalid", (*path, "arcs"), f"next.arcs must be a list, not {kind_of(arcs)}", rule="004 §5.5"
        )
        arcs = []
    read = [_read_arc(reader, arc, (*path, "arcs", index), steps) for index, arc in enumerate(arcs)]
    out: dict[str, Value] = {"arcs": [arc for arc in read if arc is not None]}
    return {"spec": spec, **out} if spec else out


def _read_arc(reader: Reader, value: Value, path: Path, steps: frozenset[str]) -> dict[str, Value] | None:
    if not isinstance(value, dict):
        reader.error(
            "arc_invalid", path, f"an arc must be a mapping, not {kind_of(value)}", hint="- step: <name>"
        )
        return None
    reject_legacy(reader, value, path, "an arc")
    reject_conditions(reader, value, path, "an arc", 'write when: "{{ … }}"')
    if "do" in value or "then" in value:
        wrong = "do" if "do" in value else "then"
        reader.error(
            "do_outside_task",
            (*path, wrong),
            "an arc only names the next step",
            hint="- {step: …, when: …, args: …}",
            rule="004 §5.5",
        )
    arc = rename(reader, value, path, "input", "args")
    arc = split_set(reader, arc, path, scopes=("ctx",))
    target = arc.get("step")
    if not isinstance(target, str):
        reader.error("arc_step_missing", path, "an arc needs step: <name>", rule="000 §4.1")
        return None
    if target not in steps:
        reader.error(
            "arc_step_unknown",
            (*path, "step"),
            f"the arc goes to {target!r}, which is no step",
            hint=_steps(steps),
            rule="000 §4.1",
        )
    for key in arc:
        if key not in (*_ARC_KEYS, *CONDITIONS, *LEGACY, "do", "then"):
            reader.unknown_key("arc_unknown_key", path, key, _ARC_KEYS, "an arc")
    out: dict[str, Value] = {"step": target}
    if "when" in arc:
        named = canonical_event_names(reader, arc["when"], (*path, "when"))
        out["when"] = reader.condition(named, (*path, "when"))
    if "args" in arc:
        out["args"] = reader.mapping(arc["args"], "args_invalid", (*path, "args"), "args") or {}
    for key in ("set_ctx", "spec"):
        if key in arc:
            out[key] = arc[key]
    return out


def _steps(steps: frozenset[str]) -> str:
    return "steps: " + ", ".join(sorted(steps)[:20])
