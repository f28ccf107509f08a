"""What is wrong with a workflow document: its shape, then its graph, then its details.

Every problem is found at once, each with its code and its line. A code is part of the contract
(the table in docs/agent.md); the messages are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from treadle.kernel.errors import DefinitionError, ValueRefused
from treadle.kernel.values import Value, encode
from treadle.lang.duration import parse_duration
from treadle.lang.patterns import PatternError, compile_pattern
from treadle.lang.pools import POOL_HINT, is_pool
from treadle.lang.problems import Problems
from treadle.lang.schema_problems import schema_problem
from treadle.lang.text import Path as Where

from . import conditions
from .check_handed import RESERVED, check_handed
from .inputs import check_declarations
from .paths import Path, PathError
from .schema import SKILL_ID
from .shape import check_shape, short
from .sources import url_problem

Finds = Callable[[str], bool | str]
_ELSEWHERE: Final = "Register it in Python, give --skills FILE.py, or add a SKILL.md folder"
_WITHOUT: Final = "without it the node fails, unless it has skills_optional: true."
_DURATION: Final = "Write 30s, 5m, 2h, 3d, or seconds as a number."
_RULE_KINDS: Final = {
    **dict.fromkeys(("output_required", "output_matches"), "value"),
    **dict.fromkeys(("any_tool_called", "all_tools_called", "no_tool_called"), "function"),
}
BUILT_IN_SKILLS: Final = frozenset({"files", "shell", "http", "duckdb", "workflows"})


def check(value: Any, problems: Problems, finds: Finds = lambda skill: False) -> None:
    """Adds everything that is wrong with `value` to `problems`. `finds`: whether a skill that is
    written elsewhere is there, or what is wrong with it."""
    if not isinstance(value, dict):
        problems.error("SCHEMA", (), "this is no mapping", hint="Write id, name, entry, nodes and edges.")
        return
    try:
        encode(value)
    except ValueRefused as refused:
        problems.error("VALUE_REFUSED", (), refused.message, hint="Only JSON values can be stored.")
        return
    check_shape(value, problems)
    nodes = value.get("nodes")
    if isinstance(nodes, dict):
        _check_graph(value, nodes, problems)
        for id, node in nodes.items():
            if isinstance(node, dict):
                _check_node(id, node, problems)
                check_handed(id, node, nodes, problems)
        _check_skills(value, nodes, problems, finds)
        _check_judges(value, nodes, problems)
    check_declarations(value.get("inputs"), problems)


# --- graph --------------------------------------------------------------------------------------


def _check_graph(value: dict[str, Value], nodes: dict[str, Value], problems: Problems) -> None:
    entry = value.get("entry")
    if isinstance(entry, str) and entry not in nodes:
        problems.error(
            "MISSING_ENTRY",
            ("entry",),
            f"the entry {entry!r} is not a node",
            hint=_did_you_mean(entry, nodes),
        )
    edges = list(_edges(value))
    for index, edge in edges:
        for end, code in (("from", "UNKNOWN_EDGE_SOURCE"), ("to", "UNKNOWN_EDGE_TARGET")):
            if edge[end] not in nodes:
                problems.error(
                    code,
                    ("edges", index, end),
                    f"the edge's {end!r} is {edge[end]!r}, which is not a node",
                    hint=_did_you_mean(edge[end], nodes),
                )
        if edge["from"] == edge["to"] and "max_iterations" not in edge:
            problems.error(
                "SELF_LOOP",
                ("edges", index),
                f"{edge['from']!r} leads to itself without end",
                hint="Give the edge max_iterations.",
            )
        _check_condition(index, edge, nodes, problems)
    _check_reachable(entry, nodes, edges, problems)
    _check_cycles(nodes, edges, problems)
    _check_ambiguous(value, nodes, edges, problems)


def _check_condition(index: int, edge: dict[str, Value], nodes: dict[str, Value], problems: Problems) -> None:
    at: Where = ("edges", index)
    written = edge.get("if")
    if isinstance(written, dict) and isinstance(written.get("$"), str) and written["$"]:
        for message, hint in conditions.problems_of(written["$"], list(nodes)):
            problems.error("BAD_CONDITION", (*at, "if"), short(message), hint=hint)
    when = edge.get("when")
    if isinstance(when, str) and "{{" in when:
        problems.error(
            "TEMPLATE_IN_WHEN",
            (*at, "when"),
            "`when` is a question to the model; nothing in it is evaluated",
            hint=f'To decide by data, write if: {{$: "{_inside_braces(when)}"}} instead.',
        )
    if "if" in edge and when:
        problems.error(
            "IF_AND_WHEN",
            at,
            "an edge has `if`, which the data decides, or `when`, which the model decides; not both",
            hint="Keep one of them; an `if` edge goes before the others.",
        )


def _inside_braces(text: str) -> str:
    inside = text.partition("{{")[2].partition("}}")[0].strip()
    return inside.replace('"', "'") or "classify.amount > 100"


def _edges(value: dict[str, Value]) -> Iterator[tuple[int, dict[str, Value]]]:
    edges = value.get("edges")
    for index, edge in enumerate(edges if isinstance(edges, list) else ()):
        if isinstance(edge, dict) and isinstance(edge.get("from"), str) and isinstance(edge.get("to"), str):
            yield index, edge


def _did_you_mean(name: str, nodes: dict[str, Value]) -> str:
    close = [node for node in nodes if isinstance(node, str) and node.lower() == name.lower()]
    return f"Did you mean {close[0]!r}?" if close else f"Nodes: {', '.join(map(str, nodes)) or 'none'}."


def _check_reachable(
    entry: Any, nodes: dict[str, Value], edges: list[tuple[int, dict[str, Value]]], problems: Problems
) -> None:
    if not isinstance(entry, str) or entry not in nodes:
        return
    out: dict[str, list[str]] = {}
    for _, edge in edges:
        out.setdefault(edge["from"], []).append(edge["to"])
    seen, queue = {entry: True}, [entry]
    for node in queue:
        for target in out.get(node, ()):
            if target in nodes and target not in seen:
                seen[target] = True
                queue.append(target)
    for node in nodes:
        if node not in seen:
            problems.error(
                "UNREACHABLE_NODE",
                ("nodes", node),
                f"no path leads from {entry!r} to {node!r}",
                hint="Add an edge to it, or remove it.",
            )
    if all(out.get(node) for node in seen):
        problems.warning(
            "NO_TERMINAL_NODE",
            ("nodes",),
            "every reachable node has an edge out; the run ends only when max_iterations is used up",
            hint="Add a node without an edge out, if the work has an end.",
        )


def _check_cycles(
    nodes: dict[str, Value], edges: list[tuple[int, dict[str, Value]]], problems: Problems
) -> None:
    """Bounded edges and self-loops removed, what is left must have no cycle."""
    out: dict[str, list[tuple[str, int]]] = {}
    for index, edge in edges:
        if "max_iterations" not in edge and edge["from"] != edge["to"] and edge["to"] in nodes:
            out.setdefault(edge["from"], []).append((edge["to"], index))
    done: dict[str, bool] = {}
    for root in nodes:
        if root in done:
            continue
        path = [root]
        on_path = {root: True}
        stack = [iter(out.get(root, ()))]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                done[path[-1]] = True
                del on_path[path.pop()]
                continue
            target, index = step
            if target in on_path:
                cycle = [*path[path.index(target) :], target]
                problems.error(
                    "UNBOUNDED_CYCLE",
                    ("edges", index),
                    f"{' → '.join(cycle)} can go round for ever",
                    hint="Give one edge of the cycle max_iterations.",
                )
            elif target not in done:
                path.append(target)
                on_path[target] = True
                stack.append(iter(out.get(target, ())))


def _check_ambiguous(
    value: dict[str, Value],
    nodes: dict[str, Value],
    edges: list[tuple[int, dict[str, Value]]],
    problems: Problems,
) -> None:
    for node in nodes:
        own = [(index, edge) for index, edge in edges if edge["from"] == node]
        plain = [(index, edge) for index, edge in own if not edge.get("when") and "if" not in edge]
        if len(plain) < 2:
            continue
        targets = [edge["to"] for _, edge in plain]
        if value.get("parallel") is not True:
            hint = "Set `parallel: true` to run them as branches, or give all but one of them an `if` or a `when`."
        elif len(own) > len(plain):
            hint = "Conditional edges cannot stand beside two unconditional ones."
        elif len(set(targets)) < len(targets):
            hint = "Two branches cannot start at the same node."
        else:
            continue
        problems.error(
            "AMBIGUOUS_EDGES",
            ("edges", plain[1][0]),
            f"{node!r} has {len(plain)} unconditional edges out: {', '.join(targets)}",
            hint=hint,
        )


# --- nodes --------------------------------------------------------------------------------------


def _check_node(id: str, node: dict[str, Value], problems: Problems) -> None:
    at: Where = ("nodes", id)
    if id in RESERVED:
        problems.error(
            "RESERVED_NODE_ID",
            at,
            f"a node cannot be called {id!r}: every context has that key",
            hint="Give it another id.",
        )
    if node.get("eval_policy", "all_pass") in ("any_pass", "weighted"):
        problems.error(
            "UNSUPPORTED_EVAL_POLICY",
            (*at, "eval_policy"),
            f"eval_policy {node['eval_policy']} is not supported",
            hint="Use all_pass.",
        )
    if isinstance(node.get("output"), dict):
        _check_schema(node["output"], (*at, "output"), problems)
    if isinstance(node.get("requires"), dict):
        _check_rule(node["requires"], (*at, "requires"), problems)
    for index, item in enumerate(node["eval"] if isinstance(node.get("eval"), list) else ()):
        if isinstance(item, dict):
            _check_evaluator(item, (*at, "eval", index), problems)
    _check_names(node, at, problems)
    if isinstance(pool := node.get("pool"), str) and not is_pool(pool):
        problems.error("BAD_POOL", (*at, "pool"), f"{pool!r:.40} is no name of a pool", hint=POOL_HINT)
    approve = node.get("approve")
    retry = node.get("retry")
    for owner, field, place in (
        (approve, "timeout", (*at, "approve", "timeout")),
        (node, "timeout", (*at, "timeout")),
        (retry, "delay", (*at, "retry", "delay")),
    ):
        if isinstance(owner, dict) and field in owner:
            _check_duration(owner[field], place, problems)
    if isinstance(approve, dict):
        _check_source(approve.get("prompt"), (*at, "approve", "prompt"), problems)
    for field in ("instruction", "rules", "context"):
        _check_source(node.get(field), (*at, field), problems)


def _check_names(node: dict[str, Value], at: Where, problems: Problems) -> None:
    evals = node.get("eval")
    names = [item.get("name") for item in evals if isinstance(item, dict)] if isinstance(evals, list) else []
    for index, name in enumerate(names):
        if name in names[:index]:
            problems.error(
                "DUPLICATE_EVALUATOR",
                (*at, "eval", index),
                f"two evaluators are called {name!r}",
                hint="Name one of them otherwise.",
            )


def _check_schema(schema: dict[str, Value], at: Where, problems: Problems) -> None:
    if found := schema_problem(schema):
        place, message = found
        problems.error(
            "OUTPUT_SCHEMA_INVALID",
            (*at, *place),
            short(message),
            hint="Write JSON Schema (draft 2020-12) that refers to nothing but itself ($defs).",
        )


def _check_evaluator(item: dict[str, Value], at: Where, problems: Problems) -> None:
    if isinstance(item.get("rule"), dict):
        _check_rule(item["rule"], (*at, "rule"), problems)
        _check_kind(item.get("kind"), item["rule"], (*at, "rule"), problems)
    token = item.get("pass_when", "yes")
    if isinstance(token, str) and token.split() != [token]:
        problems.error(
            "PASS_WHEN_NOT_A_TOKEN",
            (*at, "pass_when"),
            f"pass_when must be one word without spaces or line breaks, not {token!r}",
            hint="The judge answers with one word; name the one that means pass.",
        )


def _check_kind(kind: Any, rule: dict[str, Value], at: Where, problems: Problems) -> None:
    """The format's schema takes every rule in both kinds, and every rule is checked; but a reader
    expects `value` to look at the data and `function` at the calls."""
    for name in rule:
        own = _RULE_KINDS.get(name)
        if own is not None and kind in ("value", "function") and kind != own:
            problems.warning(
                "RULE_OF_OTHER_KIND",
                (*at, name),
                f"{name} is a rule of kind {own}, and this evaluator is of kind {kind}",
                hint=f"It is checked all the same; give it an evaluator of kind {own}.",
            )


def _check_rule(rule: dict[str, Value], at: Where, problems: Problems) -> None:
    required = rule.get("output_required")
    for index, text in enumerate(required if isinstance(required, list) else ()):
        _check_path(text, (*at, "output_required", index), problems)
    matches = rule.get("output_matches")
    for index, entry in enumerate(matches if isinstance(matches, list) else ()):
        if not isinstance(entry, dict):
            continue
        where = (*at, "output_matches", index)
        _check_path(entry.get("path"), (*where, "path"), problems)
        if isinstance(entry.get("matches"), str):
            try:
                compile_pattern(entry["matches"])
            except PatternError as error:
                problems.error(
                    "BAD_PATTERN",
                    (*where, "matches"),
                    f"not a regular expression: {error}",
                    hint="Write a JavaScript regular expression without slashes and flags.",
                )


def _check_path(text: Any, at: Where, problems: Problems) -> None:
    if not isinstance(text, str) or not text:
        return
    try:
        Path.parse(text)
    except PathError as error:
        problems.error("BAD_PATH", at, str(error), hint="As in all:findings[*].severity or input.host.")


def _check_duration(value: Any, at: Where, problems: Problems) -> None:
    try:
        parse_duration(value)
    except DefinitionError as error:
        problems.error(error.code, at, error.message, hint=_DURATION)
    except (ValueError, OverflowError):
        problems.error("BAD_DURATION", at, f"{value!r} is not a duration", hint=_DURATION)


def _check_source(value: Any, at: Where, problems: Problems) -> None:
    """A Source, or several. `type` of a URL names how to get it; `fetch` is the only way there is."""
    if isinstance(value, dict):
        if "sources" in value:
            _check_source(value["sources"], (*at, "sources"), problems)
        elif "url" in value:
            if value.get("type", "fetch") != "fetch":
                problems.error(
                    "SOURCE_INVALID_TYPE",
                    (*at, "type"),
                    f"unknown Source type {value['type']!r}",
                    hint="Use fetch.",
                )
            if isinstance(value["url"], str) and value["url"]:
                _check_url(value["url"], (*at, "url"), problems, strict=True)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_source(item, (*at, index), problems)
    elif isinstance(value, str) and value.strip().startswith(("http://", "https://")):
        _check_url(value.strip(), at, problems, strict=False)


def _check_url(url: str, at: Where, problems: Problems, *, strict: bool) -> None:
    if problem := url_problem(url, strict=strict):
        problems.error(
            "SOURCE_INVALID_SHAPE",
            at,
            short(f"{url!r} {problem}"),
            hint="Write an address such as https://example.org/rules.md, or {inline: …} if it is text.",
        )


# --- skills and judges --------------------------------------------------------------------------


def _check_skills(value: dict[str, Value], nodes: dict[str, Value], problems: Problems, finds: Finds) -> None:
    inline = value.get("skills")
    known = inline if isinstance(inline, dict) else {}
    for id, skill in known.items():
        if not id:
            problems.error(
                "INVALID_INLINE_SKILL", ("skills", id), "a skill's id is empty", hint="Give it an id."
            )
        elif not re.match(SKILL_ID, id) or len(id) > 64:
            problems.warning(
                "SKILL_ID",
                ("skills", id),
                f"the skill id {id!r} is not kebab-case",
                hint="Use a-z, 0-9 and -.",
            )
        if isinstance(skill, dict):
            _check_source(skill.get("instruction"), ("skills", id, "instruction"), problems)
            mcp = skill.get("mcp")
            if isinstance(mcp, dict) and "timeout" in mcp:
                _check_duration(mcp["timeout"], ("skills", id, "mcp", "timeout"), problems)
    for field in ("rules", "context"):
        _check_source(value.get(field), (field,), problems)
    for id, node in nodes.items():
        skills = node.get("skills") if isinstance(node, dict) else None
        for index, skill in enumerate(skills if isinstance(skills, list) else ()):
            if not isinstance(skill, str) or skill in known or skill in BUILT_IN_SKILLS:
                continue
            if (found := finds(skill)) is not True:
                nowhere = "is neither in this file nor built in, installed or written beside it"
                problems.warning(
                    "UNKNOWN_SKILL",
                    ("nodes", id, "skills", index),
                    f"the skill {skill!r} {f'is not usable: {found}' if found else nowhere}",
                    hint=f"{'Correct the file' if found else _ELSEWHERE}; {_WITHOUT}",
                )


def _check_judges(value: dict[str, Value], nodes: dict[str, Value], problems: Problems) -> None:
    budget = value.get("judge_budget", 50)
    judges = 0
    for node in nodes.values():
        evals = node.get("eval") if isinstance(node, dict) else None
        mine = (
            [e for e in evals if isinstance(e, dict) and e.get("kind") == "judge"]
            if isinstance(evals, list)
            else []
        )
        retry = node.get("retry") if isinstance(node, dict) else None
        attempts = 1 + retry["max"] if isinstance(retry, dict) and isinstance(retry.get("max"), int) else 1
        judges += len(mine) * attempts
    if isinstance(budget, int) and judges > budget:
        problems.warning(
            "JUDGE_BUDGET",
            ("judge_budget",) if "judge_budget" in value else ("nodes",),
            f"up to {judges} judge calls per pass, more than judge_budget {budget}",
            hint="Raise judge_budget, or use value and function evaluators where they do.",
        )
