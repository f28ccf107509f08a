"""`shell`: commands one after another, until one fails.

Each command runs in a process group of its own, which is killed as a whole when the call is
cancelled, out of time, or left by an engine that was killed. Output is bounded: the first part is kept, the rest counted. Commands get
the engine's environment without its secrets (`TREADLE_SECRET…`), and the call's idempotency key.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import time
from contextlib import suppress
from functools import cache
from typing import Any, Final

from .base import BadConfig, ToolBase, local_path, mapping, need, out_of_descriptors, time_limit, timed_out
from .pipes import ReadPipe
from .protocol import Outcome, ToolCall
from .watchdog import WATCHDOG

OUTPUT_BYTES_MAX: Final = 1024 * 1024
# How long to wait for output after a command ended, if something it left behind holds the pipe open.
_DRAIN_S: Final = 0.5
# A command waits for a first line before it begins: by then the watchdog knows it. Should the engine die in
# between, the line never comes and nothing was done.
_WAITS: Final = 'read -r _ || exit 125; exec "$0" -c "$1"'


class ShellTool(ToolBase):
    """Its fields are declared in `fields.SHELL`."""

    kind = "shell"
    idempotent = False
    times_itself = True

    async def perform(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        commands = need(config, "cmds", "cmd", "command", "commands")
        commands = [str(c) for c in commands] if isinstance(commands, list) else [str(commands)]
        shell = str(config.get("shell") or _default_shell())
        folder = local_path(str(config["cwd"]), call) if config.get("cwd") else call.base
        limit_s = time_limit(config, call)
        runner = _Runner(
            shell=shell,
            cwd=None if folder is None else str(folder),
            env=_environment(mapping(config, "env"), call),
            stdin=None if config.get("stdin") is None else str(config["stdin"]).encode(),
            output_max=_output_limit(config),
            call=call,
        )
        started = time.monotonic()
        done: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(limit_s) as timer:
                for command in commands:
                    done.append(runner.begin(command))
                    await runner.run(done[-1])
                    if done[-1]["returncode"] != 0:
                        break
        except TimeoutError:
            if not timer.expired() or limit_s is None:
                raise
            return timed_out("timeout", limit_s, result=_result(done, started))
        except FileNotFoundError as error:
            return Outcome.failed("not_found", f"{error.strerror}: {error.filename}", code="NO_SUCH_FILE")
        except OSError as error:
            return out_of_descriptors(error) or Outcome.failed(
                "client_error", f"the command cannot be started: {error.strerror}", code="NOT_STARTED"
            )
        return _outcome(done, started)

    async def close(self) -> None:
        """Commands end with their calls; nothing is kept between them."""


class _Runner:
    """Runs single commands with the settings of one task."""

    def __init__(
        self,
        *,
        shell: str,
        cwd: str | None,
        env: dict[str, str],
        stdin: bytes | None,
        output_max: int,
        call: ToolCall,
    ) -> None:
        self._shell = shell
        self._cwd = cwd
        self._env = env
        self._stdin = stdin
        self._output_max = output_max
        self._call = call

    @staticmethod
    def begin(command: str) -> dict[str, Any]:
        return {"command": command, "returncode": None, "stdout": "", "stderr": "", "duration_ms": 0}

    async def run(self, entry: dict[str, Any]) -> None:
        """Fills `entry` while the command runs, so that a deadline finds what there was."""
        started = time.monotonic()
        waits = _WAITS if self._stdin is not None else f"{_WAITS} </dev/null"
        if shutil.which(self._shell, path=self._env.get("PATH")) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._shell)
        out, err = await ReadPipe.pair()
        try:
            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(
                    *(*_gatekeeper(), waits, self._shell, entry["command"]),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=out.fd,
                    stderr=err.fd,
                    env=self._env,
                    cwd=self._cwd,
                    start_new_session=True,
                )
            )
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # It may have begun all the same, and have begun others: asyncio would kill it alone.
                await _kill_group(await starting)
                raise
            out.started()
            err.started()
            with WATCHDOG.over(process.pid):
                await self._follow(process, {"stdout": out.reader, "stderr": err.reader}, entry)
        finally:
            entry["duration_ms"] = round((time.monotonic() - started) * 1000)
            out.close()
            err.close()

    async def _follow(
        self,
        process: asyncio.subprocess.Process,
        streams: dict[str, asyncio.StreamReader],
        entry: dict[str, Any],
    ) -> None:
        """Reads until the process is over; if it is not when we leave, its whole group is killed."""
        helpers = [asyncio.create_task(self._read(stream, entry, name)) for name, stream in streams.items()]
        assert process.stdin is not None
        feeder = asyncio.create_task(self._feed(process.stdin))
        try:
            entry["returncode"] = await process.wait()
            await asyncio.wait(helpers, timeout=_DRAIN_S)
        finally:
            if process.returncode is None:
                await _kill_group(process)
            helpers.append(feeder)
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _read(self, stream: asyncio.StreamReader, entry: dict[str, Any], name: str) -> None:
        kept, dropped = bytearray(), 0
        while chunk := await stream.read(65536):
            part = chunk[: self._output_max - len(kept)]
            kept += part
            dropped += len(chunk) - len(part)
            entry[name] = kept.decode(errors="replace")
            if part:
                await self._call.progress("output", stream=name, text=part.decode(errors="replace"))
            if dropped:
                entry[f"{name}_dropped_bytes"] = dropped

    async def _feed(self, stream: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                stream.write(b"\n" + (self._stdin or b""))
                await stream.drain()
        finally:
            stream.close()


async def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


@cache
def _default_shell() -> str:
    """bash where there is one, because that is what people write; else the system's sh."""
    return shutil.which("bash") or "/bin/sh"


@cache
def _gatekeeper() -> tuple[str, ...]:
    """A shell that hands the environment on as it is: dash drops names that no shell could set, and `-p` keeps bash
    from reading files that the environment names."""
    shell = _default_shell()
    return (shell, "-p", "-c") if shell.endswith("bash") else (shell, "-c")


def _environment(extra: dict[str, Any], call: ToolCall) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TREADLE_SECRET")}
    own = {"TREADLE_RUN": call.run, "TREADLE_IDEMPOTENCY_KEY": call.idempotency_key}
    return {**inherited, **own, **{str(k): str(v) for k, v in extra.items()}}


def _output_limit(config: dict[str, Any]) -> int:
    try:
        limit = int(config.get("output_limit") or OUTPUT_BYTES_MAX)
    except (TypeError, ValueError):
        limit = 0
    if limit < 1:
        raise BadConfig("the field 'output_limit' must be a number of bytes above zero")
    return limit


def _result(done: list[dict[str, Any]], started: float) -> dict[str, Any]:
    last = done[-1]["returncode"] if done else 0
    return {
        "returncode": last,
        "stdout": "".join(entry["stdout"] for entry in done),
        "stderr": "".join(entry["stderr"] for entry in done),
        "commands": done,
        "duration_ms": round((time.monotonic() - started) * 1000),
    }


def _outcome(done: list[dict[str, Any]], started: float) -> Outcome:
    result = _result(done, started)
    code = result["returncode"]
    if code == 0:
        return Outcome(result=result)
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    words = (done[-1]["stderr"].strip() or done[-1]["stdout"].strip()).splitlines()
    message = f"the command {how}: {words[-1][:500]}" if words else f"the command {how}"
    details = {"command": done[-1]["command"], "returncode": code}
    return Outcome.failed("exit_code", message, code=f"EXIT_{code}", details=details, result=result)
