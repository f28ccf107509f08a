from __future__ import annotations

import asyncio
import base64
import os
import sys
import threading
from typing import Any

import pytest

from treadle.kernel import encode

from .conftest import wait_until

CODE_FORMS = {
    "result variable": ("result = a + 1", 3),
    "top-level return": ("if a == 2:\n    return {'got': a}\nreturn None", {"got": 2}),
    "main by name": ("def main(a, b=5):\n    return a + b", 7),
    "main with everything": ("def main(**given):\n    return given", {"a": 2}),
    "main with one mapping": ("def main(data):\n    return data['a']", 2),
    "main with input_data": ("def main(input_data):\n    return input_data['a']", 2),
    "async main": ("import asyncio\nasync def main(a):\n    await asyncio.sleep(0)\n    return a", 2),
    "result beats main": ("def main(a):\n    return 'main'\nresult = main(a) + '!'", "main!"),
    "arguments can be assigned": ("a = a + 1\nreturn a", 3),
    "input_data": ("result = input_data['a']", 2),
    "args": ("result = args['a']", 2),
    "context": ("result = [context['a'], context['execution_id'], context['attempt']]", [2, "run-1", 1]),
    "nothing": ("x = 1", None),
    "exit 0": ("import sys\nsys.exit(0)", None),
}


@pytest.mark.parametrize("form", CODE_FORMS)
async def test_every_form_of_code_gives_its_result(run, form):
    code, expected = CODE_FORMS[form]
    outcome = await run("python", {"name": "t", "code": code, "args": {"a": 2}}, run="run-1")
    assert outcome.error is None
    assert outcome.result == expected


async def test_input_is_another_name_for_args(run):
    assert (await run("python", {"code": "result = a", "input": {"a": 4}})).result == 4


async def test_code_can_come_encoded_or_from_a_file(run, tmp_path):
    encoded = base64.b64encode(b"result = 'decoded'").decode()
    assert (await run("python", {"code_b64": encoded})).result == "decoded"
    (tmp_path / "job.py").write_text("def main(x):\n    return x * 2")
    script = {"uri": "job.py", "source": {"type": "file"}}
    assert (await run("python", {"script": script, "args": {"x": 4}}, base=str(tmp_path))).result == 8
    outcome = await run("python", {"script": "gone.py"}, base=str(tmp_path))
    assert outcome.error["kind"] == "schema"
    assert "gone.py" in outcome.error["message"]


async def test_a_script_can_come_over_http(run, web):
    url = web.url + "/raw?type=text/plain&body=result%20%3D%2041%20%2B%201"
    assert (await run("python", {"script": {"uri": url, "source": {"type": "http"}}})).result == 42


async def test_libs_are_imported_under_their_alias(run):
    libs = {"m": "math", "Dec": {"from": "decimal", "import": "Decimal"}}
    outcome = await run("python", {"code": "result = [m.floor(2.5), Dec('1.5')]", "libs": libs})
    assert outcome.result == [2, "1.5"]


async def test_deps_extend_the_import_path_and_missing_packages_are_named(run, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "treadle_helper.py").write_text("VALUE = 'found'")
    code = "import treadle_helper\nresult = treadle_helper.VALUE"
    outcome = await run("python", {"code": code, "deps": {"sys_path": ["lib"]}}, base=str(tmp_path))
    assert outcome.result == "found"
    outcome = await run("python", {"code": "result = 1", "deps": {"packages": ["no-such-package>=1"]}})
    assert outcome.error["exception_type"] == "ModuleNotFoundError"
    assert "pip install no-such-package" in outcome.error["message"]


