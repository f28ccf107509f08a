from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from .conftest import wait_until


async def test_commands_run_in_order_and_their_output_is_joined(run):
    outcome = await run("shell", {"cmds": ["echo one", "echo two; echo warn >&2"]})
    assert outcome.status == "ok"
    assert outcome.result["returncode"] == 0
    assert outcome.result["stdout"] == "one\ntwo\n"
    assert outcome.result["stderr"] == "warn\n"
    assert [entry["command"] for entry in outcome.result["commands"]] == [
        "echo one",
        "echo two; echo warn >&2",
    ]
    assert [entry["stdout"] for entry in outcome.result["commands"]] == ["one\n", "two\n"]
    assert isinstance(outcome.result["duration_ms"], int)


@pytest.mark.parametrize("field", ["cmds", "cmd", "command"])
async def test_every_spelling_takes_a_text(run, field):
    assert (await run("shell", {field: "echo hi | tr a-z A-Z"})).result["stdout"] == "HI\n"


async def test_the_first_failure_stops_the_rest_and_keeps_the_result(run):
    outcome = await run("shell", {"cmds": ["echo a", "echo sorry >&2; exit 3", "echo never"]})
    assert outcome.status == "error"
    assert outcome.error["kind"] == "exit_code"
    assert outcome.error["code"] == "EXIT_3"
    assert "sorry" in outcome.error["message"]
    assert outcome.result["returncode"] == 3
    assert outcome.result["stdout"] == "a\n"
    assert outcome.result["stderr"] == "sorry\n"
    assert len(outcome.result["commands"]) == 2


async def test_the_message_quotes_the_command_that_failed_not_one_before_it(run):
    outcome = await run("shell", {"cmds": ["echo fine", "exit 3"]})
    assert outcome.error["message"] == "the command exited with code 3"


async def test_env_cwd_and_stdin(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TREADLE_SECRET_DB", "hunter2hunter2")
    (tmp_path / "sub").mkdir()
    task = {"cmd": 'pwd; echo "$WHO:$TREADLE_SECRET_DB:$TREADLE_IDEMPOTENCY_KEY"; cat', "cwd": "sub",
            "env": {"WHO": "me"}, "stdin": "fed"}  # fmt: skip
    outcome = await run("shell", task, base=str(tmp_path), idempotency_key="key-1")
    assert outcome.result["stdout"] == f"{tmp_path}/sub\nme::key-1\nfed"


async def test_names_that_no_shell_could_set_reach_the_command(run):
    outcome = await run("shell", {"cmd": "env | grep -c '^a.b-c=1$'", "env": {"a.b-c": "1"}})
    assert outcome.result["stdout"] == "1\n"


async def test_a_command_without_input_reads_nothing(run):
    assert (await run("shell", {"cmd": "cat; echo end"})).result["stdout"] == "end\n"
    fed = await run("shell", {"cmd": "cat", "stdin": "\nfirst\nsecond"})
    assert fed.result["stdout"] == "\nfirst\nsecond"


async def test_a_missing_folder_or_shell_is_an_outcome(run, tmp_path):
    outcome = await run("shell", {"cmd": "true", "cwd": str(tmp_path / "none")})
    assert outcome.error["kind"] == "not_found"
    assert (await run("shell", {"cmd": "true", "shell": "/no/such/shell"})).error["kind"] == "not_found"
    assert (await run("shell", {})).error["kind"] == "schema"


@pytest.mark.parametrize("field", ["timeout_seconds", "timeout"])
async def test_out_of_time_kills_the_whole_group_and_keeps_the_output(run, tmp_path, field):
    marker = tmp_path / "pid"
    command = f"echo started; sleep 600 & echo $! > {marker}; wait"
    outcome = await run("shell", {"cmds": ["echo first", command], field: 0.5})
    assert outcome.error["kind"] == "timeout"
    assert outcome.result["stdout"] == "first\nstarted\n"
    pid = int(marker.read_text())
    wait_until(lambda: _gone(pid))


async def test_the_callers_time_limit_holds_too(run):
    assert (await run("shell", {"cmd": "sleep 60", "timeout": 50}, timeout_s=0.2)).error["kind"] == "timeout"


async def test_cancel_kills_the_whole_group(run, tmp_path):
    marker = tmp_path / "pid"
    task = asyncio.create_task(run("shell", {"cmd": f"sleep 600 & echo $! > {marker}; wait"}))
    await asyncio.to_thread(wait_until, lambda: marker.exists() and marker.read_text().strip() != "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    pid = int(marker.read_text())
    wait_until(lambda: _gone(pid))


async def test_a_command_that_is_cancelled_while_it_is_being_started_never_begins(run, tmp_path, monkeypatch):
    """Its process is there, but whoever started it has not been told so yet."""
    marker = tmp_path / "begun"
    processes = []
    create = asyncio.create_subprocess_exec

    async def slow(*command, **how):
        processes.append(await create(*command, **how))
        task.cancel()
        await asyncio.sleep(0)
        return processes[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    task = asyncio.create_task(run("shell", {"cmd": f"touch {marker}; sleep 600"}))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 20)
    assert _gone(processes[0].pid)
    assert not marker.exists()


async def test_output_is_capped_and_the_rest_counted(run):
    outcome = await run("shell", {"cmd": "head -c 300000 /dev/zero | tr '\\0' x", "output_limit": 1000})
    assert outcome.result["stdout"] == "x" * 1000
    assert outcome.result["commands"][0]["stdout_dropped_bytes"] == 299_000
    assert (await run("shell", {"cmd": "true", "output_limit": "many"})).error["kind"] == "schema"


async def test_a_process_left_behind_does_not_hold_the_task(run, tmp_path):
    marker = tmp_path / "pid"
    outcome = await asyncio.wait_for(run("shell", {"cmd": f"sleep 600 & echo $! > {marker}; echo done"}), 10)
    os.kill(int(marker.read_text()), 9)
    assert outcome.result["stdout"] == "done\n"


async def test_output_is_progress(run):
    seen: list[tuple[str, str, str]] = []

    async def progress(type: str, **data: Any) -> None:
        seen.append((type, data["stream"], data["text"]))

    await run("shell", {"cmd": "echo hello"}, progress=progress)
    assert seen == [("output", "stdout", "hello\n")]


async def test_a_command_ended_by_a_signal_says_which(run):
    outcome = await run("shell", {"cmd": "kill -TERM $$"})
    assert outcome.error["kind"] == "exit_code"
    assert "SIGTERM" in outcome.error["message"]


def _gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split()[2] == "Z"
    except FileNotFoundError:
        return True
