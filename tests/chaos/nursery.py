"""A process that has imported everything and forks `treadle` commands: a member that was killed is back at once.

It reads one JSON object a line, {"args": […], "folder", "store", "out"}, and answers with the pid of the child.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    import treadle.bus.nats
    import treadle.bus.postgres
    import treadle.server.joining
    import treadle.server.remote
    import treadle.server.serving  # noqa: F401
    from treadle.cli.application import SUBJECTS
    from treadle.cli.main import main as command

    for subject in SUBJECTS:
        subject.load()

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(asked["folder"])
        os.environ["TREADLE_STORE"] = asked["store"]
        out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.argv = ["treadle", *asked["args"]]
        try:
            command()
        except SystemExit as left:
            os._exit(left.code if isinstance(left.code, int) else 1)
        os._exit(0)


if __name__ == "__main__":
    main()
