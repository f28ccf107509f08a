"""Write business processes in Python.

    from treadle.process import process, task, state, start, payload, result

    @process("Greeting", version="1.0.0")
    def greeting(p):
        p.set(state.text, concat("Hello ", start.name))
        p.complete(state.text)

Nothing here runs a process: what you write becomes a definition, which is data, and an `Engine`
runs that. `docs/process.md` shows every step and function.
"""

from __future__ import annotations

from treadle.dialects.process.builder import Builder, Process, Task, process, task
from treadle.dialects.process.terms import (
    FUNCTION_TERMS,
    Term,
    error,
    in_,
    lit,
    payload,
    result,
    run,
    start,
    state,
    var,
)

add = FUNCTION_TERMS["add"]
at = FUNCTION_TERMS["at"]
coalesce = FUNCTION_TERMS["coalesce"]
concat = FUNCTION_TERMS["concat"]
contains = FUNCTION_TERMS["contains"]
first = FUNCTION_TERMS["first"]
format_ = FUNCTION_TERMS["format_"]
if_ = FUNCTION_TERMS["if_"]
is_blank = FUNCTION_TERMS["is_blank"]
json = FUNCTION_TERMS["json"]
keys = FUNCTION_TERMS["keys"]
last = FUNCTION_TERMS["last"]
length = FUNCTION_TERMS["length"]
lower = FUNCTION_TERMS["lower"]
merge = FUNCTION_TERMS["merge"]
now = FUNCTION_TERMS["now"]
number = FUNCTION_TERMS["number"]
string = FUNCTION_TERMS["string"]
trim = FUNCTION_TERMS["trim"]
upper = FUNCTION_TERMS["upper"]

__all__ = [
    "Builder",
    "Process",
    "Task",
    "Term",
    "add",
    "at",
    "coalesce",
    "concat",
    "contains",
    "error",
    "first",
    "format_",
    "if_",
    "in_",
    "is_blank",
    "json",
    "keys",
    "last",
    "length",
    "lit",
    "lower",
    "merge",
    "now",
    "number",
    "payload",
    "process",
    "result",
    "run",
    "start",
    "state",
    "string",
    "task",
    "trim",
    "upper",
    "var",
]
