"""An input that is too large for the journal is stored once and travels by reference."""

from __future__ import annotations

from pathlib import Path

from treadle import Engine
from treadle.kernel.limits import STEP_BYTES_MAX

PLAYBOOK = """
metadata: {name: measure}
workflow:
  - step: measure
    tool: {kind: python, args: {text: "{{ workload.text }}"}, code: "result = len(text)"}
"""


async def test_a_run_takes_an_input_larger_than_a_record(tmp_path: Path) -> None:
    (tmp_path / "measure.yaml").write_text(PLAYBOOK)
    given = {"text": "x" * (2 * STEP_BYTES_MAX)}
    async with Engine(f"sqlite:///{tmp_path / 't.db'}") as engine:
        engine.deploy(tmp_path / "measure.yaml")
        run = await engine.start("measure", given, id="big")
        assert await run.result(timeout=60) == len(given["text"])
        assert (await run.show())["input"]["size"] > STEP_BYTES_MAX
        assert (await engine.start("measure", given, id="big")).existing
        assert (await engine.replay("big"))["equal"]
