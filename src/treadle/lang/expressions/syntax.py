"""Expressions as text and as trees, and the way between the two.

A tree is a canonical value, so a definition that holds trees is data and has one digest:

    ["lit", v]  ["path", root, key…]  ["get", base, key]  ["list", t…]  ["object", [k, t]…]
    ["call", function, t…]  ["and", t…]  ["or", t…]  ["not", t]  ["neg", t]  [operator, left, right]

`parse` and `unparse` are inverse on trees, which is what makes exports exact: `read_tree` accepts a
tree from outside only if its text gives the same tree again. Nothing here evaluates, and nothing
here knows which roots or functions exist (see `functions`, and whoever reads a document).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn, TypeAlias

from treadle.kernel.errors import ExpressionError
from treadle.kernel.limits import INT_MAX, INT_MIN
from treadle.kernel.values import Value

Tree: TypeAlias = list[Any]

EXPRESSION_CHARS_MAX: Final = 10_000
EXPRESSION_DEPTH_MAX: Final = 48

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<op>==|!=|<=|>=|[-+*/%<>()\[\]{},.:])
  | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "/": "/"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)

KEYWORDS: Final = frozenset({"and", "or", "not", "in", "true", "false", "null"})
_CONSTANTS: Final[dict[str, Value]] = {"true": True, "false": False, "null": None}
_BINDING: Final = {
    **dict.fromkeys(("or",), 1),
    **dict.fromkeys(("and",), 2),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 4),
    **dict.fromkeys(("+", "-"), 5),
    **dict.fromkeys(("*", "/", "%"), 6),
}
_NOT, _COMPARISON, _UNARY, _POSTFIX = 3, 4, 7, 8
OPERATORS: Final = frozenset(_BINDING) - {"and", "or"}


def is_name(text: str) -> bool:
    """Whether a text can stand after a dot."""
    return bool(_NAME.match(text)) and text not in KEYWORDS


def parse(text: str) -> Tree:
    """The tree of an expression. Raises ExpressionError with the column of the mistake."""
    return _Parser(text).parse()


def read_tree(value: Value) -> Tree:
    """A tree that came from outside (a builder, an exported canonical form), checked."""
    try:
        tree = parse(unparse(value))
    except (TypeError, ValueError, KeyError, IndexError, RecursionError) as error:
        raise ExpressionError("this is not an expression tree", code="EXPRESSION_SYNTAX") from error
    if not _same(tree, value):
        raise ExpressionError("this is not a canonical expression tree", code="EXPRESSION_SYNTAX")
    return tree


def _same(left: Value, right: Value) -> bool:
    """Equality that tells 1, 1.0 and true apart, as digests do."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0
        self.start = 0
        self.kind = ""
        self.token = ""
        self.at = 0
        if len(text) > EXPRESSION_CHARS_MAX:
            self.fail(f"the expression is longer than {EXPRESSION_CHARS_MAX} characters")
        self.advance()

    def fail(self, message: str) -> NoReturn:
        raise ExpressionError(
            f"{message} (column {self.start + 1} of {self.text[:200]!r})",
            code="EXPRESSION_SYNTAX",
            details={"expression": self.text, "column": self.start + 1},
        )

    def advance(self) -> str:
        """Steps over the current token and gives it back."""
        taken = self.token
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            self.start = len(self.text) - len(self.text[self.at :].lstrip(" \t\n\r\f\v"))
            self.fail(f"{self.text[self.start]!r} is not expected here")
        self.kind = match.lastgroup
        self.token = match[match.lastgroup]
        self.start = match.start(match.lastgroup)
        self.at = match.end()
        return taken

    def at_op(self, *tokens: str) -> bool:
        return self.kind == "op" and self.token in tokens

    def at_word(self, word: str) -> bool:
        return self.kind == "name" and self.token == word

    def expect(self, token: str) -> None:
        if not self.at_op(token):
            self.fail(f"{token!r} is missing")
        self.advance()

    def parse(self) -> Tree:
        tree = self.binary(0)
        if self.kind != "end":
            self.fail(f"{self.token!r} is not expected here")
        if _depth(tree) > EXPRESSION_DEPTH_MAX:
            self.fail(f"the expression is nested deeper than {EXPRESSION_DEPTH_MAX} levels")
        return tree

    def operator(self) -> str | None:
        """The binary operator that stands here, `not in` included."""
        if self.kind == "op" or self.kind == "name":
            if self.token in _BINDING:
                return self.token
            if self.at_word("not"):
                following = _TOKEN.match(self.text, self.at)
                if following and following["name"] == "in":
                    return "not in"
        return None

    def binary(self, floor: int) -> Tree:
        left = self.unary(floor)
        while (operator := self.operator()) is not None:
            binding = _COMPARISON if operator == "not in" else _BINDING[operator]
            if binding <= floor:
                break
            self.advance()
            if operator == "not in":
                self.advance()
            right = self.binary(binding)
            if binding == _COMPARISON and (again := self.operator()) and _BINDING.get(again, 4) == 4:
                self.fail("comparisons do not chain; join them with `and`")
            left = ["not", ["in", left, right]] if operator == "not in" else _node(operator, left, right)
        return left

    def unary(self, floor: int) -> Tree:
        self.depth += 1
        if self.depth > EXPRESSION_DEPTH_MAX:
            self.fail(f"the expression is nested deeper than {EXPRESSION_DEPTH_MAX} levels")
        if self.at_word("not"):
            if floor >= _COMPARISON:
                self.fail("put `not …` in parentheses here")
            self.advance()
            tree: Tree = ["not", self.binary(_NOT - 1 if floor < _NOT else floor)]
        elif self.at_op("-"):
            self.advance()
            tree = _negated(self.unary(_UNARY))
        else:
            tree = self.postfix()
        self.depth -= 1
        return tree

    def postfix(self) -> Tree:
        tree = self.primary()
        while self.at_op(".", "["):
            if self.advance() == ".":
                if self.kind != "name":
                    self.fail("a name is missing after '.'")
                key: Tree = ["lit", self.advance()]
            else:
                key = self.binary(0)
                self.expect("]")
            tree = item_of(tree, key)
        return tree

    def primary(self) -> Tree:
        if self.kind == "number":
            return ["lit", self.number()]
        if self.kind == "text":
            return ["lit", self.string()]
        if self.kind == "name":
            return self.name()
        if self.at_op("("):
            self.advance()
            tree = self.binary(0)
            self.expect(")")
            return tree
        if self.at_op("["):
            self.advance()
            return ["list", *self.items("]")]
        if self.at_op("{"):
            self.advance()
            return self.object()
        return self.fail(
            "the expression ends too early" if self.kind == "end" else f"{self.token!r} is not expected here"
        )

    def name(self) -> Tree:
        if self.token in _CONSTANTS:
            return ["lit", _CONSTANTS[self.advance()]]
        if self.token in KEYWORDS:
            self.fail(f"{self.token!r} is not expected here")
        name = self.advance()
        if self.at_op("("):
            self.advance()
            return ["call", name, *self.items(")")]
        return ["path", name]

    def items(self, close: str) -> list[Tree]:
        out: list[Tree] = []
        while not self.at_op(close):
            out.append(self.binary(0))
            if not self.at_op(close):
                self.expect(",")
        self.advance()
        return out

    def object(self) -> Tree:
        pairs: dict[str, Tree] = {}
        while not self.at_op("}"):
            if self.kind not in ("name", "text"):
                self.fail("a key of an object must be a name or a text")
            key = self.string() if self.kind == "text" else self.advance()
            if key in pairs:
                self.fail(f"the key {key!r} stands twice")
            self.expect(":")
            pairs[key] = self.binary(0)
            if not self.at_op("}"):
                self.expect(",")
        self.advance()
        return ["object", *([key, pairs[key]] for key in sorted(pairs))]

    def number(self) -> int | float:
        text = self.token
        whole = text.isdigit()
        too_large = int(text.lstrip("0")[:21] or 0) > INT_MAX if whole else float(text) == float("inf")
        if too_large:
            self.fail(f"{text[:40]} is too large a number")
        value: int | float = int(text) if whole else float(text)
        self.advance()
        return value

    def string(self) -> str:
        def plain(match: re.Match[str]) -> str:
            code = match[1]
            if len(code) > 1:
                return chr(int(code[1:], 16))
            if code not in _ESCAPES:
                self.fail(f"\\{code} is not an escape; write \\\\ for a backslash")
            return _ESCAPES[code]

        text = _ESCAPE.sub(plain, self.token[1:-1])
        if any("\ud800" <= char <= "\udfff" for char in text):
            self.fail("a lone surrogate is not text")
        self.advance()
        return text