async def test_another_interpreter_can_be_chosen(run, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    code = "import sys\nresult = sys.executable"
    outcome = await run("python", {"code": code, "deps": {"venv_path": "venv"}}, base=str(tmp_path))
    assert outcome.result == str(tmp_path / "venv" / "bin" / "python")
    outcome = await run("python", {"code": code, "deps": {"venv_path": "none"}}, base=str(tmp_path))
    assert "no virtual environment" in outcome.error["message"]


async def test_libraries_are_not_hidden_by_our_own_files(run):
    outcome = await run("python", {"code": "import http.client\nresult = http.client.OK"})
    assert outcome.result == 200


async def test_values_come_back_canonical(run):
    code = (
        "import datetime, decimal, uuid\n"
        "result = {'t': (1, 2), 'd': datetime.date(2026, 1, 2), 'n': decimal.Decimal('1.50'), 'b': b'\\xff\\x00',\n"
        "  'u': uuid.UUID(int=1), 's': {2, 1}, 'big': 10**30, 1: 'one',\n"
        "  'given': data}"
    )
    outcome = await run("python", {"code": code, "args": {"data": {"raw": b"\x01\xfe", "deep": [None, 1.5]}}})
    assert outcome.result == {
        "t": [1, 2],
        "d": "2026-01-02",
        "n": "1.50",
        "b": b"\xff\x00",
        "u": "00000000-0000-0000-0000-000000000001",
        "s": [1, 2],
        "big": "1000000000000000000000000000000",
        "1": "one",
        "given": {"raw": b"\x01\xfe", "deep": [None, 1.5]},
    }
    encode(outcome.result)


# Values that cannot be kept as they are, and what the error says of them.
CHANGED = {
    "not a number": ("{'a': [float('nan')]}", "$.a[0]: nan"),
    "infinite": ("{'a': float('-inf')}", "$.a: -inf"),
    "two keys": ("{'a': {1: 2, '1': 3}}", "$.a: the keys 1 and '1'"),
    "half a character": ("{'a': 'caf\\udce9'}", "$.a: the text has half a character"),
    "half a character in a key": ("{'a': {'caf\\udce9': 1}}", "$.a: the text has half a character"),
}


@pytest.mark.parametrize("what", CHANGED)
async def test_no_value_is_changed_in_silence(run, registry, what):
    code, said = CHANGED[what]
    inline = await run("python", {"code": f"result = {code}"})
    registry.tool("odd")(lambda: eval(code))  # noqa: S307 - ours
    registered = await run("odd", {})
    for outcome in (inline, registered):
        assert outcome.error["kind"] == "python"
        assert said in outcome.error["message"]


async def test_a_result_without_a_plain_form_names_its_path(run):
    outcome = await run("python", {"code": "result = {'a': [object()]}"})
    assert outcome.error["kind"] == "python"
    assert "$.a[0]" in outcome.error["message"]


async def test_an_exception_tells_type_message_and_the_line_of_the_code(run):
    code = "def work():\n    raise KeyError('city')\nwork()"
    outcome = await run("python", {"name": "lookup", "code": code})
    assert outcome.error["kind"] == "python"
    assert outcome.error["exception_type"] == "KeyError"
    assert outcome.py["exception_type"] == "KeyError"
    assert 'File "<lookup>", line 2, in work' in outcome.py["traceback"]
    assert "raise KeyError('city')" in outcome.py["traceback"]
    assert "python_child" not in outcome.py["traceback"]


async def test_an_exception_keeps_its_traceback_in_the_details(run, registry):
    def lookup() -> None:
        raise KeyError(object())

    registry.tool("lookup")(lookup)
    inline = await run("python", {"name": "t", "code": "def work():\n    raise KeyError(object())\nwork()"})
    registered = await run("lookup", {})
    for outcome, place in ((inline, 'File "<t>", line 2, in work'), (registered, __file__)):
        told = outcome.error["details"]["traceback"]
        assert place in told
        assert "raise KeyError(object())" in told
        assert "0x…" in outcome.error["message"]
        assert "0x…" in told
        assert "0x7" not in told + outcome.error["message"]


async def test_a_long_traceback_is_cut_at_its_beginning(run):
    outcome = await run("python", {"code": "def deep(n):\n    deep(n + 1)\ndeep(0)"})
    told = outcome.error["details"]["traceback"]
    assert len(told) < 4000
    assert told.rstrip().endswith("RecursionError: maximum recursion depth exceeded")


async def test_a_result_that_is_too_large_is_refused(run):
    outcome = await run("python", {"code": "result = 'x' * (65 * 1024 * 1024)"})
    assert outcome.error["code"] == "RESULT_TOO_LARGE"
    assert "68,157," in outcome.error["message"]


async def test_syntax_errors_and_exit_codes_are_errors(run):
    assert (await run("python", {"code": "result ="})).error["exception_type"] == "SyntaxError"
    assert (await run("python", {"code": "import sys; sys.exit(2)"})).error["exception_type"] == "SystemExit"
    outcome = await run("python", {"code": "def main(city, day): return 1", "args": {"day": 1}})
    assert "main() wants city" in outcome.error["message"]
    assert (await run("python", {})).error["kind"] == "schema"


async def test_what_the_code_prints_is_progress(run):
    seen: list[tuple[str, str]] = []

    async def progress(type: str, **data: Any) -> None:
        seen.append((type, data["stream"] + ":" + data["text"]))

    code = "import sys\nprint('one')\nprint('two')\nprint('bad', file=sys.stderr)\nresult = 1"
    assert (await run("python", {"code": code}, progress=progress)).result == 1
    assert {kind for kind, _ in seen} == {"output"}
    text = "".join(text.removeprefix("stdout:") for _, text in seen if text.startswith("stdout:"))
    assert text == "one\ntwo\n"
    assert ("output", "stderr:bad\n") in seen


async def test_output_is_bounded(run):
    sizes: list[int] = []

    async def progress(type: str, **data: Any) -> None:
        sizes.append(len(data["text"]))

    code = "for _ in range(40):\n    print('x' * 100_000)\nresult = 'done'"
    assert (await run("python", {"code": code}, progress=progress)).result == "done"
    assert 1_000_000 <= sum(sizes) < 1_200_000


async def test_code_out_of_time_is_killed_with_all_it_started(run, tmp_path):
    marker = tmp_path / "pid"
    code = (
        "import subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '600'])\nopen({str(marker)!r}, 'w').write(str(child.pid))\n"
        "while True:\n    time.sleep(1)"
    )
    outcome = await run("python", {"code": code, "timeout": 5})  # long enough for it to start its child
    assert outcome.error["kind"] == "timeout"
    assert outcome.error["retryable"] is True
    pid = int(marker.read_text())
    wait_until(lambda: not _alive(pid))


async def test_cancel_kills_code_that_never_yields(registry, run, tmp_path):
    marker = tmp_path / "pid"
    code = f"import os\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\nwhile True: pass"
    task = asyncio.create_task(run("python", {"code": code}))
    await asyncio.to_thread(wait_until, lambda: marker.exists() and marker.read_text() != "")
    pid = int(marker.read_text())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    wait_until(lambda: not _alive(pid))
    assert (await run("python", {"code": "result = 'next'"})).result == "next"


async def test_the_memory_limit_holds(run):
    outcome = await run("python", {"code": "x = bytearray(400_000_000)\nresult = len(x)", "memory_mb": 256})
    assert outcome.error["exception_type"] == "MemoryError"
    outcome = await run("python", {"code": "x = bytearray(400_000_000)\nresult = len(x)", "memory_mb": 1024})
    assert outcome.result == 400_000_000
    assert (await run("python", {"code": "result = 1", "memory_mb": "lots"})).error["kind"] == "schema"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os._exit(7)", "exited with code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
    ],
)
async def test_a_crash_is_a_clear_outcome_and_the_next_task_gets_a_fresh_process(run, code, words):
    first = await run("python", {"code": "import os; result = os.getpid()"})
    crash = await run("python", {"code": "print('before')\n" + code})
    assert crash.error["kind"] == "python"
    assert crash.error["code"] == "PROCESS_DIED"
    assert words in crash.error["message"]
    assert "before" in crash.error["details"]["output"]
    after = await run("python", {"code": "import os; result = os.getpid()"})
    assert after.result != first.result


