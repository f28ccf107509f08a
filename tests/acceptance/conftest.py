"""The product from the outside: the `treadle` command in an empty folder, and nothing below it.

The tests in this folder are written from the design pages, sentence by sentence, not from the code. The
command runs in this process (its own entry point, its own exit), except where a signal or a second
process is the subject.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from treadle.cli.main import main


@dataclass(frozen=True)
class Answer:
    """What the command left: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output; anything else there is an error."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        document = self.json
        assert set(document) == {"error"}, document
        assert set(document["error"]) == {"class", "code", "message", "where", "details"}
        found: dict[str, Any] = document["error"]
        return found


@dataclass(frozen=True)
class Desk:
    """A new user's folder and the command in it."""

    folder: Path
    capture: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, code: int | None = None) -> Answer:
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = self.capture.readouterr()
        answer = Answer(int(ended.value.code or 0), captured.out, captured.err)
        if code is not None:
            assert answer.code == code, answer
        return answer

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8")
        return name

    def run(self, text: str, *arguments: str, code: int = 0, name: str = "flow.yaml") -> dict[str, Any]:
        """Save a definition, run it, and give back the run document."""
        document: dict[str, Any] = self("run", self.write(name, text), "--json", *arguments, code=code).json
        return document

    def refuse(self, text: str, *arguments: str, name: str = "flow.yaml") -> dict[str, Any]:
        """Save a bad definition; the error of `run` on it. Nothing may have been written."""
        name = self.write(name, text)
        before = self.kept()
        error = self("run", name, "--json", *arguments, code=2).error
        assert self.kept() == before, "exit 2 wrote to the store"
        return error

    def kept(self) -> dict[str, bytes]:
        """Every file here; without SQLite's own notes beside a store, which readers leave too."""
        return {
            path.name: path.read_bytes()
            for path in self.folder.iterdir()
            if path.is_file() and not path.name.endswith(("-shm", "-wal"))
        }

    def events(self, run: str) -> list[dict[str, Any]]:
        return self("events", run, "--json", code=0).lines

    def types(self, run: str) -> list[str]:
        return [event["type"] for event in self.events(run)]

    def check(
        self, text: str, *arguments: str, code: int | None = None, name: str = "flow.yaml"
    ) -> dict[str, Any]:
        document: dict[str, Any] = self("check", self.write(name, text), "--json", *arguments, code=code).json
        return document


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as a new user has it."""
    monkeypatch.chdir(tmp_path)
    for name in ("TREADLE_STORE", "TREADLE_SERVER", "TREADLE_VALIDATION", "TREADLE_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def desk(folder: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(folder, capsys)
