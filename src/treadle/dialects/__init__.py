"""The languages that workflows are written in: one folder each, pure, none of which knows another.

A new dialect is a folder here with `DIALECT` (`lang.definition.Dialect` says what that declares), a folder
of `performers` with `performers`, and its name in this list.
"""

from __future__ import annotations

from typing import Final

INSTALLED: Final = ("playbook", "agent", "process", "reactive", "function")
