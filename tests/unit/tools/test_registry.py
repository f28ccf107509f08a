from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from importlib import metadata
from typing import Any

import pytest

from treadle.kernel.errors import TreadleError
from treadle.tools.protocol import Outcome, ToolCall
from treadle.tools.registry import FunctionTool, ToolRegistry, UnknownTool


async def test_noop_says_noop_or_passes_its_result_through(run):
    assert (await run("noop", {})).result == {"status": "noop"}
    assert (await run("noop", {"result": {"a": 1}})).result == {"a": 1}
    assert (await run("noop", {"result": None})).result is None


async def test_a_function_gets_the_args_by_keyword_and_gives_the_result(registry, run):
    @registry.tool("add")
    def add(a: int, b: int = 10) -> dict[str, Any]:
        return {"sum": a + b, "on": date(2026, 11, 15), "exact": Decimal("1.10"), "pair": (1, 2)}

    outcome = await run("add", {"kind": "add", "name": "t", "args": {"a": 1}})
    assert outcome.status == "ok"
    assert outcome.result == {"sum": 11, "on": "2026-11-15", "exact": "1.10", "pair": [1, 2]}
    assert (await run("add", {"input": {"a": 1, "b": 1}})).result["sum"] == 2
    assert add(1)["sum"] == 11, "the decorated function stays itself"


async def test_a_tasks_own_fields_are_arguments_too_and_args_win(registry, run):
    @registry.tool("slack")
    def slack(channel: str, text: str) -> str:
        return f"{channel}: {text}"

    task = {"kind": "slack", "channel": "#ops", "text": "old", "unknown": 1, "args": {"text": "new"}}
    assert (await run("slack", task)).result == "#ops: new"


async def test_an_async_function_is_awaited_and_can_see_the_call(registry, run):
    @registry.tool("later")
    async def later(call: ToolCall, text: str) -> str:
        await asyncio.sleep(0)
        return f"{text} {call.idempotency_key}"

    assert (await run("later", {"args": {"text": "hi"}}, idempotency_key="k1")).result == "hi k1"


async def test_an_object_with_an_async_call_is_awaited_too(registry, run):
    class Later:
        async def __call__(self, x: int) -> int:
            return x + 1

    registry.register(FunctionTool("obj", Later()))
    assert registry.get("obj").sync is False
    assert (await run("obj", {"x": 1})).result == 2


def test_threads_that_ask_at_once_get_the_same_tool(registry):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: registry.get("http"), range(64)))
    assert len(set(map(id, found))) == 1


async def test_an_exception_is_an_outcome_of_kind_python(registry, run):
    @registry.tool("boom")
    def boom() -> None:
        raise ValueError("no such thing")

    outcome = await run("boom", {})
    assert outcome.status == "error"
    assert outcome.error["kind"] == "python"
    assert outcome.error["exception_type"] == "ValueError"
    assert "no such thing" in outcome.error["message"]
    assert "in boom" in outcome.py["traceback"]
    assert "tools/registry.py" not in outcome.py["traceback"]


async def test_a_result_without_a_plain_form_and_wrong_args_are_outcomes_too(registry, run):
    @registry.tool("odd")
    def odd(deep: bool = False) -> Any:
        return {"a": [object()]} if deep else object()

    outcome = await run("odd", {"args": {"deep": True}})
    assert outcome.error["kind"] == "python"
    assert "$.a[0]" in outcome.error["message"]
    assert "unexpected keyword" in (await run("odd", {"args": {"nope": 1}})).error["message"]


async def test_a_function_may_return_an_outcome(registry, run):
    @registry.tool("choosy")
    def choosy() -> Outcome:
        return Outcome.failed("rate_limit", "slow down", retryable=True)

    assert (await run("choosy", {})).error["kind"] == "rate_limit"


def test_plain_functions_never_suspend_and_say_so(registry):
    @registry.tool("plain", idempotent=True)
    def plain(x: int) -> int:
        return x

    @registry.tool("coro")
    async def coro() -> None:
        return None

    tool = registry.get("plain")
    assert (tool.sync, tool.idempotent) == (True, True)
    assert registry.get("coro").sync is False
    assert registry.get("noop").sync is True
    driven = tool.run({"args": {"x": 5}}, ToolCall())
    with pytest.raises(StopIteration) as stop:
        driven.send(None)
    assert stop.value.value.result == 5


