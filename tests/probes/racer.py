"""A caller in a process of its own, with an engine of its own: it asks what it is told to, and says what it was told.

Each line that it reads is one call: the module of the subjects, of what, by which door, under which name, and the id of the
task if it is about one. Each line that it writes is the answer.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

from tests.probes import test_races
from tests.probes.racing import said

from treadle import Engine


async def main(store: str) -> None:
    async with Engine(store) as engine:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked: dict[str, Any] = json.loads(line)
            subject = importlib.import_module(asked["module"]).SUBJECTS[asked["of"]]
            test_races.TASKS[asked["name"]] = asked["task"]
            print(json.dumps(await said(subject.doors[asked["door"]](engine, asked["name"]))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
