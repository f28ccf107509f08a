"""docs/tools.md is run: every example gives the result that is printed below it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from treadle.tools import fields as tool_fields
from treadle.tools.protocol import ToolCall
from treadle.tools.registry import ToolRegistry

TEXT = (Path(__file__).parents[3] / "docs" / "tools.md").read_text()
EXAMPLES = [
    (yaml.safe_load(task)["kind"], yaml.safe_load(task), json.loads(result))
    for task, result in re.findall(r"```yaml\n(.*?)```\n```json\n(.*?)```", TEXT, re.S)
]
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## )", TEXT, re.S | re.M))
TOOLS = Path(tool_fields.__file__).parent
SOURCES = {kind: [TOOLS / f"{kind}.py"] for kind in tool_fields.BUILT_IN}
SOURCES["postgres"].append(TOOLS / "sql.py")
SOURCES["duckdb"].append(TOOLS / "sql.py")
FIELDS = tool_fields.BUILT_IN
# Written by the compiler, or by people who know PostgreSQL.
UNSAID = {"context", "sslmode", "options", "application_name", "sql", "sql_b64"}
BUILT_IN = ["noop", "python", "shell", "http", "postgres", "duckdb", "nats", "artifact", "transfer"]


def test_every_tool_has_a_section_and_an_example():
    assert [kind for kind, _, _ in EXAMPLES] == BUILT_IN
    assert set(BUILT_IN) <= set(SECTIONS)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_field_that_a_tool_declares_is_in_its_section(kind):
    names = [field.name.removesuffix("_b64") for field in FIELDS[kind].fields if field.name not in UNSAID]
    missing = [name for name in names if not re.search(rf"\b{name}\b", SECTIONS[kind])]
    assert missing == []


@pytest.mark.parametrize("kind", BUILT_IN)
def test_every_field_that_a_tool_reads_is_declared(kind):
    """Read from the tool's own text: `need(config, …)`, `pick(config, …)`, `config.get(…)`."""
    source = "".join(path.read_text() for path in SOURCES[kind])
    read = set(re.findall(r'\bconfig(?:\.get\(|\[)"(\w+)"', source))
    for call in re.findall(r"\b(?:need|pick|mapping)\(config, ([^)]*)\)", source):
        read |= set(re.findall(r'"(\w+)"', call))
    sides = {"tool", "type", "kind", "query", "table"} if kind == "transfer" else set()
    assert read - sides - {"name", "timeout", "spec", "args", "input"} - set(FIELDS[kind].names) == set()


@pytest.mark.parametrize(("kind", "task", "result"), EXAMPLES, ids=BUILT_IN)
async def test_the_example_gives_what_it_says(run, request, tmp_path, kind, task, result):
    secrets: dict[str, Any] = {"api_token": "token-of-the-docs"}
    text = json.dumps(task)
    if "pg_main" in text:
        secrets["pg_main"] = request.getfixturevalue("pg")
    if "nats_main" in text:
        url = request.getfixturevalue("nats_url")
        secrets["nats_main"] = {"nats_url": url, "nats_user": "ann", "nats_password": "secret-of-ann"}
    if "http://localhost:8080" in text:
        text = text.replace("http://localhost:8080", request.getfixturevalue("web").url)
    if kind == "transfer":
        await run("postgres", {**secrets["pg_main"], "command": "create table city (id int, name text)"})

    async def secret(name: str) -> Any:
        return secrets[name]

    outcome = await run(kind, json.loads(text), secret=secret, base=str(tmp_path), idempotency_key="k")
    assert outcome.error is None
    assert _within(result, outcome.result), outcome.result


def _within(expected: Any, got: Any) -> bool:
    """Whether everything that is shown is there; the docs may leave fields out."""
    if isinstance(expected, dict):
        return isinstance(got, dict) and all(k in got and _within(v, got[k]) for k, v in expected.items())
    return bool(expected == got)


async def test_the_functions_of_the_page_work():
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", TEXT, re.S)[0], names)
    registry: ToolRegistry = names["registry"]
    task = {"kind": "slack", "channel": "#ops", "args": {"text": "hi"}}
    outcome = await registry.get("slack").run(task, ToolCall(idempotency_key="k"))
    assert outcome.result == {"channel": "#ops", "sent": "hi", "key": "k"}
    task = {"kind": "python", "callable": "double", "args": {"x": 4}}
    assert (await registry.get("python", task).run(task, ToolCall())).result == 8
