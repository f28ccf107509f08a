"""Every page of docs/operations: its files are written, its blocks are run, from an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from treadle.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
# Of which a server is a part, and which have a test of their own.
APART = {"observe.md", "secure.md"}
PAGES = [page for page in sorted((ROOT / "docs" / "operations").glob("*.md")) if page.name not in APART]
FILES = re.compile(r"```\w+ file=(\S+)\n(.*?)```", re.S)
BLOCKS = re.compile(r"```sh run\n(.*?)```", re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_works_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_STORE", raising=False)
    text = page.read_text("utf-8")
    for name, body in FILES.findall(text):
        (tmp_path / name).write_text(body, "utf-8")
    blocks = BLOCKS.findall(text)
    assert blocks
    for line in "".join(blocks).strip().splitlines():
        command, _, remark = line.partition("  # exit ")
        program, *arguments = shlex.split(command)
        assert program == "treadle"
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == int(remark or 0), line
