"""A canonical playbook made ready to run: templates compiled, specs layered, names resolved.

Built once per definition digest by `load` and shared by the machine and the workers; nothing in it
changes afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from treadle.kernel.values import Value, decode_trusted, encode

from .credentials import fields_read
from .handles import TemplateScope
from .layers import effective_spec, merge
from .lifetimes import declared
from .needs import Needs, needs_of
from .short_forms import Use
from .templates import PlacedTemplate, Tree, is_template

ATTEMPTS: Final = 3
DELAY_S: Final = 1.0
DELAY_S_MAX: Final = 60.0
MAX_IN_FLIGHT: Final = 10
INLINE_BYTES_MAX: Final = 64 * 1024
PREVIEW_BYTES_MAX: Final = 1024
# Kinds of tasks that the engine itself answers (`suspension`).
SUSPENDING: Final = frozenset({"wait", "await", "ask", "playbook", "workflow"})
# Fields that hold a program's text; braces in it are the program's own.
_VERBATIM: Final = {"python": ("code", "code_b64")}
# Names that those who route a step know without its pipeline; `iter` is among the others.
_ROUTED: Final = frozenset({"event", "ctx", "workload", "args", "output", "execution_id"})
# Keys of a task that the pipeline reads itself.
_OWN_KEYS: Final = frozenset({"name", "kind", "set_ctx", "set_iter", "loop"})


def holds(when: PlacedTemplate | bool | None, scope: TemplateScope) -> bool:
    """Whether a guard lets through; one that is left out (None) does, as else does."""
    return when is None or when is True or (when is not False and when.truth(scope))


class Rule(msgspec.Struct):
    """One line of a policy. `when` is None for else."""

    when: PlacedTemplate | bool | None
    do: str
    then: dict[str, Value]
    to: str | None = None
    set_iter: Tree | None = None
    set_ctx: Tree | None = None
    attempts: Tree | None = None
    delay: Tree | None = None
    max_delay: Tree | None = None


class Loop(msgspec.Struct):
    source: Tree
    field: PlacedTemplate | None
    iterator: str
    mode: str = "sequential"
    max_in_flight: Tree | None = None
    local: bool = False
    conflicts: str = "reject"
    reduce: str | None = None
    best_effort: bool = False


def routed(step: str, inclusive: bool, taken: list[str]) -> dict[str, Value]:
    """The event that tells where a step's end leads."""
    mode = "inclusive" if inclusive else "exclusive"
    data = {"mode": mode, "matched": taken, "selected": taken}
    return {"data": data, "step": step, "type": "next.evaluated"}


class StepTold(msgspec.Struct):
    """Events of a step that are the same whenever they happen, in canonical order of keys. Events are never changed, so
    one value serves all."""

    admitted: dict[str, Value]
    started: dict[str, Value]
    done: dict[str, Value]


class Task(msgspec.Struct):
    name: str
    kind: str
    index: int
    config: Tree
    verbatim: dict[str, Value]
    spec: dict[str, Value]
    rules: tuple[Rule, ...] | None
    set_ctx: Tree | None
    set_iter: Tree | None
    loop: Loop | None
    where: str
    uses: tuple[Use, ...]
    # How templates see it: `_task`.
    view: dict[str, Value]
    reads_output: bool = False
    # Whether it writes anything once it is done.
    sets: bool = False
    # The arguments a workbook entry was called with: `args` in the entry's own templates.
    called_with: Tree | None = None

    @property
    def only_waits(self) -> bool:
        """Whether the engine answers it, it holds no template, and nothing is done with the answer."""
        plain = self.config.constant and self.rules is None and not self.sets and not self.spec
        return self.kind in SUSPENDING and plain and self.loop is None and self.called_with is None

    @property
    def is_plain(self) -> bool:
        """Whether a tool does it, and nothing is done with the outcome: it is the pipeline's."""
        acts = self.kind not in SUSPENDING and self.kind != "noop"
        return (
            acts
            and self.rules is None
            and not self.sets
            and self.loop is None
            and not self.spec.get("result")
        )


class Arc(msgspec.Struct):
    step: str
    when: PlacedTemplate | bool | None
    args: Tree
    set_ctx: Tree | None
    # What a worker needs to render the args again, should they turn out too large to travel.
    needs: Needs = msgspec.field(default_factory=Needs)
    # The event that tells of it, where it alone is taken.
    told: dict[str, Value] = msgspec.field(default_factory=dict)

    @property
    def is_templated(self) -> bool:
        return isinstance(self.when, PlacedTemplate) or not self.args.constant or self.set_ctx is not None


