"""What can be wrong with an expression before it is evaluated, beside its grammar."""

from __future__ import annotations

from treadle.lang.slips import nearest

from .functions import FUNCTIONS
from .syntax import Tree


def call_problem(call: Tree) -> tuple[str, str, str] | None:
    """Code, message and remedy of a call that cannot work; None if it can."""
    name, count = call[1], len(call) - 2
    if name not in FUNCTIONS:
        near = nearest(name, FUNCTIONS)
        hint = f"did you mean {near[0]!r}?" if near else f"functions: {', '.join(sorted(FUNCTIONS))}"
        return "UNKNOWN_FUNCTION", f"there is no function {name!r}", hint
    least, most, _ = FUNCTIONS[name]
    if least <= count and (most is None or count <= most):
        return None
    wanted = f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
    return "WRONG_ARGUMENTS", f"{name} takes {wanted} arguments, not {count}", ""
