"""Records the store that `test_golden.py` replays: every run of `make demo`, in one SQLite file.

    python tests/golden/record.py 0.1.0

To be done once for each release, and never again for the same one: later code must decide these runs
as they were decided.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "examples"))

import demo  # noqa: E402, from the folder above


def main(release: str) -> None:
    target = HERE / f"{release}.db"
    if target.exists():
        raise SystemExit(f"{target} is there already; a release is recorded once")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(demo.EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        demo.crash(folder)
        for stop in demo.TOUR:
            for command in stop.commands:
                demo.show(folder, command)
        with closing(sqlite3.connect(folder / "treadle.db")) as store:
            store.execute("VACUUM INTO ?", (str(target),))
    print(f"{target}: {target.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1])
