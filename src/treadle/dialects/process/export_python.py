"""A canonical definition as Python source that builds it again."""

from __future__ import annotations

import keyword
import re
from typing import Final

from treadle.kernel.values import Value
from treadle.lang.definition import STANDING
from treadle.lang.expressions.closures import is_expression
from treadle.lang.expressions.functions import FUNCTIONS
from treadle.lang.expressions.syntax import OPERATORS, Tree

from .parts import ROOTS
from .program import kind_of
from .terms import PYTHON_NAMES

RETENTION_DEFAULT: Final = "30d"
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=")
# Names that p has itself; a loop of that name is read as p["name"].
_BUILDER_NAMES: Final = frozenset(
    [
        "named",
        "compensate",
        "set",
        "reference",
        "ask",
        "declare",
        "call",
        "wait",
        "await_signal",
        "child",
        "continue_with",
        "fork",
        "complete",
        "fail",
        "when",
        "otherwise",
        "each",
        "while_",
        "until",
    ]
)
_LINE_CHARS_MAX: Final = 100


def python_source(body: dict[str, Value]) -> str:
    return _Writer(body).source()


def _python_name(function: str) -> str:
    return PYTHON_NAMES.get(function, function)


def _identifier(text: str, taken: dict[str, None]) -> str:
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower() or "unnamed"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"_{name}"
    while name in taken:
        name += "_"
    taken[name] = None
    return name


def _keywords(arguments: dict[str, str]) -> list[str]:
    """Keyword arguments; those that Python cannot spell go in a mapping."""
    odd = [key for key in arguments if not key.isidentifier() or keyword.iskeyword(key)]
    plain = [f"{key}={text}" for key, text in arguments.items() if key not in odd]
    return [*plain, "**{" + ", ".join(f"{key!r}: {arguments[key]}" for key in odd) + "}"] if odd else plain