def _node(operator: str, left: Tree, right: Tree) -> Tree:
    if operator in ("and", "or"):
        return [operator, *_flat(operator, left), *_flat(operator, right)]
    return [operator, left, right]


def _flat(operator: str, tree: Tree) -> list[Tree]:
    return tree[1:] if tree[0] == operator else [tree]


def _negated(tree: Tree) -> Tree:
    if tree[0] == "lit":
        number = tree[1]
        if type(number) is float or (type(number) is int and -number >= INT_MIN):
            return ["lit", -number + 0]
    return ["neg", tree]


def item_of(base: Tree, key: Tree) -> Tree:
    """`base.key` or `base[key]`; constant keys of a path become part of the path."""
    constant = key[0] == "lit" and type(key[1]) in (str, int)
    if constant and base[0] == "path":
        return [*base, key[1]]
    return ["get", base, key]


def joined(operator: str, left: Tree, right: Tree) -> Tree:
    """`left operator right` as the parser would build it."""
    return _node(operator, left, right)


def negated(tree: Tree) -> Tree:
    return _negated(tree)


def _depth(tree: Tree) -> int:
    """Levels of a tree, found without recursion: `1+1+1…` is as deep as it is long."""
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in children(node)]
    return deepest


def children(tree: Tree) -> list[Tree]:
    """The direct parts of a tree that are expressions themselves."""
    match tree[0]:
        case "lit" | "path":
            return []
        case "object":
            return [pair[1] for pair in tree[1:]]
        case "call":
            return tree[2:]
        case _:
            return tree[1:]


