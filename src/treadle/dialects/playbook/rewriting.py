"""Templates that Jinja compiles: rewritten first, so that nothing in them goes uncounted (`bounds.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jinja2 import nodes
from jinja2.environment import TemplateExpression
from jinja2.visitor import NodeTransformer

from .bounds import check_size
from .environment import ENV


def compiled(tree: nodes.Template, expression: nodes.Expr | None) -> Callable[[dict[str, object]], object]:
    tree = _Rewriting().visit(tree)
    if expression is not None:
        output = tree.body[0]
        assert isinstance(output, nodes.Output)
        assign = nodes.Assign(nodes.Name("result", "store", lineno=1), output.nodes[0], lineno=1)
        body = nodes.Template([assign], lineno=1)
        body.set_environment(ENV)
        evaluate = TemplateExpression(ENV.from_string(body), undefined_to_none=False)
        return lambda variables: evaluate(variables)
    template = ENV.from_string(tree)

    def render(variables: dict[str, object]) -> str:
        parts, size = [], 0
        for part in template.generate(variables):
            size += len(part)
            check_size(size)
            parts.append(part)
        return "".join(parts)

    return render


class _Rewriting(NodeTransformer):
    """Has what repeats, searches, compares, cuts and joins go through functions that count it, and a dot
    before a call ask for a method. All else that a dot asks for is a key."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        weight = _weight(node)
        self.generic_visit(node)
        node.iter = _call("count", node.iter, nodes.Const(weight, lineno=node.lineno))
        if node.recursive:
            node.body.insert(0, _passing(weight, node))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._entered(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._entered(node)

    def _entered(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        weight = _weight(node)
        self.generic_visit(node)
        node.body.insert(0, _passing(weight, node))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if len(node.ops) == 1:
            only = node.ops[0]
            return _call("compare", nodes.Const(only.op, lineno=node.lineno), node.expr, only.expr)
        if any(operand.op in ("in", "notin") for operand in node.ops):
            node.expr = _call("searched", node.expr)
        for operand in node.ops:
            operand.expr = _call("searched", operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concat", *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _call("sliced", node.node)
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.node, nodes.Getattr):
            method = nodes.Const(node.node.attr, lineno=node.lineno)
            node.node = _call("method", node.node.node, method)
        return node


# What has a body that may be done many times, and counts it by itself.
_REPEATED: Final = (nodes.For, nodes.Macro, nodes.CallBlock)


def _weight(node: nodes.Node) -> int:
    """What one turn of a loop, or one call of a macro, is counted as: itself and all that stands in it, but not in
    the loops and macros in it."""
    weight, open_ = 1, [*node.iter_child_nodes(exclude=("iter", "target"))]
    while open_:
        inner = open_.pop()
        weight += 1
        within = ("body", "test") if isinstance(inner, _REPEATED) else ()
        open_.extend(inner.iter_child_nodes(exclude=within))
    return weight


def _passing(weight: int, node: nodes.Node) -> nodes.ExprStmt:
    return nodes.ExprStmt(_call("passed", nodes.Const(weight, lineno=node.lineno)), lineno=node.lineno)


def _call(name: str, *arguments: nodes.Node) -> nodes.Call:
    line = arguments[0].lineno
    function = nodes.EnvironmentAttribute(f"treadle_{name}", lineno=line)
    made = nodes.Call(function, list(arguments), [], None, None, lineno=line)
    made.set_environment(ENV)
    return made
