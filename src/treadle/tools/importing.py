"""`callable: module:function`: a function of a module, looked for beside the definition's file too."""

from __future__ import annotations

import sys
import threading
from importlib import import_module

from .base import BadConfig
from .functions import FunctionTool

# `sys.path` is the whole process's, and tasks import side by side.
_importing = threading.Lock()


def imported(name: str, base: str | None) -> FunctionTool:
    """The function as a tool; BadConfig says what is not there."""
    module, _, attribute = name.partition(":")
    with _importing:
        extra = [base] if base is not None and base not in sys.path else []
        sys.path[:0] = extra
        try:
            found = getattr(import_module(module), attribute, None)
        except ImportError as error:
            missing = error.name or module
            where = f" in {base}, nor" if base else ""
            raise BadConfig(
                f"callable {name!r}: there is no module {missing!r}{where} among the installed ones"
            ) from error
        finally:
            for entry in extra:
                sys.path.remove(entry)
    if not callable(found):
        raise BadConfig(f"callable {name!r}: the module {module!r} has no function {attribute!r}")
    return FunctionTool(f"python:{name}", found)