class Join(msgspec.Struct):
    sources: tuple[str, ...]
    mode: str
    count: int
    key: Tree


class Step(msgspec.Struct):
    name: str
    index: int
    told: StepTold
    tasks: tuple[Task, ...] = ()
    labels: dict[str, int] = msgspec.field(default_factory=dict)
    admit: tuple[Rule, ...] | None = None
    on_deny: str = "pending"
    once: bool = False
    join: Join | None = None
    timeout_ns: int | None = None
    deadline_ns: int | None = None
    failure_mode: str | None = None
    loop: Loop | None = None
    args: Tree | None = None
    set_ctx: Tree | None = None
    routed: bool = False
    inclusive: bool = False
    # The workers that do it; empty: those that serve no other pool.
    pool: str = ""
    arcs: tuple[Arc, ...] = ()
    needs: Needs = msgspec.field(default_factory=Needs)
    # The same for an iteration, which renders the step's args too (version 2).
    item_needs: Needs = msgspec.field(default_factory=Needs)
    # Names that may have no value yet when a task of this step is rendered: steps and its own tasks.
    later: frozenset[str] = frozenset()
    # Whether what happens after the pipeline reads `iter`, so that the receipt must bring it.
    reads_iter: bool = False
    # Whether what routes it names `output`.
    reads_output: bool = False
    # Whether its own args are rendered for each item of its loop, by the worker that has it (since version 2).
    per_item: bool = False
    # Whether what follows it has a template in it.
    templated: bool = False
    # Whether nothing of it needs a worker: no tool, no secret, no template for each item (`waiting`).
    only_waits: bool = False
    # Whether it is one task, and nothing looks at what comes of it but those who route the step.
    is_plain: bool = False


class Playbook(msgspec.Struct):
    metadata: dict[str, Value]
    workload: Tree
    keychain: dict[str, dict[str, Value]]
    # What the entries' own templates read of the workload; None: all of it.
    keychain_workload: list[str] | None
    # Which fields of which entries the tasks read; the proof before the first token asks for them.
    keychain_fields: dict[str, list[str]]
    steps: dict[str, Step]
    entry: str
    final: str | None
    on_failure: str | None
    on_cancel: str | None
    no_next_is_error: bool
    failure_mode: str | None
    pending_tokens: str
    inline_bytes_max: int
    # Whether a stored result may expire before the run does, or outlive it.
    has_lifetimes: bool = False


def load(body: Value) -> Playbook:
    # Through the canonical encoding, so that keys stand in one order, whoever compiled the body.
    body = decode_trusted(encode(body))
    executor = (body.get("executor") or {}).get("spec") or {}
    policy = executor.get("policy") or {}
    names = [step["step"] for step in body["workflow"]]
    keychain = {entry["name"]: entry for entry in body.get("keychain") or ()}
    loader = _Loader(executor, body.get("workbook") or {}, frozenset(names))
    steps = {step["step"]: loader.step(step, index) for index, step in enumerate(body["workflow"])}
    for step in steps.values():
        if step.join is not None and not step.join.sources:
            step.join.sources = tuple(
                s.name for s in steps.values() if any(arc.step == step.name for arc in s.arcs)
            )
    keychain_needs = needs_of(Tree(list(keychain.values()), "keychain").uses, steps=frozenset(), tasks=())
    for step in steps.values():
        for needs in (step.needs, step.item_needs):
            needs.add_workload(keychain_needs.workload)
    limit = (policy.get("limits") or {}).get("max_payload_bytes")
    return Playbook(
        metadata=body["metadata"],
        workload=Tree(body["workload"], "workload"),
        keychain=keychain,
        keychain_workload=keychain_needs.workload,
        keychain_fields=fields_read(body["workflow"]) if keychain else {},
        steps=steps,
        entry=executor.get("entry_step") or names[0],
        final=executor.get("final_step"),
        on_failure=executor.get("on_failure"),
        on_cancel=executor.get("on_cancel"),
        no_next_is_error=bool(executor.get("no_next_is_error")),
        failure_mode=(policy.get("failure") or {}).get("mode"),
        pending_tokens=policy.get("pending_tokens") or "wait",
        inline_bytes_max=limit if isinstance(limit, int) else INLINE_BYTES_MAX,
        has_lifetimes=declared(body),
    )


