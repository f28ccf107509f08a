"""The agent dialect: workflows whose nodes are run by a model and whose edges a model chooses.

`DIALECT` is what the engine sees of it. The rules are in one place each: `check` and `inputs` for
what may be written, `sources` for instructions, `visiting`, `judging`, `leaving`, `ending` for the
four parts of a visit, `routing` and `context` for what a node is told and where the run goes next.
"""

from __future__ import annotations

from .dialect import DIALECT

__all__ = ["DIALECT"]