class _Writer:
    def __init__(self, body: dict[str, Value]) -> None:
        self.body = body
        self.lines: list[str] = []
        self.indent = 0
        self.imports: dict[str, None] = {"process": None}
        names = dict.fromkeys(
            (
                *ROOTS,
                *map(_python_name, FUNCTIONS),
                "p",
                "process",
                "task",
                "lit",
                "var",
                "in_",
            )
        )
        self.tasks = {task: _identifier(task, names) for task in sorted(body["tasks"])}
        self.name = _identifier(body["name"], names)
        self.helpers = 0
        self.asked: dict[str, None] = {}
        self.in_task = False

    def write(self, line: str) -> None:
        self.lines.append(("    " * self.indent + line).rstrip())

    def source(self) -> str:
        for task in self.tasks:
            self.task(task)
        at = len(self.lines)
        self.write(f"def {self.name}(p):")
        self.block(self.body["steps"])
        for index, line in enumerate(self.head()):
            self.lines.insert(at + index, line)
        imports = ", ".join(sorted(self.imports))
        return f"from treadle.process import {imports}\n\n" + "\n".join(self.lines) + "\n"

    def head(self) -> list[str]:
        body = self.body
        arguments = [repr(body["name"])]
        for field in ("version", "title", "description"):
            if field in body:
                arguments.append(f"{field}={body[field]!r}")
        if body["retention"] != RETENTION_DEFAULT:
            arguments.append(f"retention={body['retention']!r}")
        if "start" in body:
            arguments.append(f"start={_data(body['start']['schema'])}")
        arguments += [f"{field}={_data(body[field])}" for field in STANDING if field in body]
        if unasked := [self.tasks[task] for task in self.tasks if task not in self.asked]:
            arguments.append(f"tasks=[{', '.join(unasked)}]")
        return ["", f"@process({', '.join(arguments)})"]

    def task(self, name: str) -> None:
        value = self.body["tasks"][name]
        self.imports["task"] = None
        self.in_task = True
        handler = self.functions(value, ("on_timeout",))
        fields = [
            f"{key}={_data(value[key]) if key == 'schema' else self.template(value[key])}"
            for key in sorted(value)
            if key != "on_timeout"
        ]
        self.statement(f"{self.tasks[name]} = task", [repr(name), *fields, *handler])
        self.in_task = False

    # --- steps ---

    def block(self, steps: list[dict[str, Value]]) -> None:
        self.indent += 1
        if not steps:
            self.write("...")
        for step in steps:
            self.step(step)
        self.indent -= 1

    def statement(self, head: str, arguments: list[str], tail: str = "") -> None:
        line = f"{head}({', '.join(arguments)}){tail}"
        if len(line) + 4 * self.indent <= _LINE_CHARS_MAX:
            self.write(line)
            return
        self.write(f"{head}(")
        self.indent += 1
        for argument in arguments:
            self.write(f"{argument},")
        self.indent -= 1
        self.write(f"){tail}")

    def functions(self, value: dict[str, Value], kinds: tuple[str, ...]) -> list[str]:
        """Writes each branch as a function; gives the arguments that pass them."""
        arguments = []
        for kind in kinds:
            if kind in value:
                arguments.append(f"{kind}={self.function(kind, value[kind])}")
        return arguments

    def function(self, what: str, steps: list[dict[str, Value]]) -> str:
        self.helpers += 1
        name = f"{what}_{self.helpers}"
        self.write(f"def {name}(p):")
        self.block(steps)
        self.write("")
        return name

    def step(self, step: dict[str, Value]) -> None:
        kind = kind_of(step)
        value = step[kind]
        p = f"p.named({step['id']!r})" if "id" in step else "p"
        if kind == "if":
            self.statement(f"with {p}.when", [self.template(step["if"])], ":")
            self.block(step["then"])
            if step["else"]:
                self.write("with p.otherwise():")
                self.block(step["else"])
            return
        match kind:
            case "set":
                self.assign(p, value)
            case "task":
                self.asked[value] = None
                self.write(f"{p}.ask({self.tasks[value]})")
            case "compensate":
                self.statement(f"{p}.compensate", [self.function("undo", value)])
            case "repeat":
                self.repeat(p, value)
            case "fork":
                names = {branch["branch"]: self.function(branch["branch"], branch["do"]) for branch in value}
                self.statement(f"{p}.fork", _keywords(names))
            case "wait":
                until = isinstance(value, dict) and "until" in value
                self.write(
                    f"{p}.wait(until={self.template(value['until'])})"
                    if until
                    else f"{p}.wait({self.template(value)})"
                )
            case "fail" if isinstance(value, dict) and not is_expression(value):
                more = [f"{key}={self.template(value[key])}" for key in ("code", "details") if key in value]
                self.statement(f"{p}.fail", [self.template(value["message"]), *more])
            case "call" | "await" | "child" | "continue_with":
                self.fields(p, kind, value, step.get("compensate"))
            case _:
                self.statement(f"{p}.{kind}", [self.template(value)])

    def assign(self, p: str, targets: dict[str, Value]) -> None:
        pairs = sorted(targets.items())
        if len(pairs) == 1:
            self.statement(f"{p}.set", [repr(pairs[0][0]), self.template(pairs[0][1])])
        else:
            inner = ", ".join(f"{target!r}: {self.template(value)}" for target, value in pairs)
            self.statement(f"{p}.set", ["{" + inner + "}"])

    def repeat(self, p: str, value: dict[str, Value]) -> None:
        most = [f"max={value['max']}"] if "max" in value else []
        if "each" in value:
            self.statement(
                f"with {p}.each", [repr(value["each"]), f"in_={self.template(value['in'])}", *most], ":"
            )
        else:
            kind = "while" if "while" in value else "until"
            name = {"while": "while_", "until": "until"}[kind]
            self.statement(f"with {p}.{name}", [self.template(value[kind]), *most], ":")
        self.block(value["do"])

    def fields(self, p: str, kind: str, value: dict[str, Value], undo: list[dict[str, Value]] | None) -> None:
        method, first = {
            "call": ("call", "transport"),
            "await": ("await_signal", "signal"),
            "child": ("child", "workflow"),
            "continue_with": ("continue_with", "workflow"),
        }[kind]
        handlers = self.functions(value, ("on_success", "on_failure", "on_timeout"))
        if undo is not None:
            handlers += self.functions({"compensate": undo}, ("compensate",))
        names = sorted(key for key in value if key != first and not key.startswith("on_"))
        plain = _keywords({key: self.template(value[key]) for key in names})
        self.statement(f"{p}.{method}", [repr(value[first]), *plain, *handlers])

    # --- values ---

    def template(self, value: Value) -> str:
        if is_expression(value):
            return self.sure(value["$"])
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {self.template(value[key])}" for key in sorted(value)) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(self.template(part) for part in value) + "]"
        return repr(value)

    def literal(self, text: str) -> str:
        self.imports["lit"] = None
        return f"lit({text})"

    def term(self, tree: Tree) -> tuple[str, bool]:
        """Python source of a tree, and whether it is a term already rather than a plain value."""
        head = tree[0]
        match head:
            case "lit":
                return repr(tree[1]), False
            case "path":
                return self.path(tree), True
            case "get":
                key = tree[2]
                inner = self.term(key)[0] if key[0] == "lit" else self.sure(key)
                return f"{self.sure(tree[1])}[{inner}]", True
            case "list" | "object":
                return self.literal(self.container(tree)), True
            case "call":
                name = _python_name(tree[1])
                self.imports[name] = None
                return f"{name}({', '.join(self.term(part)[0] for part in tree[2:])})", True
            case "not" | "neg":
                return f"({'~' if head == 'not' else '-'}{self.sure(tree[1])})", True
            case "and" | "or":
                sign = " & " if head == "and" else " | "
                parts = [self.sure(tree[1]), *(self.grouped(part) for part in tree[2:])]
                return f"({sign.join(parts)})", True
        assert head in OPERATORS, head
        if head == "in":
            self.imports["in_"] = None
            return f"in_({self.term(tree[1])[0]}, {self.term(tree[2])[0]})", True
        right, right_is_term = self.term(tree[2])
        # Python mirrors `1 < x` into `x > 1`, and computes `1 + 1` itself: name the literal then.
        mirrored = head in _COMPARISONS or not right_is_term
        left = self.sure(tree[1]) if mirrored else self.grouped(tree[1])
        return f"({left} {head} {right})", True

    def container(self, tree: Tree) -> str:
        """A list or object literal as plain Python around terms; `lit` makes a term of it."""
        match tree[0]:
            case "list":
                return "[" + ", ".join(self.container(part) for part in tree[1:]) + "]"
            case "object":
                return "{" + ", ".join(f"{key!r}: {self.container(part)}" for key, part in tree[1:]) + "}"
            case _:
                return self.term(tree)[0]

    def grouped(self, tree: Tree) -> str:
        return self.term(tree)[0]

    def sure(self, tree: Tree) -> str:
        """The source of a tree as a term, whatever it is."""
        text, is_term = self.term(tree)
        return text if is_term else self.literal(text)

    def path(self, tree: Tree) -> str:
        root: str = tree[1]
        keys = tree[2:]
        if root in ROOTS:
            self.imports[root] = None
            out = root
        elif self.in_task:
            self.imports["var"] = None
            out = f"var({root!r})"
        elif root in _BUILDER_NAMES or keyword.iskeyword(root) or root.startswith("_"):
            out = f"p[{root!r}]"
        else:
            out = f"p.{root}"
        for key in keys:
            plain = (
                isinstance(key, str)
                and key.isidentifier()
                and not keyword.iskeyword(key)
                and not key.startswith("_")
            )
            out += f".{key}" if plain else f"[{key!r}]"
        return out


def _data(value: Value) -> str:
    """A value that holds no expressions (a schema), whatever its keys are called."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_data(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_data(part) for part in value) + "]"
    return repr(value)