class _Loader:
    def __init__(self, executor: dict[str, Value], workbook: dict[str, Value], steps: frozenset[str]) -> None:
        self.executor, self.workbook, self.steps = executor, workbook, steps

    def step(self, body: dict[str, Value], index: int) -> Step:
        name, spec = body["step"], body.get("spec") or {}
        policy = spec.get("policy") or {}
        admit = policy.get("admit") or {}
        lifecycle = policy.get("lifecycle") or {}
        where = f"step {name!r}"
        loop = _loop(body["loop"], where) if "loop" in body else None
        failure_mode = (policy.get("failure") or {}).get("mode")
        if loop is not None:
            loop.best_effort = failure_mode == "best_effort"
        loop_spec = (body.get("loop") or {}).get("spec")
        tasks = tuple(
            self.task(task, position, where, (spec, loop_spec))
            for position, task in enumerate(body.get("tool") or ())
        )
        router = body.get("next")
        arcs = tuple(
            _arc(arc, f"{where}, next.arcs[{i}]") for i, arc in enumerate((router or {}).get("arcs") or ())
        )
        inclusive = ((router or {}).get("spec") or {}).get("mode") == "inclusive"
        for arc in arcs:
            arc.needs = needs_of(arc.args.uses, steps=self.steps, tasks=())
            arc.told = routed(name, inclusive, [arc.step])
        set_ctx = _tree(body.get("set_ctx"), f"{where}, set")
        routing = [*(use for arc in arcs for use in _arc_uses(arc)), *(set_ctx.uses if set_ctx else ())]
        uses = [use for task in tasks for use in task.uses]
        args = _tree(body.get("args"), f"{where}, args")
        names = [task.name for task in tasks]
        needs = needs_of(uses, steps=self.steps, tasks=names)
        single = tasks[0] if len(tasks) == 1 and needs.keychain == [] else None
        alone = single is not None and single.only_waits
        reads_iter = any(name not in _ROUTED for name, _ in routing)
        return Step(
            name=name,
            index=index,
            told=StepTold(
                admitted={"data": {"allow": True}, "step": name, "type": "policy.admit.evaluated"},
                started={"step": name, "type": "step.started"},
                done={"step": name, "type": "step.done" if loop is None else "loop.done"},
            ),
            tasks=tasks,
            labels={task.name: position for position, task in enumerate(tasks)},
            admit=tuple(
                _rule(rule, f"{where}, spec.policy.admit.rules[{i}]") for i, rule in enumerate(admit["rules"])
            )
            if "rules" in admit
            else None,
            on_deny=admit.get("on_deny") or "pending",
            once=bool(admit.get("once")),
            join=_join(admit["join"], where) if admit.get("join") is not None else None,
            timeout_ns=_seconds(lifecycle.get("timeout_s")),
            deadline_ns=_seconds(lifecycle.get("deadline_s")),
            failure_mode=failure_mode,
            loop=loop,
            args=args,
            set_ctx=set_ctx,
            routed=router is not None,
            inclusive=inclusive,
            pool=next((str(task.spec["pool"]) for task in tasks if task.spec.get("pool")), ""),
            arcs=arcs,
            needs=needs,
            item_needs=needs_of([*uses, *(args.uses if args else ())], steps=self.steps, tasks=names),
            later=self.steps.union(names),
            reads_output=any(name == "output" for name, _ in routing),
            reads_iter=reads_iter,
            per_item=loop is not None and args is not None,
            templated=set_ctx is not None or any(arc.is_templated for arc in arcs),
            only_waits=alone and (loop is None or (args is None and not loop.local)),
            is_plain=single is not None and single.is_plain and (loop is not None or not reads_iter),
        )

    def task(
        self, body: dict[str, Value], index: int, where: str, outer: tuple[dict[str, Value] | None, ...]
    ) -> Task:
        spec = body.get("spec") or {}
        called = body["kind"] == "workbook"
        if called:
            entry = self.workbook[body["task"]]
            own = {key: value for key, value in body.items() if key not in ("kind", "task", "spec")}
            spec = merge(entry.get("spec") or {}, spec)
            body = {**merge({k: v for k, v in entry.items() if k != "spec"}, own), "kind": entry["kind"]}
        kind, name = body["kind"], body["name"]
        place = f"{where}, task {name!r}"
        verbatim_keys = _VERBATIM.get(kind, ())
        effective = effective_spec(kind, self.executor, *outer, spec)
        config = {
            key: value for key, value in body.items() if key not in _OWN_KEYS and key not in verbatim_keys
        }
        config["spec"] = effective
        called_with = Tree(config.pop("args", {}), f"{place}.args") if called else None
        tree = Tree(config, place)
        policy = spec.get("policy")
        rules = None
        if policy is not None:
            rules = tuple(
                _rule(rule, f"{place}, spec.policy.rules[{i}]")
                for i, rule in enumerate(policy.get("rules") or ())
            )
        task = Task(
            name=name,
            kind=kind,
            index=index,
            config=tree,
            verbatim={key: body[key] for key in verbatim_keys if key in body},
            spec=effective,
            rules=rules,
            set_ctx=_tree(body.get("set_ctx"), f"{place}, set_ctx"),
            set_iter=_tree(body.get("set_iter"), f"{place}, set_iter"),
            loop=_loop(body["loop"], place) if "loop" in body else None,
            where=place,
            uses=(),
            view={"name": name, "kind": kind, "index": index},
            called_with=called_with,
        )
        task.uses = tuple(dict.fromkeys(_task_uses(task)))
        task.reads_output = any(name == "output" for name, _ in task.uses)
        task.sets = task.set_ctx is not None or task.set_iter is not None
        return task


