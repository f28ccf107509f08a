"""docs/cli.md names every command, and its first minute works as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from .conftest import Cli
from .test_house import NAMES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text("utf-8")
FILES = re.findall(r"```\w+ file=(\S+)\n(.*?)```", TEXT, re.S)
BLOCKS = re.findall(r"```sh run\n(.*?)```", TEXT, re.S)


@pytest.mark.parametrize("path", sorted(NAMES), ids="-".join)
def test_every_command_has_an_example_in_the_docs(path: tuple[str, ...]) -> None:
    assert re.search(rf"`treadle {' '.join(path)}[ `]", TEXT) or f"\ntreadle {' '.join(path)} " in TEXT


def test_the_first_minute_works(cli: Cli, folder: Path) -> None:
    for name, text in FILES:
        (folder / name).write_text(text, "utf-8")
    (block,) = BLOCKS
    for line in block.strip().splitlines():
        command, _, remark = line.partition("  #")
        code = int(remark.removeprefix(" exit ")) if remark else 0
        program, *arguments = shlex.split(command)
        assert program == "treadle"
        answer = cli(*arguments)
        assert answer.code == code, (line, answer)