async def test_a_process_stays_warm_but_names_do_not_leak_into_the_next_task(run):
    one = await run(
        "python", {"code": "secret_name = 1\nimport os\nos.environ['LEAK'] = '1'\nresult = os.getpid()"}
    )
    code = "import os\nresult = [os.getpid(), 'secret_name' in globals(), os.environ.get('LEAK')]"
    assert (await run("python", {"code": code})).result == [one.result, False, None]


async def test_an_isolated_task_has_a_process_of_its_own(run):
    pid = {"code": "import os; result = os.getpid()"}
    first, isolated, second = [await run("python", task) for task in (pid, {**pid, "isolated": True}, pid)]
    assert isolated.result != first.result == second.result


async def test_a_process_that_keeps_threads_is_not_used_again(run):
    code = "import threading, os\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nresult = os.getpid()"
    first = await run("python", {"code": code})
    assert (await run("python", {"code": "import os; result = os.getpid()"})).result != first.result


async def test_the_engines_environment_is_not_the_codes(run, monkeypatch):
    monkeypatch.setenv("TREADLE_SECRET_DB", "hunter2hunter2")
    monkeypatch.setenv("SOME_API_KEY", "hunter2hunter2")
    code = "import os\nresult = [os.environ.get(k) for k in ('TREADLE_SECRET_DB', 'SOME_API_KEY', 'MINE')]"
    assert (await run("python", {"code": code, "env": {"MINE": "given"}})).result == [None, None, "given"]


