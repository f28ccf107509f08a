"""Templates as Jinja reads them: what they name, and what they become. It is loaded with the first that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jinja2 import TemplateError, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from treadle.kernel.errors import ExpressionError

from .absent import Chain
from .environment import ENV
from .rewriting import compiled
from .short_forms import FUNCTIONS, OBJECTS, Reading, Use, key_of
from .shortcuts import shortcut, text_shortcut

_EXCUSED: Final = frozenset({"default", "d"})


def parsed(text: str, *, shortcuts: bool = True) -> Reading:
    try:
        return _parsed(text, shortcuts=shortcuts)
    except TemplateSyntaxError as error:
        raise ExpressionError(f"not a valid template: {error.message}", code="TEMPLATE_SYNTAX") from error
    except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
        # Python refuses what Jinja makes of it: more than 20 blocks inside one another, too many brackets.
        raise ExpressionError(
            "not a valid template: it nests too deeply, or uses what templates have not",
            code="TEMPLATE_SYNTAX",
        ) from error


def _parsed(text: str, *, shortcuts: bool) -> Reading:
    tree = ENV.parse(text.strip())
    expression = _single(tree)
    if expression is None:
        tree = ENV.parse(text)
    names = sorted(find_undeclared_variables(tree) - FUNCTIONS)
    path, fast = _path(expression), None
    # What the tree names is looked for before it is compiled, which changes it.
    uses, chains = tuple(_uses(tree, frozenset(names))), tuple(dict.fromkeys(chains_of(tree)))
    if shortcuts and expression is not None:
        fast = shortcut(expression, ENV)
    elif shortcuts and len(tree.body) == 1 and isinstance(tree.body[0], nodes.Output):
        fast = text_shortcut(tree.body[0].nodes, ENV)
    return Reading(
        native=expression is not None,
        path=path,
        names_only=path is not None or _is_defaulted(expression),
        names=tuple(names),
        uses=uses,
        chains=chains,
        fast=fast,
        slow=compiled(tree, expression) if fast is None else None,
    )


def _single(tree: nodes.Template) -> nodes.Expr | None:
    if len(tree.body) == 1 and isinstance(tree.body[0], nodes.Output) and len(tree.body[0].nodes) == 1:
        only = tree.body[0].nodes[0]
        return None if isinstance(only, nodes.TemplateData) else only
    return None


def _path(node: nodes.Expr | None) -> tuple[str, ...] | None:
    if isinstance(node, nodes.Name):
        return (node.name,)
    if isinstance(node, nodes.Getattr) and (outer := _path(node.node)) is not None:
        return (*outer, node.attr)
    return None


def _is_defaulted(node: nodes.Expr | None) -> bool:
    """`workload.page | default(1)`"""
    if not isinstance(node, nodes.Filter) or node.name not in ("default", "d") or node.kwargs:
        return False
    return _path(node.node) is not None and all(isinstance(given, nodes.Const) for given in node.args)


def _uses(node: nodes.Node, undeclared: frozenset[str]) -> Iterator[Use]:
    """Which names a tree reads, each with the first key below it where that is written out."""
    match node:
        case nodes.Name(name=name) if name in undeclared:
            yield (name, None)
        case nodes.Getattr(node=nodes.Name(name=name), attr=key) if name in undeclared:
            yield (name, key_of(key))
        case nodes.Getitem(node=nodes.Name(name=name), arg=nodes.Const(value=str() as key)) if (
            name in undeclared
        ):
            yield (name, key)
        case _:
            for child in node.iter_child_nodes():
                yield from _uses(child, undeclared)


def chains_of(node: nodes.Node) -> Iterator[Chain]:
    """The chains of names that a tree reads, but for those it has an answer for."""
    if isinstance(node, nodes.Filter) and node.name in _EXCUSED and node.node is not None:
        for argument in node.args:
            yield from chains_of(argument)
        return
    if isinstance(node, nodes.Test):
        return
    if isinstance(node, nodes.Name | nodes.Getattr | nodes.Getitem) and (chain := chain_of(node)) is not None:
        yield chain
        return
    for child in node.iter_child_nodes():
        yield from chains_of(child)


def chain_of(node: nodes.Node) -> Chain | None:
    outer: Chain | None
    match node:
        case nodes.Name(name=name):
            return (name,)
        case nodes.Getattr(node=inner, attr=key) if (outer := chain_of(inner)) is not None:
            return (*outer, key)
        case nodes.Getitem(node=inner, arg=nodes.Const(value=str() | int() as key)) if (
            outer := chain_of(inner)
        ) is not None:
            return (*outer, str(key))
    return None


def without_value(text: str) -> str | None:
    """What a valid template would write that has no value, as far as its text alone shows it."""
    tree = ENV.parse(text)
    functions = FUNCTIONS | {macro.name for macro in tree.find_all(nodes.Macro)}
    for output in tree.find_all(nodes.Output):
        for part in output.nodes:
            match part:
                case nodes.Name(name=name) if name in functions:
                    return f"{name} is a function: call it, {name}(…)"
                case nodes.Call(node=nodes.Name(name=name)) if name in OBJECTS:
                    return f"{name}(…) is no value: set it to a name, and write what it gives"
    return None
