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


def test_what_no_file_can_be_called_is_told_and_no_bug(cli: Cli, write: Write) -> None:
    write("flow.yaml", ETL)
    cli("run", "flow.yaml", code=0)
    for words in (["check"], ["apply"], ["archive", "list"], ["backup"]):
        error = cli(*words, "x" * 5000, "--json").error
        assert "name too long" in error["message"], words
        assert "bug" not in error["message"], words


@pytest.mark.parametrize("store", ["http://[", "postgresql://ann:hunter2@[/x"])
def test_an_address_that_is_none_is_refused_and_hides_what_it_holds(cli: Cli, store: str) -> None:
    for words in (["list"], ["backup", "all.db"], ["secret", "list"]):
        answer = cli(*words, "--store", store, "--json")
        assert "bug" not in answer.error["message"], words
        assert "hunter2" not in answer.out + answer.err, words


def test_the_first_instants_there_are_can_be_asked_for(cli: Cli) -> None:
    for text in ("0001-01-01", "9999-12-31T23:59:59-23:59"):
        assert cli("audit", "--since", text, "--json", code=0).json == []


@pytest.mark.parametrize("wrong", ["http://[", "http://", "x"])
def test_a_worker_waits_for_no_server_that_cannot_be(cli: Cli, wrong: str) -> None:
    error = cli("worker", "--server", wrong, "--json", code=2).error
    assert "--server takes http://HOST:PORT" in error["message"]


def test_a_worker_whose_secrets_cannot_be_read_does_not_begin(cli: Cli) -> None:
    words = ("worker", "--server", "http://127.0.0.1:1", "--secrets", "none.env")
    assert "--secrets: there is no file none.env" in cli(*words, "--json", code=2).error["message"]


@pytest.mark.parametrize("wrong", ["nats://[", "nats://"])
def test_a_server_does_not_begin_with_a_bus_that_cannot_be(cli: Cli, wrong: str) -> None:
    assert (
        "--bus is memory, postgres or nats" in cli("serve", "--bus", wrong, "--json", code=1).error["message"]
    )


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["worker", "--server", "http://127.0.0.1:1"]])
@pytest.mark.parametrize("collector", ["http://[", "c:4318"])
def test_an_address_at_which_no_collector_can_be_is_bad_usage(
    cli: Cli, command: list[str], collector: str
) -> None:
    error = cli(*command, "--otlp", collector, "--json", code=2).error
    assert error["code"] == "USAGE"
    assert f"not '{collector}'" in error["message"], "as it was typed"
