"""Tools: one file each. `treadle.tools.registry` imports them by kind, when they are first used."""
