"""docs/functions.md is a script: its files are written, its commands run, in the order of the page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests import nursery
from typer.testing import CliRunner

from treadle.cli.main import app
from treadle.dialects.function.steps import STEPS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "functions.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(.+?)\n(.*?)^```", TEXT, re.S | re.M)
REMARK = re.compile(r"  # (?:exit (?P<code>\d)|prints (?P<said>\S+)|without (?P<unsaid>\S+))$")


def test_every_block_is_run() -> None:
    assert len(BLOCKS) >= 12
    for kind, _ in BLOCKS:
        assert kind == "sh run" or re.fullmatch(r"python file=\w+\.py", kind), (
            f"nothing runs a block of {kind!r}"
        )


def run(line: str) -> None:
    remark = REMARK.search(line)
    about = remark.groupdict() if remark else {}
    program, *arguments = shlex.split(line[: remark.start()] if remark else line)
    if program == "treadle":
        done = CliRunner().invoke(app, arguments)
        code, said = done.exit_code, done.output
    else:
        assert program == "python"
        ended = nursery.run(arguments)
        code, said = ended.returncode, ended.stdout + ended.stderr
    assert code == int(about.get("code") or 0), (line, said)
    assert (about.get("said") or "") in said, (line, said)
    assert about.get("unsaid") is None or about["unsaid"] not in said, (line, said)


def test_the_page_works_from_its_first_block_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_STORE", raising=False)
    before = dict(STEPS)
    for name in ("charge", "refund", "ship", "check"):
        STEPS.pop(name, None)
    try:
        for kind, text in BLOCKS:
            if kind == "sh run":
                for line in text.strip().splitlines():
                    run(line)
            else:
                (tmp_path / kind.partition("file=")[2]).write_text(text, "utf-8")
    finally:
        STEPS.clear()
        STEPS.update(before)
