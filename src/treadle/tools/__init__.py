"""Tools: one file each. `treadle.work.registry` imports them by kind, when they are first used."""
