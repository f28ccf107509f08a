"""A warm Python process serves many runs: nothing of one may reach another."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.tools.protocol import Outcome, ToolCall
from treadle.tools.python import PythonTool
from treadle.tools.python_pool import PythonProcess

# Finds the descriptor of the answers: a pipe that is open for writing and is not stdout or stderr.
PIPE = """
import fcntl, os, stat
def pipe_of_answers():
    for name in os.listdir('/proc/self/fd'):
        fd = int(name)
        try:
            if fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                return fd
        except OSError:
            pass
"""


@pytest.fixture
async def python():
    tool = PythonTool(processes=1)

    async def run(code: str, **more: Any) -> Outcome:
        return await tool.run({"name": "t", "code": code, **more}, ToolCall())

    yield run
    await tool.close()


async def pid_of(python: Any) -> int:
    return int((await python("import os; result = os.getpid()")).result)


FORKS = {
    "forgets to exit": "import os\nos.fork()\nresult = 'forked'",
    "answers later": "import os, time\nif os.fork() == 0:\n    time.sleep(0.2)\nresult = 'forked'",
    "ends by itself": "import os\nif os.fork() == 0:\n    os._exit(0)\nresult = 'forked'",
    "raises": "import os\nif os.fork() == 0:\n    raise ValueError('child')\nresult = 'forked'",
    "twice": "import os\nif os.fork() == 0:\n    os.fork()\nresult = 'forked'",
    "below Python": "import ctypes\nctypes.CDLL(None).fork()\nresult = 'forked'",
}


@pytest.mark.parametrize("way", FORKS)
async def test_a_forked_child_never_answers_for_another_call(python, way):
    outcome = await python(FORKS[way])
    assert outcome.result == "forked"
    for n in range(4):
        assert (await python("result = n", args={"n": n})).result == n


async def test_a_forked_child_reads_no_requests_of_other_calls(python, tmp_path):
    stolen = tmp_path / "stolen"
    code = f"""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    for name in os.listdir('/proc/self/fd'):
        try:
            data = os.read(int(name), 4096)
        except OSError:
            continue
        if data:
            open({str(stolen)!r}, 'ab').write(data)
result = 1
"""
    assert (await python(code)).result == 1
    for _ in range(3):
        assert (await python("result = secret", args={"secret": "customer 4711"})).result == "customer 4711"
    assert not stolen.exists()


WRITES = {
    "an answer of the old form": "b'\\x00\\x00\\x00\\x1a' + b'{\"result\": 1, \"retire\": 0}'",
    "an answer under another id": "b'x' * 16 + b'\\x00\\x00\\x00\\x1a' + b'{\"result\": 1, \"retire\": 0}'",
    "a few bytes": "b'abc'",
    "a length that never comes": "b'\\x00\\x00\\x10\\x00'",
    "much": "b'z' * 100_000",
}


@pytest.mark.parametrize("what", WRITES)
async def test_a_write_to_the_pipe_of_answers_fails_its_own_call_only(python, what):
    outcome = await python(f"{PIPE}\nos.write(pipe_of_answers(), {WRITES[what]})\nresult = 'mine'")
    assert outcome.error is not None
    assert outcome.error["code"] == "FOREIGN_ANSWER"
    for n in range(3):
        assert (await python("result = n", args={"n": n})).result == n


async def test_a_thread_that_writes_after_the_end_of_its_call_reaches_nobody(python):
    code = f"""{PIPE}
import threading, time
fd = pipe_of_answers()
def later():
    while True:
        os.write(fd, b'x' * 50)
        time.sleep(0.001)
