"""The public surface: small, documented, cheap to import, and changed only on purpose."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PUBLIC = {
    "treadle": ["Engine", "Run", "RunFailed", "TreadleError", "__version__"],
    "treadle.sync": ["Engine", "Run"],
    "treadle.testing": [
        "Driver",
        "Outcome",
        "Play",
        "ScriptedModel",
        "ScriptedTool",
        "VirtualClock",
        "assert_replays",
        "play",
    ],
}

# Each takes tens of milliseconds or brings an extra; `import treadle` wants none of them.
HEAVY = (
    "asyncio", "sqlite3", "jinja2", "msgspec", "httpx", "yaml", "typer", "rich", "cryptography", "jsonschema",
    "libipld", "duckdb", "psycopg", "nats", "anthropic", "openai", "mcp", "pydantic", "pytest", "treadle.engine",
)  # fmt: skip
# What `treadle --help` has no use for.
HEAVY_FOR_HELP = (
    "httpx", "cryptography", "jinja2", "jsonschema", "duckdb", "psycopg", "nats", "anthropic", "openai", "mcp",
    "pydantic", "pytest", "treadle.engine",
)  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_are_exactly_these(module: str) -> None:
    found = import_module(module)
    assert sorted(found.__all__) == PUBLIC[module]
    for name in found.__all__:
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(found, name)), f"{module}.{name} has no docstring"


@pytest.mark.parametrize("module", ["treadle.process", "treadle.reactive", "treadle.agent", "treadle.flow"])
def test_what_authors_import_is_listed_and_documented(module: str) -> None:
    found = import_module(module)
    assert found.__all__ == sorted(found.__all__)
    for name in found.__all__:
        value = getattr(found, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{module}.{name} has no docstring"


def test_every_public_method_of_the_engine_is_documented() -> None:
    import treadle

    for cls in (treadle.Engine, treadle.Run):
        silent = [
            name
            for name, value in vars(cls).items()
            if not name.startswith("_") and inspect.isfunction(value) and not value.__doc__
        ]
        assert not silent, f"{cls.__name__}: {silent}"


def test_an_unknown_name_is_an_ordinary_attribute_error() -> None:
    import treadle

    with pytest.raises(AttributeError, match="nobody"):
        _ = treadle.nobody


def loaded_by(code: str) -> set[str]:
    listing = f"{code}\nimport sys; sys.stderr.write('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines())


def test_import_treadle_imports_nothing_heavy() -> None:
    found = loaded_by("import treadle") & set(HEAVY)
    assert not found, f"import these where they are used: {sorted(found)}"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['treadle', '--help']\n"
        "from treadle.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass"
    )
    found = loaded_by(code) & {*HEAVY_FOR_HELP, "asyncio", "msgspec", "tempfile"}
    assert not found, f"import these where they are used: {sorted(found)}"


# What a first result has no use for, whatever its dialect: extras, what only people look at, what looks through the
# installed packages, what only some houses have.
UNUSED = (
    *HEAVY_FOR_HELP[:1], *HEAVY_FOR_HELP[3:-1], "typer", "rich", "cryptography", "ctypes", "difflib", "email", "http", "importlib.metadata",
    "importlib.resources", "logging.config", "multiprocessing", "zipfile", "zoneinfo",
    "treadle.access.tokens", "treadle.apps.operations", "treadle.client", "treadle.dialects.agent", "treadle.dialects.reactive",
    "treadle.draw", "treadle.host.checkup", "treadle.host.pool_sharing", "treadle.host.sharing", "treadle.lang.graph", "treadle.lang.json_schema", "treadle.lang.yaml_text",
    "treadle.bus.protocol", "treadle.performers.agent", "treadle.runtime.desk", "treadle.runtime.doctor", "treadle.runtime.document",
    "treadle.runtime.returns", "treadle.runtime.schedules", "treadle.runtime.tasks", "treadle.lang.recurrence", "treadle.lang.schedules", "treadle.store.members",
    "treadle.store.protocol", "treadle.store.sharing", "treadle.secrets.keychain", "treadle.server", "treadle.store.archives",
    "treadle.store.backups", "treadle.store.copying", "treadle.store.postgres", "treadle.telemetry", "treadle.testing",
    "treadle.tools.python_pool", "treadle.views",
)  # fmt: skip
# And what a first result of a playbook has no use for.
ELSEWHERE = (
    "treadle.dialects.function", "treadle.dialects.playbook.states", "treadle.dialects.process", "treadle.performers.playbook.lease",
    "treadle.performers.process",
)  # fmt: skip
# Classes with fields that stay dataclasses: others make copies of them by `dataclasses.replace`, or take them apart.
DATACLASSES = {"Definition", "Problem", "ToolCall"}
PROCESS = """
from treadle.process import process, result

@process("first", version="1")
def first(p):
    p.call("one", payload={}, into="n")
    p.complete(result.n)

def prepare(engine):
    engine.transport("one")(lambda payload: 1)
    engine.deploy(first)
"""
PLAYBOOK = """
def prepare(engine):
    engine.tool("one")(lambda: 1)
    with open("first.yaml", "w") as file:
        file.write("metadata: {name: first}\\nworkflow: [{step: s, tool: {kind: one}}]")
    engine.deploy("first.yaml")