def test_a_registered_callable_stands_in_for_the_python_task_that_names_it(registry):
    @registry.function("double", idempotent=True)
    def double(x: int) -> int:
        return 2 * x

    task = {"kind": "python", "callable": "double"}
    assert registry.get("python", task).sync is True
    assert registry.is_idempotent("python", task) is True
    assert registry.is_idempotent("python", {"code": "result = 1"}) is False
    assert registry.is_idempotent("python", {"code": "result = 1", "idempotent": True}) is True


def test_http_is_idempotent_by_method(registry):
    assert registry.is_idempotent("http", {"url": "http://x"}) is True
    assert registry.is_idempotent("http", {"url": "http://x", "method": "put"}) is True
    assert registry.is_idempotent("http", {"url": "http://x", "method": "POST"}) is False
    assert registry.is_idempotent("http", {"url": "http://x", "json": {}}) is False


@pytest.mark.parametrize("kind", ["container", "script", "snowflake", "gcs", "nonsense"])
def test_an_unknown_kind_is_a_lookup_error_that_names_the_remedy(registry, kind):
    with pytest.raises(UnknownTool) as caught:
        registry.get(kind)
    assert isinstance(caught.value, LookupError)
    assert isinstance(caught.value, TreadleError)
    assert caught.value.code == "UNKNOWN_TOOL"
    assert "treadle.tools" in caught.value.message
    assert "@engine.tool" in caught.value.message
    assert kind not in registry


def test_a_misspelt_kind_gets_a_suggestion(registry):
    with pytest.raises(UnknownTool, match="Did you mean 'postgres'"):
        registry.get("postgress")


def test_a_missing_extra_is_named(registry, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "treadle.tools.duckdb", raising=False)
    with pytest.raises(UnknownTool, match=r"pip install 'treadle\[duckdb\]'"):
        registry.get("duckdb")


class PluginTool:
    kind = "plugged"
    idempotent = True
    closed = 0

    async def run(self, config: dict[str, Any], call: ToolCall) -> Outcome:
        return Outcome(result="from a package")

    async def close(self) -> None:
        type(self).closed += 1


def shout(text: str) -> str:
    return text.upper()


@pytest.fixture
def plugins(monkeypatch):
    here = __name__
    sys.modules.setdefault(here, sys.modules[__name__])
    entries = [
        metadata.EntryPoint("plugged", f"{here}:PluginTool", "treadle.tools"),
        metadata.EntryPoint("shout", f"{here}:shout", "treadle.tools"),
        metadata.EntryPoint("noop", f"{here}:shout", "treadle.tools"),
    ]

    def found(*, group: str) -> list[metadata.EntryPoint]:
        return [e for e in entries if e.group == group]

    monkeypatch.setattr(metadata, "entry_points", found)


async def test_entry_points_bring_tools(plugins, run, registry):
    assert (await run("plugged", {})).result == "from a package"
    assert (await run("shout", {"text": "hi"})).result == "HI"
    assert (await run("noop", {})).result == {"status": "noop"}, "a plug-in never replaces a built-in tool"
    assert {"plugged", "shout"} <= set(registry.kinds())


async def test_what_is_registered_wins_over_a_built_in_tool(registry, run):
    @registry.tool("http")
    def fake() -> str:
        return "mine"

    assert (await run("http", {})).result == "mine"


async def test_close_closes_every_tool_even_if_one_fails():
    class Bad(PluginTool):
        kind = "bad"

        async def close(self) -> None:
            raise OSError("stuck")

    before = PluginTool.closed
    registry = ToolRegistry()
    registry.register(Bad())
    registry.register(PluginTool())
    with pytest.raises(ExceptionGroup):
        await registry.close()
    assert PluginTool.closed == before + 1


def test_the_registry_imports_no_tool_until_it_is_asked_for():
    code = (
        "import sys; from treadle.tools.registry import ToolRegistry; r = ToolRegistry(); r.kinds(); r.get('noop');"
        "print([m for m in ('httpx', 'psycopg', 'duckdb', 'nats', 'cryptography') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
