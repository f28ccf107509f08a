"""A workflow made ready to run: `load` turns a canonical body into these frozen records.

Nothing here decides anything. Defaults are filled in one place, so that the machine and the
performers read the same values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from treadle.kernel.values import Value, to_value
from treadle.lang.duration import parse_duration
from treadle.lang.json_schema import validator

from .conditions import Condition
from .paths import Match, Path

MAX_TURNS: Final = 50
MAX_STEPS: Final = 200
JUDGE_BUDGET: Final = 50
ONLY_PATH: Final = "only path"
DEFAULT_PATH: Final = "None of the above / default path"


@dataclass(frozen=True, slots=True)
class Edge:
    """`when` is a question to the model, `test` one that the data answers; at most one of them is
    there. An empty `when` counts as none."""

    index: int
    source: str
    target: str
    when: str | None
    limit: int | None
    test: Condition | None
    # Whether it is followed without any question.
    plain: bool
    # Why it is followed, if it is: its condition as it is written.
    reason: str
    # Follow-counts are kept per pair of nodes, not per edge.
    pair: str


@dataclass(frozen=True, slots=True)
class Rule:
    """What a value or function evaluator checks; every part that is there must hold."""

    any_called: tuple[str, ...] = ()
    all_called: tuple[str, ...] = ()
    none_called: tuple[str, ...] = ()
    required: tuple[Path, ...] = ()
    matches: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluator:
    name: str
    kind: str
    rule: Rule = Rule()
    rubric: str = ""
    pass_when: str = "yes"
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Requires:
    required: tuple[Path, ...]
    matches: tuple[Match, ...]
    skip: bool


@dataclass(frozen=True, slots=True)
class Retry:
    """At most one of `text` (static) and `reflect` (a prompt, or "" for the default one) is set."""

    max: int
    text: str | None = None
    reflect: str | None = None
    # How long a function waits before it is called again.
    delay_ns: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    usd: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Approve:
    roles: tuple[str, ...]
    fail: bool
    timeout_ns: int | None
    # Paths into the context whose values the approver is shown.
    show: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    name: str
    skills: tuple[str, ...] = ()
    output: dict[str, Value] | None = None
    max_turns: int = MAX_TURNS
    model: str | None = None
    judge_model: str | None = None
    disallowed_tools: tuple[str, ...] = ()
    allow: frozenset[str] | None = None
    deny: frozenset[str] = frozenset()
    fail_soft: bool = False
    rules_only: bool = False
    context_only: bool = False
    rules: int = 0
    context: int = 0
    evaluators: tuple[Evaluator, ...] = ()
    requires: Requires | None = None
    retry: Retry | None = None
    budget: Budget | None = None
    approve: Approve | None = None
    child: dict[str, Value] | None = None
    # `module:function`, or the name of a registered one.
    function: str | None = None
    timeout_ns: int | None = None
    skills_optional: bool = False
    in_doubt: str = "ask"
    # The workers that do its work; empty: those that serve no other pool.
    pool: str = ""
    validator: Any = None
    # The top-level keys that the router may see of its data; empty: all of them.
    declared: tuple[str, ...] = ()
    # Whether a model works at it, and not another workflow or a function.
    by_model: bool = True
    # Whether its result counts as it is, with nothing to hold it against.
    unjudged: bool = True
    # Whether all that it tells a model of its own is its instruction.
    bare: bool = True
    # The field path of its instruction.
    told_by: str = ""


@dataclass(frozen=True)
class Workflow:
    """One agent workflow. `body` is the canonical document it was made from."""

    id: str
    name: str
    entry: str
    nodes: dict[str, Node]
    edges: tuple[Edge, ...]
    body: dict[str, Value]
    model: str | None = None
    judge_model: str | None = None
    budget: Budget | None = None
    halt_on_failure: bool = False
    max_steps: int = MAX_STEPS
    inputs: dict[str, Value] = field(default_factory=dict)

    @cached_property
    def out(self) -> dict[str, tuple[Edge, ...]]:
        found: dict[str, list[Edge]] = {node: [] for node in self.nodes}
        for edge in self.edges:
            found.setdefault(edge.source, []).append(edge)
        return {node: tuple(edges) for node, edges in found.items()}

    @cached_property
    def only(self) -> dict[str, Edge | None]:
        """The one way on from a node, or None where it leads nowhere, of those where there is nothing to ask, to test or
        to count: most nodes."""
        ways = {node: edges[0] if edges else None for node, edges in self.out.items() if len(edges) <= 1}
        return {
            node: edge for node, edge in ways.items() if edge is None or (edge.plain and edge.limit is None)
        }

    @cached_property
    def tested(self) -> frozenset[str]:
        """The nodes out of which an edge leads that the data decides."""
        return frozenset(edge.source for edge in self.edges if edge.test is not None)

    @cached_property
    def skilled(self) -> bool:
        """Whether any of its nodes has a skill."""
        return any(node.skills for node in self.nodes.values())

    @property
    def needs_model(self) -> bool:
        """Whether a run of it may ask a model anything."""
        return (
            any(node.by_model for node in self.nodes.values())
            or any(edge.when is not None for edge in self.edges)
            or any(e.kind == "judge" for node in self.nodes.values() for e in node.evaluators)
        )

    @cached_property
    def digests(self) -> dict[str, str]:
        """Of its Sources as they are written; filled by `sources.texts_of`."""
        return {}

    @cached_property
    def texts(self) -> dict[str, Value]:
        """The Sources of its nodes and skills by field path, as they are written; filled by `sources.fields`."""
        return {}

    @cached_property
    def inline(self) -> dict[str, dict[str, Value]]:
        """Those of `texts` that are text, as every run resolves them; filled by whoever does it first."""
        return {}

    @cached_property
    def answers(self) -> dict[str, bool]:
        """What is asked about it again and again, and has one answer; filled by those who ask."""
        return {}

    @cached_property
    def joins(self) -> dict[str, str | None]:
        """Where the branches of a fork meet, per forking node; filled by `routing.join_of`."""
        return {}


def load(body: Value) -> Workflow:
    # As the store gives it back, keys in canonical order: a run that was begun where the file was
    # compiled must be decided in the same way by those who read the definition later.
    written, body = body, to_value(body)
    return Workflow(
        id=body["id"],
        name=body["name"],
        entry=body["entry"],
        nodes={id: _node(id, spec) for id, spec in body["nodes"].items()},
        edges=tuple(_edge(index, spec) for index, spec in enumerate(body["edges"])),
        body=body,
        model=body.get("model"),
        judge_model=body.get("judge_model"),
        budget=_budget(body.get("budget")),
        halt_on_failure=body.get("on_failure") == "halt",
        max_steps=body.get("max_steps", MAX_STEPS),
        # Read only before a run is there: errors come in the author's order where it is known.
        inputs=written.get("inputs") or {},
    )


def _edge(index: int, spec: dict[str, Value]) -> Edge:
    source, target, when = spec["from"], spec["to"], spec.get("when") or None
    test = Condition.of(spec["if"]) if "if" in spec else None
    return Edge(
        index,
        source,
        target,
        when,
        spec.get("max_iterations"),
        test,
        plain=when is None and test is None,
        reason=test.text if test is not None else when or ONLY_PATH,
        pair=f"{source}\x1f{target}",
    )


def _node(id: str, spec: dict[str, Value]) -> Node:
    tools = spec.get("tools") or {}
    rules, rules_only = _cascade(spec.get("rules"))
    context, context_only = _cascade(spec.get("context"))
    output = _ordered(spec.get("output"))
    properties = (output or {}).get("properties")
    evaluators = tuple(_evaluator(item) for item in spec.get("eval") or ())
    skills, run = tuple(dict.fromkeys(spec.get("skills") or ())), spec.get("run")
    return Node(
        id=id,
        name=spec["name"],
        skills=skills,
        output=output,
        max_turns=spec.get("max_turns", MAX_TURNS),
        model=spec.get("model"),
        judge_model=spec.get("judge_model"),
        disallowed_tools=tuple(spec.get("disallowed_tools") or ()),
        allow=frozenset(tools["allow"]) if "allow" in tools else None,
        deny=frozenset(tools.get("deny") or ()),
        fail_soft=bool(spec.get("fail_soft")),
        rules_only=rules_only,
        context_only=context_only,
        rules=len(rules),
        context=len(context),
        evaluators=evaluators,
        requires=_requires(spec.get("requires")),
        retry=_retry(spec.get("retry")),
        budget=_budget(spec.get("budget")),
        approve=_approve(spec.get("approve")),
        child=run if isinstance(run, dict) else None,
        function=run if isinstance(run, str) else None,
        timeout_ns=_duration(spec.get("timeout")),
        skills_optional=bool(spec.get("skills_optional")),
        in_doubt=spec.get("in_doubt", "ask"),
        pool=spec.get("pool", ""),
        validator=validator(output) if output is not None else None,
        declared=tuple(properties) if isinstance(properties, dict) else (),
        by_model=not isinstance(run, dict | str),
        unjudged=output is None and not evaluators,
        bare=not (skills or rules or context),
        told_by=f"nodes.{id}.instruction",
    )


def _ordered(schema: Any) -> Any:
    """A schema with its required properties first, in the order the author lists them there: a model
    writes them in the order it is shown, and that of a mapping is not kept."""
    if isinstance(schema, list):
        return [_ordered(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _ordered(item) for key, item in schema.items()}
    properties, required = found.get("properties"), found.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        first = {name: properties[name] for name in required if isinstance(name, str) and name in properties}
        found["properties"] = {**first, **properties}
    return found


def _cascade(value: Any) -> tuple[list[Value], bool]:
    if isinstance(value, dict):
        return value["sources"], bool(value.get("only"))
    return value or [], False


def _matches(items: Any) -> tuple[Match, ...]:
    return tuple(Match.of(item) for item in items or ())


def _paths(items: Any) -> tuple[Path, ...]:
    return tuple(Path.parse(item) for item in items or ())


def _evaluator(spec: dict[str, Value]) -> Evaluator:
    rule = spec.get("rule") or {}
    return Evaluator(
        name=spec["name"],
        kind=spec["kind"],
        rule=Rule(
            any_called=tuple(rule.get("any_tool_called") or ()),
            all_called=tuple(rule.get("all_tools_called") or ()),
            none_called=tuple(rule.get("no_tool_called") or ()),
            required=_paths(rule.get("output_required")),
            matches=_matches(rule.get("output_matches")),
        ),
        rubric=spec.get("rubric", ""),
        pass_when=spec.get("pass_when", "yes"),
        model=spec.get("model"),
    )


def _requires(spec: dict[str, Value] | None) -> Requires | None:
    if spec is None:
        return None
    return Requires(
        required=_paths(spec.get("output_required")),
        matches=_matches(spec.get("output_matches")),
        skip=spec.get("on_fail") == "skip",
    )


def _retry(spec: dict[str, Value] | None) -> Retry | None:
    if spec is None:
        return None
    if "delay" in spec:
        return Retry(spec["max"], delay_ns=parse_duration(spec["delay"]))
    match spec.get("instruction"):
        case str() as text:
            return Retry(spec["max"], text=text)
        case {"reflect": prompt}:
            return Retry(spec["max"], reflect=prompt)
        case {"auto": True}:
            return Retry(spec["max"], reflect="")
        case _:
            return Retry(spec["max"])


def _budget(spec: dict[str, Value] | None) -> Budget | None:
    return None if spec is None else Budget(spec.get("usd"), spec.get("tokens"))


def _approve(spec: dict[str, Value] | None) -> Approve | None:
    if spec is None:
        return None
    return Approve(
        roles=tuple(spec["roles"]),
        fail=spec.get("on_deny") == "fail",
        timeout_ns=_duration(spec.get("timeout")),
        show=tuple(spec.get("show") or ()),
    )


def _duration(written: Any) -> int | None:
    return None if written is None else parse_duration(written)