"""
PLAYBOOK_AS_JSON = """
import json
TOOL = {"kind": "more", "n": "{{ args.n | default(0) }}"}
ARC = {"step": "s", "when": "{{ event.result < workload.most }}", "args": {"n": "{{ event.result }}"}}
STEP = {"step": "s", "tool": TOOL, "next": {"arcs": [ARC]}}

def prepare(engine):
    engine.tool("more")(lambda n: n + 1)
    with open("first.json", "w") as file:
        json.dump({"metadata": {"name": "first"}, "workload": {"most": 1}, "workflow": [STEP]}, file)
    engine.deploy("first.json")
"""
FUNCTION = """
from treadle import flow

@flow.step
def one() -> int:
    return 1

@flow.workflow(version="1", name="first")
async def first(ctx: flow.Context) -> int:
    return await one()

def prepare(engine):
    engine.deploy(first)
"""
FIRST_RESULT = """
import asyncio, sys
from treadle import Engine

async def main():
    engine = Engine("sqlite:///first.db")
    prepare(engine)
    async with engine:
        assert await (await engine.start("first")).result() == 1

asyncio.run(main())
for name in [name for name in sys.modules if name.startswith("treadle")]:
    for made in vars(sys.modules[name]).values():
        if isinstance(made, type) and made.__module__ == name and "__dataclass_fields__" in vars(made):
            print("dataclass", made.__name__)
print("\\n".join(sys.modules))
"""


@pytest.mark.parametrize(
    ("dialect", "code", "unused"),
    [
        (
            "process",
            PROCESS,
            ("yaml", "jinja2", "tempfile", "treadle.dialects.playbook", "treadle.dialects.function"),
        ),
        (
            "playbook",
            PLAYBOOK,
            ("jinja2", *ELSEWHERE),
        ),
        (
            "playbook",
            PLAYBOOK_AS_JSON,
            ("yaml", "jinja2", "tempfile", *ELSEWHERE),
        ),
        (
            "function",
            FUNCTION,
            (
                *("yaml", "jinja2", "tempfile"),
                *("treadle.dialects.playbook", "treadle.dialects.process", "treadle.performers.process"),
            ),
        ),
    ],
)
def test_a_first_result_imports_only_what_it_uses(
    dialect: str, code: str, unused: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "first.py").write_text(code + FIRST_RESULT)
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.splitlines())
    assert f"treadle.dialects.{dialect}" in found
    loaded = found & {*UNUSED, *unused}
    assert not loaded, f"import these where they are used: {sorted(loaded)}"
    slow = {line.removeprefix("dataclass ") for line in found if line.startswith("dataclass ")} - DATACLASSES
    assert not slow, (
        f"each of these takes a millisecond at every start; make them msgspec.Struct: {sorted(slow)}"
    )


def test_the_process_of_a_query_imports_nothing_of_the_agent() -> None:
    found = loaded_by("import treadle.performers.agent.skills.duckdb_child")
    unused = {
        "asyncio",
        "httpx",
        "jsonschema",
        "yaml",
        "treadle.performers.agent.skill",
        "treadle.work",
        "treadle.dialects.agent",
    }
    assert not found & unused, f"a process is started for each query: {sorted(found & unused)}"


def test_the_version_is_told_without_an_application() -> None:
    code = (
        "import sys; sys.argv = ['treadle', '--version']\n"
        "from treadle.cli.main import main\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 0"
    )
    found = loaded_by(code) & {"typer", "rich", "asyncio", "msgspec", "inspect", "treadle.cli.application"}
    assert not found, f"import these where they are used: {sorted(found)}"


@pytest.mark.parametrize(
    ("command", "own"),
    [("list --json", "listing"), ("tasks --json", "tasks"), ("run first.yaml --json", "runs")],
)
def test_a_command_imports_its_own_subject_and_converts_nothing_that_is_as_wanted(
    command: str, own: str, tmp_path: Path
) -> None:
    file = tmp_path / "first.yaml"
    file.write_text("metadata: {name: first}\nworkflow: [{step: s, tool: {kind: noop}}]")
    words = ["treadle", *command.replace("first.yaml", str(file)).split(), "--store", "memory:"]
    code = (
        f"import sys; sys.argv = {words}\n"
        "from treadle.cli.main import main\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 0"
    )
    found = loaded_by(code)
    assert f"treadle.cli.{own}" in found
    others = {f"treadle.cli.{name}" for name in ("house", "hooks", "listing", "serving", "tokens", "working")}
    unused = others - {f"treadle.cli.{own}"} | {"pydantic", "importlib.metadata"}
    assert not found & unused, f"import these where they are used: {sorted(found & unused)}"


def test_the_list_of_commands_is_the_same_without_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    from typer.main import get_command

    from treadle.cli.application import application

    shown = []
    for outline in (True, False):
        get_command(application(outline=outline))(["--help"], prog_name="treadle", standalone_mode=False)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert "treadle check flow.yaml" in shown[0]


def test_every_command_is_found_under_its_name() -> None:
    from treadle.cli.application import SUBJECTS

    for subject in SUBJECTS:
        assert [*subject.names] == subject.load().names, f"treadle/cli/application.py: {subject.module}"


def test_the_engine_refuses_to_run_without_its_assertions() -> None:
    code = "from treadle import Engine\ntry: Engine('memory:')\nexcept Exception as e: print(e)"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True)
    assert "without -O" in done.stdout
