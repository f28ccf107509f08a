"""Functions of Python that a definition names: `module:function`, looked for beside the definition too."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

# `sys.path` is the whole process's, and work is done side by side.
_importing = threading.Lock()


def imported(name: str, base: str | None, refusal: Callable[[str], Exception], /) -> Callable[..., Any]:
    """The function that `module:function` names; `refusal` makes an error of what is not there."""
    module, _, attribute = name.partition(":")
    with _importing:
        path = [base] if base is not None and base not in sys.path else []
        sys.path[:0] = path
        try:
            found = getattr(import_module(module), attribute, None)
        except ImportError as error:
            raise refusal(f"cannot import {module}: {error}") from error
        finally:
            for entry in path:
                sys.path.remove(entry)
    if not callable(found):
        raise refusal(f"{module} has no function {attribute!r}")
    result: Callable[..., Any] = found
    return result