threading.Thread(target=later, daemon=True).start()
time.sleep(0)
"""
    await python(code)
    for n in range(3):
        assert (await python("result = n", args={"n": n})).result == n


# What a task does, and what the next one sees of it.
LEAKS = {
    "umask": ("import os; os.umask(0)", "import os; m = os.umask(0o22); os.umask(m); result = m"),
    "soft limit": (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (16, r.getrlimit(r.RLIMIT_NOFILE)[1]))",
        "import resource as r; result = r.getrlimit(r.RLIMIT_NOFILE)",
    ),
    "hard limit": (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (16, 16))",
        "import resource as r; result = r.getrlimit(r.RLIMIT_NOFILE)",
    ),
    "alarm": ("import signal; signal.alarm(1)", "import time; time.sleep(1.3); result = 'awake'"),
    "interval timer": (
        "import signal; signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)",
        "import time; time.sleep(0.3); result = 'awake'",
    ),
    "signal handler": (
        "import signal; signal.signal(signal.SIGUSR1, lambda *a: None)",
        "import signal; result = str(signal.getsignal(signal.SIGUSR1))",
    ),
    "signal mask": (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])",
        "import signal; result = [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])]",
    ),
    "folder": ("import os; os.chdir('/')", "import os; result = os.getcwd()"),
    "environment": (
        "import os; os.environ['LEFT'] = 'x'; os.environ.pop('PATH')",
        "import os; result = dict(os.environ)",
    ),
    "time zone": (
        "import os, time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
        "import time; result = list(time.tzname)",
    ),
    "import path": ("import sys; sys.path.append('/left')", "import sys; result = sys.path"),
    "nice": ("import os; os.nice(1)", "import os; result = os.nice(0)"),
    "recursion limit": (
        "import sys; sys.setrecursionlimit(5000)",
        "import sys; result = sys.getrecursionlimit()",
    ),
    "socket time-out": (
        "import socket; socket.setdefaulttimeout(0.001)",
        "import socket; result = socket.getdefaulttimeout()",
    ),
    "decimal context": (
        "import decimal; decimal.getcontext().prec = 2",
        "import decimal; result = decimal.getcontext().prec",
    ),
    "a patched builtin": ("import builtins; builtins.len = lambda x: 7", "result = len('four')"),
    "a patched library": (
        "import json; json.dumps = lambda *a, **k: 'patched'",
        "import json; result = json.dumps([1])",
    ),
    "a replaced module": (
        "import sys, types; sys.modules['json'] = types.ModuleType('json')",
        "import json; result = hasattr(json, 'dumps')",
    ),
    "a hook": (
        "import sys; sys.settrace(lambda *a: None)",
        "import sys; result = str(sys.gettrace())",
    ),
}


@pytest.mark.parametrize("what", LEAKS)
async def test_what_a_task_changes_in_its_process_does_not_reach_the_next(python, what):
    change, look = LEAKS[what]
    # A first call, so that both looks see the same warm modules.
    await python("import json, decimal, socket, resource")
    before = await python(look)
    assert before.error is None
    await python(change)
    after = await python(look)
    assert after.error is None
    assert after.result == before.result


async def test_a_seed_of_chance_does_not_reach_the_next(python):
    look = "import random; result = random.random()"
    await python("import random; random.seed(42)")
    seen = {(await python(look)).result, (await python(look)).result}
    await python("import random; random.seed(42)")
    assert (await python(look)).result not in seen


async def test_a_thread_that_is_left_over_costs_the_process(python):
    first = await pid_of(python)
    await python(
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    assert await pid_of(python) != first


async def test_a_child_that_is_left_over_is_ended_with_the_process(python, tmp_path: Path):
    first = await pid_of(python)
    code = "import subprocess; result = subprocess.Popen(['sleep', '600']).pid"
    child = (await python(code)).result
    assert await pid_of(python) != first
    assert not _lives(child)


async def test_a_process_that_is_left_as_it_was_is_used_again(python):
    first = await pid_of(python)
    await python("import subprocess; subprocess.run(['true'], check=True)")
    await python("import asyncio\nasync def main():\n    await asyncio.to_thread(print, 'x')")
    await python("import os; os.environ['A'] = 'b'; os.chdir('/'); os.umask(0)")
    assert await pid_of(python) == first


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_who_is_cancelled_while_a_process_is_ended_leaves_nothing_of_it() -> None:
    process = await PythonProcess.start(sys.executable)
    ending = asyncio.ensure_future(process.stop())
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert process._process.returncode == -signal.SIGKILL
    assert process._process._transport.is_closing()  # type: ignore[attr-defined]  # asyncio's own warns if it is not
