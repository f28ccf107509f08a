"""What comes from outside and is no text: it is told, with what to do, and never taken for a bug."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Cli
from .flows import ETL

Write = Callable[[str, str], Path]


def binary() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(b"\xff\xfe\x00"), "utf-8")


def test_standard_input_that_is_no_text_is_refused(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("flow.yaml", ETL)
    for words in (["run", "flow.yaml", "--input", "-"], ["secret", "set", "api"]):
        monkeypatch.setattr("sys.stdin", binary())
        assert "standard input is not UTF-8" in cli(*words, "--json", code=2).error["message"], words


def test_a_command_that_was_started_without_standard_input_works(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert "the value is empty" in cli("secret", "set", "api", "--json", code=2).error["message"]
    write("flow.yaml", ETL)
    cli("run", "flow.yaml", "--json", code=0)
    assert cli("delete", "--status", "completed", code=0)


def test_a_token_file_that_is_no_text_is_refused(cli: Cli, folder: Path) -> None:
    (folder / "token").write_bytes(b"\xff\xfe")
    words = ("worker", "--server", "http://127.0.0.1:1", "--token-file", "token")
    assert "--token-file: token cannot be read" in cli(*words, "--json", code=2).error["message"]
