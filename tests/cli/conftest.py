"""Drives the real command in this process; standard output is checked to be JSON and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle.cli.main import main


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        document = self.json
        assert list(document) == ["error"]
        assert list(document["error"]) == ["class", "code", "message", "where", "details"]
        found: dict[str, Any] = document["error"]
        return found


Cli = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as a new user has it."""
    monkeypatch.chdir(tmp_path)
    for name in ("TREADLE_STORE", "TREADLE_VALIDATION", "TREADLE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("run", "flow.yaml", "--json", code=0)`."""

    def invoke(*arguments: str, code: int | None = None) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        answer = Answer(int(ended.value.code or 0), captured.out, captured.err)
        if code is not None:
            assert answer.code == code, answer
        return answer

    return invoke


@pytest.fixture
def write(folder: Path) -> Callable[[str, str], Path]:
    def make(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(text, "utf-8")
        return path

    return make
