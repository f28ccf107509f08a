"""Closures for the expressions that playbooks are full of: `event.name == 'step.done'`,
`iter.page | default(1)`, `outcome.http.status in [429, 500]`.

`shortcut` walks Jinja's own syntax tree, so both ways read the same language; where a node is not
one of the few below it gives up and the expression is compiled by Jinja. A test evaluates random
expressions both ways and compares.
"""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, nodes

from .closures import Shortcut, both, compared, constant, either, inner, keyed, named
from .handles import TemplateScope, bare
from .operations import binary
from .texts import text_of

# Beyond so many nodes an expression is compiled by Jinja, which counts what it does.
NODES_MAX: Final = 100

FILTERS: Final = frozenset({"default", "d", "int", "float", "length", "count"})
_TESTS: Final = frozenset({"defined", "undefined", "none"})


class _GiveUp(Exception):
    """The tree holds a node that only Jinja compiles."""


def shortcut(tree: nodes.Expr, env: Environment) -> Shortcut | None:
    try:
        return _Walk(env).expr(tree)
    except _GiveUp:
        return None


def text_shortcut(parts: list[nodes.Expr], env: Environment) -> Shortcut | None:
    """Text with simple expressions in it: `{{ workload.url }}/items/{{ iter.id }}`."""
    walk = _Walk(env)
    try:
        made = [p.data if isinstance(p, nodes.TemplateData) else walk.expr(p) for p in parts]
    except _GiveUp:
        return None
    return lambda scope: "".join([p if isinstance(p, str) else text_of(p(scope)) for p in made])


class _Walk:
    def __init__(self, env: Environment) -> None:
        self.env = env
        self.nodes = 0

    def expr(self, node: nodes.Node) -> Shortcut:
        self.nodes += 1
        if self.nodes > NODES_MAX:
            raise _GiveUp
        make = getattr(self, f"_{type(node).__name__.lower()}", None)
        if make is None:
            raise _GiveUp
        made: Shortcut = make(node)
        return made

    def _const(self, node: nodes.Const) -> Shortcut:
        return constant(node.value)

    def _name(self, node: nodes.Name) -> Shortcut:
        if node.name in self.env.globals:
            raise _GiveUp
        return named(node.name)

    def _getattr(self, node: nodes.Getattr) -> Shortcut:
        root = node.node.name if isinstance(node.node, nodes.Name) else None
        return keyed(self.expr(node.node), node.attr, root)

    def _getitem(self, node: nodes.Getitem) -> Shortcut:
        if isinstance(node.arg, nodes.Slice):
            raise _GiveUp
        target, key, getitem = self.expr(node.node), self.expr(node.arg), self.env.getitem
        return lambda scope: getitem(target(scope), key(scope))

    def _compare(self, node: nodes.Compare) -> Shortcut:
        if len(node.ops) != 1:
            raise _GiveUp
        return compared(node.ops[0].op, self.expr(node.expr), self.expr(node.ops[0].expr))

    def _and(self, node: nodes.And) -> Shortcut:
        return both(self.expr(node.left), self.expr(node.right))

    def _or(self, node: nodes.Or) -> Shortcut:
        return either(self.expr(node.left), self.expr(node.right))

    def _not(self, node: nodes.Not) -> Shortcut:
        inner = self.expr(node.node)
        return lambda scope: not inner(scope)

    def _neg(self, node: nodes.Neg) -> Shortcut:
        inner = self.expr(node.node)
        return lambda scope: -bare(inner(scope))

    def _add(self, node: nodes.Add) -> Shortcut:
        left, right = self.expr(node.left), self.expr(node.right)

        def add(scope: TemplateScope) -> object:
            a, b = left(scope), right(scope)
            return a + b if type(a) is int and type(b) is int else binary("+", a, b)

        return add

    def _sub(self, node: nodes.Sub) -> Shortcut:
        left, right = self.expr(node.left), self.expr(node.right)
        return lambda scope: binary("-", left(scope), right(scope))

    def _condexpr(self, node: nodes.CondExpr) -> Shortcut:
        if node.expr2 is None:
            raise _GiveUp
        test, yes, no = self.expr(node.test), self.expr(node.expr1), self.expr(node.expr2)
        return lambda scope: yes(scope) if test(scope) else no(scope)

    def _list(self, node: nodes.List) -> Shortcut:
        items = [self.expr(item) for item in node.items]
        return lambda scope: [item(scope) for item in items]

    def _dict(self, node: nodes.Dict) -> Shortcut:
        pairs = [(self.expr(pair.key), self.expr(pair.value)) for pair in node.items]
        return lambda scope: {key(scope): value(scope) for key, value in pairs}

    def _filter(self, node: nodes.Filter) -> Shortcut:
        if node.node is None or node.name not in FILTERS or node.kwargs or node.dyn_args or node.dyn_kwargs:
            raise _GiveUp
        apply, target = self.env.filters[node.name], self.expr(node.node)
        args = [self.expr(argument) for argument in node.args]
        fixed = [argument.value for argument in node.args if isinstance(argument, nodes.Const)]
        if len(fixed) < len(args):
            return lambda scope: apply(inner(target(scope)), *[argument(scope) for argument in args])
        return lambda scope: apply(inner(target(scope)), *fixed)

    def _test(self, node: nodes.Test) -> Shortcut:
        if node.name not in _TESTS or node.args:
            raise _GiveUp
        tests: dict[str, Any] = self.env.tests
        check, target = tests[node.name], self.expr(node.node)
        return lambda scope: check(target(scope))
