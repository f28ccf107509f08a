"""`python -m treadle.cli`: the same as the `treadle` command."""

from __future__ import annotations

from .main import main

main()