async def test_several_tasks_run_at_the_same_time(run, tmp_path):
    code = (
        "import pathlib, time\npathlib.Path(mine).touch()\nend = time.time() + 10\n"
        "while not pathlib.Path(other).exists():\n    assert time.time() < end\n    time.sleep(0.01)\nresult = True"
    )
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    both = await asyncio.gather(
        run("python", {"code": code, "args": {"mine": a, "other": b}}),
        run("python", {"code": code, "args": {"mine": b, "other": a}}),
    )
    assert [outcome.result for outcome in both] == [True, True]


async def test_a_registered_callable_runs_in_this_process(registry, run):
    @registry.function()
    def where(x: int) -> list[int]:
        return [os.getpid(), threading.get_ident(), x]

    @registry.function("soon")
    async def later(x: int) -> int:
        return x + 1

    pid, thread, x = (await run("python", {"callable": "where", "args": {"x": 3}})).result
    assert (pid, x) == (os.getpid(), 3)
    tool = registry.get("python")
    from treadle.tools.protocol import ToolCall

    _, thread, _ = (await tool.run({"callable": "where", "args": {"x": 3}}, ToolCall())).result
    assert thread != threading.get_ident(), "a plain function must not block the loop"
    assert (await run("python", {"callable": "soon", "args": {"x": 1}})).result == 2
    missing = await run("python", {"callable": "nope"})
    assert missing.error["kind"] == "schema"
    assert "soon, where" in missing.error["message"]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().split()[2] != "Z"


async def test_code_does_not_outlive_an_engine_that_was_killed(tmp_path):
    marker = tmp_path / "pid"
    task = f"import os, time\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    engine = (
        "import asyncio\nfrom treadle.tools.registry import ToolRegistry\nfrom treadle.tools.protocol import ToolCall\n"
        f"asyncio.run(ToolRegistry().get('python').run({{'code': {task!r}}}, ToolCall()))"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", engine)
    await asyncio.to_thread(wait_until, lambda: marker.exists() and marker.read_text() != "")
    process.kill()
    await process.wait()
    pid = int(marker.read_text())
    await asyncio.to_thread(wait_until, lambda: not _alive(pid))
