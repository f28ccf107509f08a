"""Reactive workflows: keyed, event-driven state machines with declared effects.

`shapes` and `types` make values canonical; `effects`, `step` and `workflow` are what authors write with;
`app` and `routing` put workflows together; `decide` and `machine` run them; `index` and `cells` hold the
states of very many of them; `world` tests them without an engine. Authors use `treadle.reactive`.
"""

from __future__ import annotations

from .dialect import ReactiveDialect

DIALECT = ReactiveDialect()
