"""Functions of Python that a definition names: `module:function`, looked for beside the definition too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from treadle.kernel.errors import TreadleError


def imported(name: str, base: str | None) -> Callable[..., Any]:
    """The function that `module:function` names."""
    module, _, attribute = name.partition(":")
    path = [base] if base is not None and base not in sys.path else []
    sys.path[:0] = path
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise _not_found(f"cannot import {module}: {error}") from error
    finally:
        for entry in path:
            sys.path.remove(entry)
    if not callable(found):
        raise _not_found(f"{module} has no function {attribute!r}")
    result: Callable[..., Any] = found
    return result


def _not_found(message: str) -> TreadleError:
    return TreadleError(message, cls="user", code="FUNCTION_NOT_FOUND")
