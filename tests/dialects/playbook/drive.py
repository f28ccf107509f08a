"""A process of its own that drives one run of the paginated example: started, killed, started again.

python drive.py STORE PLAYBOOK SECRETS INPUT_JSON
"""

from __future__ import annotations

import asyncio
import json
import sys

from treadle import Engine


async def main(store: str, playbook: str, secrets: str, given: str) -> None:
    async with Engine(store) as engine:
        (definition,) = engine.load(playbook)
        run = await engine.start(definition, json.loads(given), id="pages", secrets=secrets)
        shown = await run.settled(timeout=60)
    print(json.dumps({key: shown[key] for key in ("status", "result", "error")}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