def _task_uses(task: Task) -> Iterable[Use]:
    yield from task.config.uses
    for tree in (task.set_ctx, task.set_iter, task.called_with):
        if tree is not None:
            yield from tree.uses
    if task.loop is not None:
        yield from task.loop.source.uses
    for rule in task.rules or ():
        if isinstance(rule.when, PlacedTemplate):
            yield from rule.when.uses
        for tree in (rule.set_iter, rule.set_ctx, rule.attempts, rule.delay, rule.max_delay):
            if tree is not None:
                yield from tree.uses


def _arc_uses(arc: Arc) -> Iterable[Use]:
    if isinstance(arc.when, PlacedTemplate):
        yield from arc.when.uses
    yield from arc.args.uses
    if arc.set_ctx is not None:
        yield from arc.set_ctx.uses


def _tree(value: Value, where: str) -> Tree | None:
    return None if value is None else Tree(value, where)


def _condition(value: Value, where: str) -> PlacedTemplate | bool:
    return PlacedTemplate(value, where) if is_template(value) else bool(value)


def _rule(body: dict[str, Value], where: str) -> Rule:
    otherwise = "else" in body
    then = body["else"]["then"] if otherwise else body["then"]
    return Rule(
        when=None if otherwise else _condition(body["when"], f"{where}.when"),
        do=then.get("do", ""),
        then=then,
        to=then.get("to"),
        set_iter=_tree(then.get("set_iter"), f"{where}.then.set_iter"),
        set_ctx=_tree(then.get("set_ctx"), f"{where}.then.set_ctx"),
        attempts=_tree(then.get("attempts"), f"{where}.then.attempts"),
        delay=_tree(then.get("delay"), f"{where}.then.delay"),
        max_delay=_tree(then.get("max_delay"), f"{where}.then.max_delay"),
    )


def _arc(body: dict[str, Value], where: str) -> Arc:
    return Arc(
        step=body["step"],
        when=_condition(body["when"], f"{where}.when") if "when" in body else None,
        args=Tree(body.get("args") or {}, f"{where}.args"),
        set_ctx=_tree(body.get("set_ctx"), f"{where}.set"),
    )


def _loop(body: dict[str, Value], where: str) -> Loop:
    spec = body.get("spec") or {}
    policy = spec.get("policy") or {}
    source = body["in"]
    limit = spec.get("max_in_flight", policy.get("max_in_flight"))
    mode = spec.get("mode") or policy.get("mode") or "sequential"
    return Loop(
        source=Tree(source, f"{where}, loop.in"),
        field=PlacedTemplate(source, f"{where}, loop.in") if is_template(source) else None,
        iterator=body["iterator"],
        mode="parallel" if mode in ("parallel", "cursor") else "sequential",
        max_in_flight=_tree(limit, f"{where}, loop.spec.max_in_flight"),
        local=policy.get("exec") == "local",
        conflicts=policy.get("ctx") or "reject",
        reduce=policy.get("reduce"),
    )


def _join(body: dict[str, Value], where: str) -> Join:
    return Join(
        sources=tuple(body.get("from") or ()),
        mode=body.get("mode") or "all",
        count=body.get("count") or 1,
        key=Tree(body.get("key"), f"{where}, spec.policy.admit.join.key"),
    )


def _seconds(value: float | None) -> int | None:
    return None if value is None else int(value * 10**9)
