"""Putting a thread's profiler back after a watch of ours stood in its place.

Python's own profiler, cProfile, is written in C: `sys.getprofile` gives it, `sys.setprofile` does not take it.
"""

from __future__ import annotations

import sys
from typing import Any


def profile_again(profiler: Any) -> None:
    """Whatever `sys.getprofile` gave before."""
    if profiler is None or callable(profiler):
        sys.setprofile(profiler)
    else:
        sys.setprofile(None)
        profiler.enable()
