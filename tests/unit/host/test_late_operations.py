"""What most engines are never asked for: imported by the first who asks, and never on the core's thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, sys, threading
from importlib.abc import MetaPathFinder

imported = []

class Watching(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("treadle."):
            imported.append((threading.current_thread().name, name))
        return None

def protocols():
    for name, module in [*sys.modules.items()]:
        for made in vars(module).values() if name.startswith("treadle.") else ():
            if getattr(made, "_is_protocol", False) and made.__module__ == name:
                yield made.__name__

async def main(store):
    from treadle import Engine, TreadleError
    from treadle.testing.toy import TOY, install

    engine = Engine(store)
    install(engine)
    async with engine:
        print("protocols", *sorted(protocols()))
        print("loaded", *sorted(name for name in sys.modules if name.startswith("treadle.")))
        sys.meta_path.insert(0, Watching())
        # As another process would ask: nothing of it is imported on the way here.
        await engine.operate("bulk", {"op": "take", "holder": "one"})
        await engine.operate("collect", {"step": "shrink", "rewrite": False})
        await engine.limit_set("toy", concurrency=1)
        await engine.token_create("ann", ["viewer"])
        try:
            await engine.operate("schedule", {"do": "remove", "name": "nobody's"})
        except TreadleError as error:
            assert error.code == "SCHEDULE_NOT_FOUND"
        try:
            await engine.operate("task", {"name": "claim", "task": "nobody's", "user": "ann", "roles": []})
        except TreadleError as error:
            assert error.code == "TASK_NOT_FOUND", error
        run = await engine.start(TOY, {"do": ["signal:go"]})
        await engine.fork(run.id)
        engine.tool("own")(print)
        print((await run.show())["status"])
    for thread, name in imported:
        print("import", thread, name)

asyncio.run(main(sys.argv[1]))
"""


# What is there for types, and for those who share a store, is not there in an engine on a file.
FOR_TYPES = {"treadle.bus.protocol", "treadle.runtime.desk", "treadle.store.protocol"}
FOR_MEMBERS = {"treadle.host.sharing", "treadle.store.members", "treadle.store.sharing"}


def asked_of_an_engine(store: str) -> list[list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, store], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_what_is_rare_is_imported_by_the_first_who_asks_and_never_on_the_cores_thread(tmp_path: Path) -> None:
    protocols, loaded, status, *imports = asked_of_an_engine(f"sqlite:///{tmp_path}/t.db")
    rare = {"treadle.access.tokens", "treadle.tools.registry"}
    rare |= {
        f"treadle.runtime.{name}"
        for name in ("bulks", "collecting", "document", "keeping", "quotas", "schedules", "tasks")
    }
    rare |= {"treadle.lang.recurrence", "treadle.lang.schedules"}
    # Authors and those who test import these two; any other is made for nobody.
    assert protocols == ["protocols", "Clock", "Job"], (
        "put a protocol under TYPE_CHECKING: it takes 5 KB and more"
    )
    assert not (rare | FOR_TYPES | FOR_MEMBERS) & set(loaded)
    assert status == ["waiting"]
    by_thread = {(thread, name) for _, thread, name in imports}
    assert rare <= {name for _, name in by_thread}
    assert ("treadle-beside", "treadle.runtime.bulks") in by_thread
    assert ("treadle-beside", "treadle.runtime.schedules") in by_thread
    assert ("treadle-beside", "treadle.runtime.tasks") in by_thread
    assert not {name for thread, name in by_thread if thread == "treadle-core"}
