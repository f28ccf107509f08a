"""Where deployed definitions came from is known without reading any of them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from treadle.engine import Engine
from treadle.store.open import read_store


async def test_origins_name_each_file_once_and_read_no_body(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    file = tmp_path / "flow.yaml"
    async with Engine(url) as engine:
        for version in ("1.0.0", "1.0.1"):
            file.write_text(
                f"metadata: {{name: flow, version: {version}}}\nworkflow: [{{step: a, tool: {{kind: noop}}}}]\n"
            )
            engine.deploy(str(file))
        found = (await engine.definition("flow")).dialect
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection, connection:
        connection.execute("UPDATE definitions SET body = x'00'")
    with closing(read_store(url)) as reads:
        assert reads.origins() == [(found, str(file))]