def walk(tree: Tree) -> list[Tree]:
    """The tree and everything in it, outermost first."""
    found = [tree]
    for node in found:
        found.extend(children(node))
    return found


# --- trees to text --------------------------------------------------------------------------------


def unparse(tree: Tree) -> str:
    """The text of a tree, in the one form that messages and exports use."""
    return _text(tree, 0)


def literal_text(value: Value) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        return text_literal(value)
    raise TypeError(f"{type(value).__name__} is not a literal")


def text_literal(text: str) -> str:
    return "'" + _SPECIAL.sub(_escaped, text) + "'"


_SPECIAL = re.compile(r"[\\'\x00-\x1f\x7f]")
_SHORT: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", "'": "\\'"}


def _escaped(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or f"\\u{ord(match[0]):04x}"


def _text(tree: Tree, floor: int) -> str:
    head = tree[0]
    match head:
        case "lit":
            text, level = literal_text(tree[1]), _UNARY if _is_negative(tree[1]) else _POSTFIX
        case "path":
            text, level = str(tree[1]) + "".join(map(_key_text, tree[2:])), _POSTFIX
        case "get":
            inner = _key_text(tree[2][1]) if _is_key(tree[2]) else f"[{_text(tree[2], 0)}]"
            text, level = _text(tree[1], _POSTFIX) + inner, _POSTFIX
        case "list":
            text, level = "[" + ", ".join(_text(item, 0) for item in tree[1:]) + "]", _POSTFIX
        case "object":
            pairs = (f"{k if is_name(k) else text_literal(k)}: {_text(v, 0)}" for k, v in tree[1:])
            text, level = "{" + ", ".join(pairs) + "}", _POSTFIX
        case "call":
            text, level = f"{tree[1]}({', '.join(_text(item, 0) for item in tree[2:])})", _POSTFIX
        case "not":
            text, level = f"not {_text(tree[1], _NOT)}", _NOT
        case "neg":
            text, level = f"-{_text(tree[1], _UNARY)}", _UNARY
        case "and" | "or":
            level = _BINDING[head]
            text = f" {head} ".join(_text(item, level + 1) for item in tree[1:])
        case _:
            level = _BINDING[head]
            # Left-associative; comparisons do not associate at all.
            left = _text(tree[1], level + 1 if level == _COMPARISON else level)
            text = f"{left} {head} {_text(tree[2], level + 1)}"
    return f"({text})" if level < floor else text


def _is_negative(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < 0


def _is_key(tree: Tree) -> bool:
    return tree[0] == "lit" and isinstance(tree[1], str)


def _key_text(key: Value) -> str:
    if isinstance(key, str):
        return f".{key}" if _NAME.match(key) else f"[{text_literal(key)}]"
    return f"[{literal_text(key)}]"
