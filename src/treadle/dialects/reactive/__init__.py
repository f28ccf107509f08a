"""Reactive workflows: keyed, event-driven state machines with declared effects.

`shapes` and `types` make values canonical; `effects`, `step` and `workflow` are what authors write with;
`app`, `family`, `manifest` and `routing` put workflows together; `decide` and `machine` run them; `index` holds
the states of very many of them. What is done with applications on a store is in `treadle.apps`, what tests
them in `treadle.testing.reactive`. Authors use `treadle.reactive`.
"""

from __future__ import annotations

from .dialect import DIALECT

__all__ = ["DIALECT"]
